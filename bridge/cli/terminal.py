"""Output of commands for programs: JSON; and who is asked. The console for people is in `bridge.routing.terminal`."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson

from bridge.routing.text import printable


def at_a_terminal() -> bool:
    """Whether somebody can answer a question."""
    # Python has no standard input where the file was closed before it started.
    return sys.stdin is not None and sys.stdin.isatty()


def echo_error(text: str) -> None:
    """Prints an error: one line, whatever characters the names in it have."""
    click.echo(f"Error: {printable(text)}", err=True)


def echo_json(value: Any, *, pretty: bool = True) -> None:
    """Prints ``value`` as one JSON document."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if pretty else 0)
    # As bytes: JSON is UTF-8, whatever the terminal's encoding is.
    click.echo(orjson.dumps(value, option=options))
