"""``bridge dead``: the dead letters."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import click
from rich.table import Table

from bridge.cli import Target
from bridge.terminal import console, count, echo_json, one_line, printable

if TYPE_CHECKING:
    from bridge.dead import Letter


@click.group()
def dead() -> None:
    """What was given up, and why."""


@dead.command("list")
@click.option("--ticket", metavar="ID", help="Only letters of this ticket.")
@click.option("--task", metavar="NAME", help="Only letters of this task.")
@click.option("--reason", metavar="TEXT", help="Only letters with this text in their reason or error.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1), help="Show so many at most, the newest."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, ticket: str | None, task: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """Lists dead letters, the newest first."""
    from bridge.apps import reach
    from bridge.dead import chosen, newest_first

    keys = target.settings.keys
    redis = reach(target.app)
    found = chosen(newest_first(redis, keys), ticket=ticket, task=task, reason=reason)
    letters = list(islice(found, limit))
    more = next(found, None) is not None
    total = int(redis.xlen(keys.dead))
    if as_json:
        echo_json({"total": total, "more": more, "letters": [letter.summary() for letter in letters]})
        return
    out = console()
    if not letters:
        click.echo("no dead letters" if total == 0 else f"none of the {count(total, 'dead letter')} is like that")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # Ids are for copying, so they are never cut or broken; what is too long for a terminal goes on in the last column.
    for name in ("message", "ticket", "task", "died"):
        table.add_column(name, no_wrap=True)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=20)
    for letter in letters:
        table.add_row(
            letter.message_id,
            "(none)" if letter.ticket_id is None else one_line(letter.ticket_id, 40),
            one_line(letter.task or "(default)", 40),
            _when(letter.at_ms)[:19],
            str(letter.attempts),
            one_line(f"{letter.reason}: {letter.error}" if letter.error else letter.reason, 160),
        )
    out.print(table)
    if more:
        click.echo(f"{len(letters):,} shown, there are more: --limit N shows more")


@dead.command()
@click.argument("message_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(target: Target, message_id: str, as_json: bool) -> None:
    """Prints the whole dead letter of MESSAGE_ID, with traceback and payload."""
    from bridge.apps import reach
    from bridge.dead import of_message
    from routing.errors import InputError

    letters = of_message(reach(target.app), target.settings.keys, message_id)
    if not letters:
        raise InputError(f"no dead letter of message {printable(message_id)}; `bridge dead list` names those there are")
    letter = letters[-1]
    if as_json:
        echo_json({**letter.document(), "letters": len(letters)})
        return
    _print(letter)
    if len(letters) > 1:
        click.echo(f"\n(it has {len(letters)} dead letters; this is the newest)")


def _print(letter: Letter) -> None:
    facts = [
        ("message", letter.message_id),
        ("letter", letter.id),
        ("ticket", "(none)" if letter.ticket_id is None else letter.ticket_id),
        ("task", letter.task or "(default)"),
        ("reason", letter.reason),
        ("error", letter.error or "(none)"),
        ("attempts", str(letter.attempts)),
        ("died", _when(letter.at_ms)),
    ]
    if letter.consumer:
        facts.append(("consumer", letter.consumer))
    if letter.fence is not None:
        facts.append(("fence", str(letter.fence)))
    for name, value in facts:
        click.echo(f"{name:<10}{one_line(value, 4000)}")
    if letter.traceback:
        click.echo("\ntraceback")
        click.echo(printable(letter.traceback.rstrip()))
    if letter.fields:
        click.echo("\nthe entry as it came")
        for name_raw, value_raw in letter.fields:
            click.echo(f"{_shown(name_raw)}: {_shown(value_raw)}")
    elif letter.payload is not None:
        click.echo("\npayload")
        click.echo(_shown(letter.payload))


def _shown(value: bytes) -> str:
    return printable(value.decode(errors="backslashreplace"))


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
