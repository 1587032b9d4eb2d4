"""Output of commands: a console for people, JSON for programs. `bridge.routing.text` makes texts safe to print."""

from __future__ import annotations

from typing import Any

import click
import orjson
from rich.console import Console

#: Columns of a table that goes to a file or a pipe.
PIPE_WIDTH = 1000


def console(*, err: bool = False) -> Console:
    """A console that prints text unchanged: no markup, no highlighting, no emoji codes."""
    out = Console(stderr=err, markup=False, highlight=False, emoji=False)
    if not out.is_terminal:
        # Without a terminal, lines are not cut to a terminal's width.
        out = Console(stderr=err, markup=False, highlight=False, emoji=False, width=PIPE_WIDTH)
    return out


def echo_json(value: Any, *, pretty: bool = True) -> None:
    """Prints ``value`` as one JSON document."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if pretty else 0)
    # As bytes: JSON is UTF-8, whatever the terminal's encoding is.
    click.echo(orjson.dumps(value, option=options))
