"""``bridge dead``: lists, replays and drops dead letters."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bridge.cli.group import Group
from bridge.cli.older_versions import say_older
from bridge.cli.parameters import CHANGING, LIMIT, MESSAGE_ID, NON_EMPTY, with_options
from bridge.cli.refusals import fail_for, list_refused, reporting_progress_on_error
from bridge.cli.target import Target
from bridge.cli.terminal import at_a_terminal, echo_json
from bridge.routing.errors import OrderFailed
from bridge.routing.numbers import count, moment
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bridge.app.lanes import AppLane
    from bridge.operate.replay import LetterResult
    from bridge.protocol.dead_letters import Letter


@click.group(cls=Group)
def dead() -> None:
    """Lists, replays and drops dead letters."""


@dead.command("list")
@click.option("--ticket", type=NON_EMPTY, metavar="ID", help="Only letters of this ticket.")
@click.option("--task", type=NON_EMPTY, metavar="NAME", help="Only letters of this task.")
@click.option("--reason", type=NON_EMPTY, metavar="TEXT", help="Only letters with this text in their reason or error.")
@click.option("--limit", default=50, show_default=True, type=LIMIT, help="Print the newest N at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, ticket: str | None, task: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """Lists dead letters, newest first."""
    from bridge.app.finding import reach_lanes
    from bridge.inspect.dead_letters import newest_first_in, select

    redis = reach_lanes(target.app, target.app_lanes)
    found = select(newest_first_in(redis, target.app_lanes), ticket=ticket, task=task, reason=reason)
    letters = list(islice(found, limit))
    more = next(found, None) is not None
    total = sum(int(redis.xlen(lane.settings.keys.dead)) for lane in target.app_lanes)
    if as_json:
        echo_json({"total": total, "more": more, "letters": [letter.summary() for letter in letters]})
        return
    if letters:
        console().print(_table(letters))
    else:
        click.echo("no dead letters" if total == 0 else f"none of the {count(total, 'dead letter')} matches")
    if more:
        click.echo(f"{len(letters):,} shown, there are more: --limit N shows more")
    say_older(target, "dead letter", lambda lane: int(redis.xlen(lane.keys.dead)), "dead", "list")


@dead.command()
@click.argument("message_id", type=MESSAGE_ID)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(target: Target, message_id: str, as_json: bool) -> None:
    """Prints the dead letter of MESSAGE_ID, with traceback and payload."""
    from bridge.app.finding import reach_lane
    from bridge.inspect.dead_letters import of_message
    from bridge.inspect.partitions import name_letter
    from bridge.routing.errors import InputError
    from bridge.routing.partitions import stream_id

    lane = target.lane_of_message(message_id)
    letters = of_message(reach_lane(target.app, lane.settings), lane.settings.keys, stream_id(message_id))
    if not letters:
        raise InputError(f"no dead letter of message {printable(message_id)}; `bridge dead list` lists them")
    letter = name_letter(letters[-1], lane.id_suffix)
    if as_json:
        echo_json({**letter.document(), "letters": len(letters)})
        return
    _print(letter)
    if len(letters) > 1:
        click.echo(f"\n(it has {len(letters)} dead letters; this is the newest)")


#: Adds the options that `replay` and `drop` share.
_selection = with_options(
    click.argument("ids", type=MESSAGE_ID, metavar="[ID]...", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All letters that match the other options."),
    click.option("--ticket", type=NON_EMPTY, metavar="ID", help="Letters of this ticket."),
    click.option("--task", type=NON_EMPTY, metavar="NAME", help="Letters of this task."),
    click.option("--reason", type=NON_EMPTY, metavar="TEXT", help="Letters with this text in their reason or error."),
    *CHANGING,
)


@dead.command()
@_selection
def replay(ctx: click.Context, **options: Any) -> None:
    """Puts dead messages back into their tickets. ID: of the message, or of its letter.

    A replayed message keeps its id and gets new attempts. It goes before all messages of its ticket that have not
    started. Exits 1 when a message could not be replayed.
    """
    from bridge.operate.replay import check_replay, parser_of, replay_letters

    request = _Request(ctx, "replay", "replayed", **options)
    redis = request.redis
    good: list[tuple[AppLane, list[Letter]]] = []
    bad: list[LetterResult] = []
    for lane, letters in request.letters:
        results = list(check_replay(redis, lane.settings.keys, letters, parser_of(lane)))
        good.append((lane, [result.letter for result in results if result.why is None]))
        bad += _named(lane, (result for result in results if result.why is not None))
    if request.goes_on(good, bad):
        request.carry_out(good, lambda lane, letters: replay_letters(redis, lane.settings.keys, letters), bad)


@dead.command()
@_selection
def drop(ctx: click.Context, **options: Any) -> None:
    """Deletes dead letters for good. ID: of the message, or of its letter.

    Exits 1 when a letter no longer existed.
    """
    from bridge.operate.replay import drop_letters

    request = _Request(ctx, "drop", "dropped", **options)
    if request.goes_on(request.letters, []):
        redis = request.redis
        request.carry_out(request.letters, lambda lane, letters: drop_letters(redis, lane.settings.keys, letters), [])


class _Request:
    """One call of `replay` or `drop`: chooses the letters, asks for confirmation, and prints the result."""

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
        from bridge.app.finding import reach_lanes
        from bridge.operate.replay import find_by_id, find_matching
        from bridge.routing.partitions import stream_id

        chosen = everything or any(option is not None for option in (ticket, task, reason))
        if bool(ids) == chosen:
            raise click.UsageError("name letters by ID, or choose them with --all, --ticket, --task, --reason", ctx)
        target: Target = ctx.obj
        self._ctx = ctx
        self._verb = verb
        self._participle = participle
        self._sure = yes or bool(ids)
        self._dry_run = dry_run
        self._as_json = as_json
        self.redis = reach_lanes(target.app, target.app_lanes, to_change=True)
        #: The chosen letters of the lane of each partition. Their ids are those of its streams.
        self.letters: list[tuple[AppLane, list[Letter]]] = []
        if ids:
            named: dict[str, tuple[AppLane, list[str]]] = {}
            for id_ in ids:
                lane = target.lane_of_message(id_)
                named.setdefault(lane.id_suffix, (lane, []))[1].append(stream_id(id_))
            self.letters = [
                (lane, find_by_id(self.redis, lane.settings.keys, its, lane.id_suffix)) for lane, its in named.values()
            ]
        else:
            for lane in target.app_lanes:
                self.letters.append((lane, find_matching(self.redis, lane.settings.keys, ticket, task, reason)))

    def goes_on(self, chosen: Sequence[tuple[AppLane, Sequence[Letter]]], bad: Sequence[LetterResult]) -> bool:
        """Whether to go on. False when nothing was chosen or the user declines; a dry run ends the command here."""
        from bridge.inspect.partitions import name_letter

        good = [name_letter(letter, lane.id_suffix) for lane, letters in chosen for letter in letters]
        if self._dry_run:
            self._show_plan(good, bad)
            if bad:
                raise OrderFailed(f"{len(bad):,} of {count(len(good) + len(bad), 'dead letter')} would be refused")
            self._ctx.exit()
        if not good:
            self.report(bad)
            return False
        if self._sure:
            return True
        what = f"{self._verb} {count(len(good), 'dead letter')}"
        if not at_a_terminal():
            raise click.UsageError(f"this would {what}: add --yes, or look first with --dry-run", self._ctx)
        return click.confirm(f"{what}?", err=True)

    def carry_out(
        self,
        chosen: Sequence[tuple[AppLane, Sequence[Letter]]],
        do: Callable[[AppLane, Sequence[Letter]], Iterable[LetterResult]],
        bad: Sequence[LetterResult],
    ) -> None:
        """Calls ``do`` for the letters of each lane, and reports the results. ``bad``: of those that cannot be."""
        from bridge.inspect.partitions import name_letter

        results: list[LetterResult] = []
        whys: list[str | None] = []

        def print_json(why: str) -> None:
            known = {result.letter.id for result in results}
            every = [name_letter(letter, lane.id_suffix) for lane, letters in chosen for letter in letters]
            rest = [(letter, why) for letter in every if letter.id not in known]
            self._print_json([*((one.letter, one.why) for one in (*results, *bad)), *rest])

        total = sum(len(letters) for _, letters in chosen)
        with reporting_progress_on_error(whys, total, self._participle, print_json if self._as_json else None):
            for lane, letters in chosen:
                for result in do(lane, letters):
                    results += _named(lane, [result])
                    whys.append(result.why)
        self.report([*results, *bad])

    def _show_plan(self, good: Sequence[Letter], bad: Sequence[LetterResult]) -> None:
        if self._as_json:
            self._print_json([(letter, None) for letter in good] + [(result.letter, result.why) for result in bad])
            return
        if good:
            console().print(_table(good))
        list_refused(_refused(bad), self._participle)
        click.echo(f"would {self._verb} {count(len(good), 'dead letter')}")

    def report(self, results: Sequence[LetterResult]) -> None:
        """Prints the result for each letter. Raises `OrderFailed` when one was refused."""
        bad = _refused(results)
        if self._as_json:
            self._print_json([(result.letter, result.why) for result in results])
        elif not bad or len(results) > 1:
            list_refused(bad, self._participle)
            click.echo(f"{self._participle} {count(len(results) - len(bad), 'dead letter')}")
        fail_for(bad, len(results), "dead letter", self._participle)

    def _print_json(self, results: Sequence[tuple[Letter, str | None]]) -> None:
        letters = [{**letter.summary(), self._participle: why is None, "why": why} for letter, why in results]
        done = sum(1 for _, why in results if why is None)
        echo_json(
            {"dry_run": self._dry_run, self._participle: done, "refused": len(results) - done, "letters": letters}
        )


def _named(lane: AppLane, results: Iterable[LetterResult]) -> list[LetterResult]:
    """``results`` with ids that name the partition of ``lane``."""
    from bridge.inspect.partitions import name_letter

    return [replace(result, letter=name_letter(result.letter, lane.id_suffix)) for result in results]


def _refused(results: Iterable[LetterResult]) -> list[tuple[str, str]]:
    """(id, why) of the letters that were refused."""
    return [(result.letter.message_id, result.why) for result in results if result.why is not None]


def _table(letters: Iterable[Letter]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # Ids are for copying, so they are never cut or wrapped. Only the last column wraps.
    for name in ("message", "ticket", "task", "died"):
        table.add_column(name, no_wrap=True)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=20)
    for letter in letters:
        table.add_row(
            letter.message_id,
            "(none)" if letter.ticket_id is None else one_line(letter.ticket_id, 40),
            one_line(letter.task or "(default)", 40),
            moment(letter.at_ms)[:19],
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
        ("died", moment(letter.at_ms)),
    ]
    if letter.consumer:
        facts.append(("consumer", letter.consumer))
    if letter.fence is not None:
        facts.append(("fence", str(letter.fence)))
    for name, value in facts:
        click.echo(f"{name:<10}{one_line(value, 4000)}")
    if letter.traceback:
        click.echo("\ntraceback")
        click.echo(printable_lines(letter.traceback.rstrip()))
    if letter.fields:
        click.echo("\nthe entry")
        for name_raw, value_raw in letter.fields:
            click.echo(f"{_shown(name_raw)}: {_shown(value_raw)}")
    elif letter.payload is not None:
        click.echo("\npayload")
        click.echo(_shown(letter.payload))


def _shown(value: bytes) -> str:
    return printable_lines(value.decode(errors="backslashreplace"))
