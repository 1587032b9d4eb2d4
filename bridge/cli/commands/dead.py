"""``bridge dead``: the dead letters; put back, or thrown away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bridge.cli.main import Target
from bridge.cli.parameters import LIMIT, WORDS
from bridge.cli.terminal import console, echo_json
from bridge.routing.text import count, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.operate.replay import Fate
    from bridge.protocol.dead_letters import Letter


@click.group()
def dead() -> None:
    """What was given up, and why."""


@dead.command("list")
@click.option("--ticket", metavar="ID", help="Only letters of this ticket.")
@click.option("--task", metavar="NAME", help="Only letters of this task.")
@click.option("--reason", type=WORDS, metavar="TEXT", help="Only letters with this text in their reason or error.")
@click.option("--limit", default=50, show_default=True, type=LIMIT, help="Show so many at most, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, ticket: str | None, task: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """Lists dead letters, the newest first."""
    from bridge.app.finding import reach_lane
    from bridge.inspect.dead_letters import chosen, newest_first

    keys = target.lane.keys
    redis = reach_lane(target.app)
    found = chosen(newest_first(redis, keys), ticket=ticket, task=task, reason=reason)
    letters = list(islice(found, limit))
    more = next(found, None) is not None
    total = int(redis.xlen(keys.dead))
    if as_json:
        echo_json({"total": total, "more": more, "letters": [letter.summary() for letter in letters]})
        return
    if not letters:
        click.echo("no dead letters" if total == 0 else f"none of the {count(total, 'dead letter')} is like that")
        return
    console().print(_table(letters))
    if more:
        click.echo(f"{len(letters):,} shown, there are more: --limit N shows more")


@dead.command()
@click.argument("message_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(target: Target, message_id: str, as_json: bool) -> None:
    """Prints the whole dead letter of MESSAGE_ID, with traceback and payload."""
    from bridge.app.finding import reach_lane
    from bridge.inspect.dead_letters import of_message
    from bridge.routing.errors import InputError

    letters = of_message(reach_lane(target.app), target.lane.keys, message_id)
    if not letters:
        raise InputError(f"no dead letter of message {printable(message_id)}; `bridge dead list` names those there are")
    letter = letters[-1]
    if as_json:
        echo_json({**letter.document(), "letters": len(letters)})
        return
    _print(letter)
    if len(letters) > 1:
        click.echo(f"\n(it has {len(letters)} dead letters; this is the newest)")


def _selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `replay` and `drop` have in common: which letters, and how sure."""
    words: list[Callable[..., Any]] = [
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.option("--all", "everything", is_flag=True, help="All letters, or all that the other options choose."),
        click.option("--ticket", metavar="ID", help="Letters of this ticket."),
        click.option("--task", metavar="NAME", help="Letters of this task."),
        click.option("--reason", type=WORDS, metavar="TEXT", help="Letters with this text in their reason or error."),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.pass_context,
    ]
    for decorate in reversed(words):
        command = decorate(command)
    return command


@dead.command()
@_selection
def replay(ctx: click.Context, **options: Any) -> None:
    """Puts dead messages back into their tickets, by the ID of the message or of the letter.

    Each comes again under its old id, with new attempts, before every message of its ticket that has not been started.
    Exits 1 when any could not be replayed.
    """
    from bridge.operate.replay import judged, parser_of, replayed

    request = _Request(ctx, "replay", "replayed", **options)
    fates = list(judged(request.redis, request.keys, request.letters, parser_of(request.app)))
    good = [fate.letter for fate in fates if fate.why is None]
    bad = [fate for fate in fates if fate.why is not None]
    if request.goes_on(good, bad):
        request.told([*replayed(request.redis, request.keys, good), *bad])


@dead.command()
@_selection
def drop(ctx: click.Context, **options: Any) -> None:
    """Throws dead letters away, for good, by the ID of the message or of the letter.

    Exits 1 when any was not there any more.
    """
    from bridge.operate.replay import dropped

    request = _Request(ctx, "drop", "dropped", **options)
    if request.goes_on(request.letters, []):
        request.told(list(dropped(request.redis, request.keys, request.letters)))


class _Request:
    """Which letters `replay` or `drop` is to deal with; asks, and tells what became of them."""

    def __init__(
        self,
        ctx: click.Context,
        verb: str,
        participle: str,
        *,
        ids: Sequence[str],
        everything: bool,
        ticket: str | None,
        task: str | None,
        reason: str | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
    ) -> None:
        from bridge.app.finding import reach_lane
        from bridge.operate.replay import like, named

        chosen = everything or any(word is not None for word in (ticket, task, reason))
        if bool(ids) == chosen:
            raise click.UsageError("name letters by ID, or choose them with --all, --ticket, --task, --reason", ctx)
        target: Target = ctx.obj
        self._ctx = ctx
        self._verb = verb
        self._participle = participle
        self._sure = yes or bool(ids)
        self._dry_run = dry_run
        self._as_json = as_json
        self.app = target.app
        self.keys = target.lane.keys
        self.redis = reach_lane(target.app)
        self.letters = named(self.redis, self.keys, ids) if ids else like(self.redis, self.keys, ticket, task, reason)

    def goes_on(self, good: Sequence[Letter], bad: Sequence[Fate]) -> bool:
        """Whether to do it; not when there is nothing, in a dry run, or when somebody says no."""
        if self._dry_run:
            self._show_plan(good, bad)
            self._ctx.exit(1 if bad else 0)
        if not good:
            self.told(bad)
            return False
        if self._sure:
            return True
        what = f"{self._verb} {count(len(good), 'dead letter')}"
        if not _at_a_terminal():
            raise click.UsageError(f"this would {what}: add --yes, or look first with --dry-run", self._ctx)
        return click.confirm(f"{what}?", err=True)

    def _show_plan(self, good: Sequence[Letter], bad: Sequence[Fate]) -> None:
        if self._as_json:
            self._print_json([(letter, None) for letter in good] + [(fate.letter, fate.why) for fate in bad])
            return
        if good:
            console().print(_table(good))
        _print_refused(bad, self._participle)
        click.echo(f"would {self._verb} {count(len(good), 'dead letter')}")

    def told(self, fates: Sequence[Fate]) -> None:
        """Tells what became of each letter, and ends the command."""
        bad = [fate for fate in fates if fate.why is not None]
        if self._as_json:
            self._print_json([(fate.letter, fate.why) for fate in fates])
        else:
            _print_refused(bad, self._participle)
            click.echo(f"{self._participle} {count(len(fates) - len(bad), 'dead letter')}")
        self._ctx.exit(1 if bad else 0)

    def _print_json(self, fates: Sequence[tuple[Letter, str | None]]) -> None:
        letters = [{**letter.summary(), self._participle: why is None, "why": why} for letter, why in fates]
        done = sum(1 for _, why in fates if why is None)
        echo_json({"dry_run": self._dry_run, self._participle: done, "refused": len(fates) - done, "letters": letters})


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _print_refused(bad: Iterable[Fate], participle: str) -> None:
    for fate in bad:
        click.echo(f"not {participle}: {fate.letter.message_id}: {one_line(fate.why or '', 400)}")


def _table(letters: Iterable[Letter]) -> Table:
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
    return table


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
