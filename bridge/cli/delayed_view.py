"""Delayed messages at the command line: the options that choose them, a search with its progress, and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bridge.cli.parameters import NON_EMPTY, TICKET_ID, with_options
from bridge.routing.errors import ConfigurationError
from bridge.routing.numbers import count, duration, moment
from bridge.routing.terminal import Part, ProgressDisplay, console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.cli.target import Target
    from bridge.inspect.delayed import DelayedMessage, Selection

#: Seconds before a search shows its progress, and between two lines of it when standard error is no terminal.
FIRST_S = 1.0
PLAIN_EVERY_S = 10.0


_filters = with_options(
    click.option("--ticket", type=TICKET_ID, metavar="ID", help="Only messages of this ticket."),
    click.option("--task", type=NON_EMPTY, metavar="NAME", help="Only messages of this task."),
    click.option("--after", metavar="TIME", help="Only messages that are due at this time or later."),
    click.option("--before", metavar="TIME", help="Only messages that are due by this time."),
    click.option("--hold", is_flag=True, help="Only messages for which their tickets wait."),
    click.option("--overtake", is_flag=True, help="Only messages that others overtake."),
)


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose delayed messages."""

    @wraps(command)
    def with_mode(*arguments: Any, hold: bool, overtake: bool, **more: Any) -> Any:
        if hold and overtake:
            raise click.UsageError("--hold and --overtake exclude each other: leave out one, or both for all messages")
        return command(*arguments, mode="hold" if hold else "overtake" if overtake else None, **more)

    found: Callable[..., Any] = _filters(with_mode)
    return found


@contextmanager
def searching(redis: Redis, target: Target, selection: Selection, *, quiet: bool) -> Iterator[Callable[[int], None]]:
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


def selection_of(
    now_ms: int, *, ticket: str | None, task: str | None, after: str | None, before: str | None, mode: str | None
) -> Selection:
    """Which messages the options of `filters` choose. Raises `ConfigurationError`."""
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


def table(messages: Iterable[DelayedMessage], now_ms: int) -> Table:
    """A row for each of ``messages``."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("message", "ticket", "task", "due", "in", "mode"):
        made.add_column(name, no_wrap=True)
    for one in messages:
        made.add_row(
            one.id,
            "(deleted)" if one.ticket_id is None else one_line(one.ticket_id, 40),
            one_line(one.task or "(none)", 40),
            moment(one.due_ms),
            due_in(one, now_ms).removeprefix("in "),
            one.mode.value,
        )
    return made


def due_in(message: DelayedMessage, now_ms: int) -> str:
    """How long it is until ``message`` is due."""
    left = message.due_ms - now_ms
    return f"in {duration(left)}" if left > 0 else "now"
