"""``bridge delayed``: lists, cancels and reschedules messages that are not due yet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bridge.cli.main import Target
from bridge.cli.parameters import LIMIT, NON_EMPTY, Number
from bridge.cli.terminal import echo_json
from bridge.routing.errors import ConfigurationError, PayloadError
from bridge.routing.numbers import count, duration
from bridge.routing.terminal import Part, ProgressDisplay, console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.delayed import DelayedMessage, Selection
    from bridge.operate.delayed import Change
    from bridge.protocol.orders import DelayedAct

#: Seconds before a search shows its progress, and between two lines of it when standard error is no terminal.
FIRST_S = 1.0
PLAIN_EVERY_S = 10.0
#: Most messages of which a change prints a row each.
ROWS = 50


@click.group()
def delayed() -> None:
    """Lists, cancels and reschedules messages that are not due yet."""


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose delayed messages."""
    options: list[Callable[..., Any]] = [
        click.option("--ticket", type=NON_EMPTY, metavar="ID", help="Only messages of this ticket."),
        click.option("--task", type=NON_EMPTY, metavar="NAME", help="Only messages of this task."),
        click.option("--after", metavar="TIME", help="Only messages that are due at this time or later."),
        click.option("--before", metavar="TIME", help="Only messages that are due by this time."),
        click.option("--hold", "mode", flag_value="hold", help="Only messages for which their tickets wait."),
        click.option("--overtake", "mode", flag_value="overtake", help="Only messages that others overtake."),
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command


@delayed.command("list")
@_filters
@click.option("--limit", default=20, show_default=True, type=LIMIT, help="Print the next N at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, /, limit: int, as_json: bool, **chosen: str | None) -> None:
    """Lists delayed messages: what is due next comes first.

    TIME: as in 2030-01-31T12:00:00+01:00, or +90 for 90 seconds from now.
    """
    from bridge.app.finding import reach_lanes
    from bridge.inspect.delayed import Selection, count_of, now_ms_of, soonest_first

    redis = reach_lanes(target.app, target.app_lanes)
    now_ms = now_ms_of(redis)
    selection = _selection(now_ms, **chosen)
    with _searching(redis, target, selection, quiet=as_json) as on_page:
        source = soonest_first(redis, target.app_lanes, selection, on_page)
        found = list(islice(source, limit))
        more = next(source, None) is not None
    total = count_of(redis, target.app_lanes, Selection())
    if as_json:
        echo_json({"total": total, "more": more, "messages": [one.summary(now_ms) for one in found]})
        return
    if found:
        console().print(_table(found, now_ms))
    else:
        click.echo("no delayed messages" if total == 0 else f"none of {count(total, 'delayed message')} matches")
    if more:
        rest = "there are more" if selection.reads_entries else f"there are {total:,}"
        click.echo(f"the next {len(found):,} are shown, {rest}: --limit N shows more")


@delayed.command()
@click.argument("message_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(target: Target, message_id: str, as_json: bool) -> None:
    """Shows the delayed message MESSAGE_ID, with its payload.

    Exits 1 when there is no such message, or it is not delayed any more.
    """
    from bridge.app.finding import reach_lane
    from bridge.inspect.delayed import find_delayed, now_ms_of

    lane = target.lane_of_message(message_id)
    redis = reach_lane(target.app, lane.settings)
    found = find_delayed(redis, lane, message_id)
    now_ms = now_ms_of(redis)
    if as_json:
        echo_json(found.document(now_ms))
        return
    does = "later ones wait for it" if found.mode.value == "hold" else "later ones overtake it"
    for name, value in (
        ("message", found.id),
        ("ticket", found.ticket_id or "(the entry was deleted)"),
        ("task", found.task or "(none)"),
        ("due", f"{_when(found.due_ms)}, {_due_in(found, now_ms)}"),
        ("mode", f"{found.mode.value}: {does}"),
        ("pushed", _when(found.pushed_ms)),
        ("payload", found.payload.decode(errors="backslashreplace")),
    ):
        click.echo(f"{name:<10}{one_line(value, 4000)}")


def _changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of the commands that change delayed messages."""
    options: list[Callable[..., Any]] = [
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.option("--all", "everything", is_flag=True, help="All delayed messages that match the other options."),
        _filters,
        click.option("--limit", type=LIMIT, help="Change the next N at most."),
        click.option("--dry-run", is_flag=True, help="Only print what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.pass_context,
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command


@delayed.command()
@_changing
def cancel(ctx: click.Context, **options: Any) -> None:
    """Cancels delayed messages: they are never handled.

    Exits 1 when a message could not be cancelled, since it is due, has begun or is done.
    """
    from bridge.protocol.orders import DelayedAct

    _Request(ctx, DelayedAct.CANCEL, "cancel", "cancelled", None, **options).run()


@delayed.command()
@_changing
@click.option("--delay", type=Number(0), metavar="SECONDS", help="They are due so long after now.")
@click.option("--eta", metavar="TIME", help="They are due at this time.")
def reschedule(ctx: click.Context, delay: float | None, eta: str | None, **options: Any) -> None:
    """Changes when delayed messages are due: --delay or --eta says when.

    TIME: as in 2030-01-31T12:00:00+01:00. Exits 1 when a message could not be rescheduled.
    """
    from bridge.producer.options import checked_options, eta_of_text
    from bridge.protocol.orders import DelayedAct

    if (delay is None) == (eta is None):
        raise click.UsageError("say when the messages are due, with either --delay or --eta", ctx)
    try:
        when = {"delay": delay, "eta": None if eta is None else eta_of_text(eta)}
        values = checked_options(when)
    except PayloadError as exc:
        raise ConfigurationError(f"{exc}; nothing was changed") from None
    _Request(ctx, DelayedAct.RESCHEDULE, "reschedule", "rescheduled", values.get("due", b"+0"), **options).run()


@delayed.command()
@_changing
def now(ctx: click.Context, **options: Any) -> None:
    """Makes delayed messages due now.

    Exits 1 when a message could not be made due, since it is due, has begun or is done.
    """
    from bridge.protocol.orders import DelayedAct

    _Request(ctx, DelayedAct.NOW, "make due", "made due", None, **options).run()


class _Request:
    """One call of a command that changes delayed messages: chooses them, asks, gives the orders, prints the result.

    ``due``: the new time in the form of `bridge.producer.options`.
    """

    def __init__(
        self,
        ctx: click.Context,
        act: DelayedAct,
        verb: str,
        participle: str,
        due: bytes | None,
        *,
        ids: Sequence[str],
        everything: bool,
        limit: int | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **chosen: str | None,
    ) -> None:
        from bridge.app.finding import reach_lanes
        from bridge.inspect.delayed import now_ms_of

        is_chosen = everything or any(value is not None for value in chosen.values())
        if bool(ids) == is_chosen:
            raise click.UsageError(
                "either name messages by ID, or choose them with --all, --ticket, --task, --after, --before, --hold or "
                "--overtake",
                ctx,
            )
        target: Target = ctx.obj
        self._ctx, self._target = ctx, target
        self._act, self._verb, self._participle = act, verb, participle
        self._limit, self._dry_run, self._as_json = limit, dry_run, as_json
        self._sure = yes or bool(ids)
        self._redis = reach_lanes(target.app, target.app_lanes, to_change=True)
        self._now_ms = now_ms_of(self._redis)
        self._due_ms = None if due is None else _unix_ms(due, self._now_ms)
        self._ids = list(dict.fromkeys(ids))
        self._selection = _selection(self._now_ms, **chosen)

    def run(self) -> None:
        """Carries out the command, and ends it with its exit code."""
        found = self._named() if self._ids else self._matching()
        if self._dry_run:
            self._print_plan(found)
            return
        if found and not self._sure and not self._confirmed(len(found)):
            return
        bad: list[Change] = []
        done = 0
        for result in self._changes(found):
            done += result.why is None
            if result.why is not None:
                bad.append(result)
        self._report(found, done, bad)

    def _named(self) -> list[DelayedMessage]:
        from bridge.inspect.delayed import find_delayed

        return [find_delayed(self._redis, self._target.lane_of_message(id_), id_) for id_ in self._ids]

    def _matching(self) -> list[DelayedMessage]:
        from bridge.inspect.delayed import DelayedMessage, soonest_first

        with _searching(self._redis, self._target, self._selection, quiet=self._as_json) as on_page:
            source = soonest_first(self._redis, self._target.app_lanes, self._selection, on_page)
            # There may be many: keep of their entries what is printed.
            kept = _without_payload if self._dry_run or self._as_json else lambda _fields: ()
            return [
                DelayedMessage(one.id, one.due_ms, one.mode, kept(one.fields), one.default_task)
                for one in islice(source, self._limit)
            ]

    def _changes(self, found: Sequence[DelayedMessage]) -> Iterator[Change]:
        """The results, lane after lane."""
        from bridge.operate.delayed import change

        def lane_of(message: DelayedMessage) -> AppLane:
            return self._target.lane_of_message(message.id)

        by_lane = sorted(found, key=lambda message: lane_of(message).id_suffix)
        for _, some in groupby(by_lane, key=lambda message: lane_of(message).id_suffix):
            messages = list(some)
            yield from change(self._redis, lane_of(messages[0]), self._act, messages, self._due_ms)

    def _confirmed(self, number: int) -> bool:
        what = f"{self._verb} {count(number, 'delayed message')}"
        if not sys.stdin.isatty():
            raise click.UsageError(f"this would {what}: add --yes, or look first with --dry-run", self._ctx)
        return click.confirm(f"{what}?", err=True)

    def _print_plan(self, found: Sequence[DelayedMessage]) -> None:
        if self._as_json:
            messages = [one.summary(self._now_ms) for one in found]
            echo_json({"dry_run": True, self._word: len(found), "due_ms": self._due_ms, "messages": messages})
            return
        if found:
            console().print(_table(found[:ROWS], self._now_ms))
        if len(found) > ROWS:
            click.echo(f"… and {len(found) - ROWS:,} more")
        until = "" if self._due_ms is None else f" to {_when(self._due_ms)}"
        click.echo(f"would {self._verb} {count(len(found), 'delayed message')}{until}")

    def _report(self, found: Sequence[DelayedMessage], done: int, bad: Sequence[Change]) -> None:
        if self._as_json:
            why = {one.message_id: one.why for one in bad}
            messages = [
                {**one.summary(self._now_ms), self._word: one.id not in why, "why": why.get(one.id)} for one in found
            ]
            echo_json(
                {
                    "dry_run": False,
                    self._word: done,
                    "refused": len(bad),
                    "due_ms": self._due_ms,
                    "messages": messages,
                }
            )
        else:
            for result in bad[:ROWS]:
                click.echo(f"not {self._participle}: {result.message_id}: {one_line(result.why or '', 400)}")
            if len(bad) > ROWS:
                click.echo(f"… and {len(bad) - ROWS:,} more that were not {self._participle}")
            until = "" if self._due_ms is None else f" to {_when(self._due_ms)}"
            click.echo(f"{self._participle} {count(done, 'delayed message')}{until}")
        self._ctx.exit(1 if bad else 0)

    @property
    def _word(self) -> str:
        return self._participle.replace(" ", "_")


@contextmanager
def _searching(redis: Redis, target: Target, selection: Selection, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows the progress of a search that reads the entries of all delayed messages."""
    from bridge.inspect.delayed import count_of

    if quiet or not selection.reads_entries:
        yield lambda _: None
        return
    total = count_of(redis, target.app_lanes, selection)
    read = 0
    with ProgressDisplay(console(err=True), every_s=PLAIN_EVERY_S, first_s=FIRST_S) as display:

        def advance(number: int) -> None:
            nonlocal read
            read += number
            text = f"{read:,} of {count(total, 'delayed message')}"
            display.show(f"searched {text}", [Part("searched", text, min(read, total), total)])

        yield advance


def _selection(
    now_ms: int, *, ticket: str | None, task: str | None, after: str | None, before: str | None, mode: str | None
) -> Selection:
    from bridge.inspect.delayed import Mode, Selection

    return Selection(
        ticket,
        task,
        None if after is None else _time(after, now_ms, "--after"),
        None if before is None else _time(before, now_ms, "--before"),
        None if mode is None else Mode(mode),
    )


def _time(text: str, now_ms: int, option: str) -> int:
    """A time of day, or ``+SECONDS`` from now, in ms since 1970. Raises `ConfigurationError`."""
    try:
        if text.startswith("+"):
            return now_ms + round(float(text) * 1000)
        found = datetime.fromisoformat(text)
        if found.utcoffset() is None:
            raise ConfigurationError(f"{option} {printable(text)} has no time zone, as in 2030-01-31T12:00:00+01:00")
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{option} must be a time such as 2030-01-31T12:00:00+01:00, or +90 for 90 seconds from now, not "
            f"{printable(text):.60}"
        ) from None


def _unix_ms(due: bytes, now_ms: int) -> int:
    return now_ms + int(due) if due.startswith(b"+") else int(due.removeprefix(b"="))


def _without_payload(fields: Sequence[bytes]) -> tuple[bytes, ...]:
    kept = (b"ticket_id", b"task")
    return tuple(part for i in range(0, len(fields), 2) if fields[i] in kept for part in fields[i : i + 2])


def _table(messages: Iterable[DelayedMessage], now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("message", "ticket", "task", "due", "in", "mode"):
        table.add_column(name, no_wrap=True)
    for one in messages:
        table.add_row(
            one.id,
            "(deleted)" if one.ticket_id is None else one_line(one.ticket_id, 40),
            one_line(one.task or "(none)", 40),
            _when(one.due_ms),
            _due_in(one, now_ms).removeprefix("in "),
            one.mode.value,
        )
    return table


def _due_in(message: DelayedMessage, now_ms: int) -> str:
    left = message.due_ms - now_ms
    return f"in {duration(left)}" if left > 0 else "now"


def _when(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
