"""Shows the subscriptions of an app, one row for each, for `bridge status`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.routing.numbers import count, data_size, duration
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.inspect.advice import Advice
    from bridge.inspect.subscription_status import SubscriptionStatus

#: Problems that are printed; JSON has all.
PROBLEMS = 20
#: Lanes that are printed.
ROWS = 50


#: The columns after the name.
COLUMNS = ("led", "unread", "waiting", "in flight", "retrying", "delayed", "parked", "dead", "done", "oldest", "holds")


def view(
    found: Sequence[SubscriptionStatus],
    others: Sequence[str] = (),
    lanes: Sequence[SubscriptionStatus] = (),
    commands: Advice = NOT_OF_AN_APP,
    stream: str | None = None,
) -> RenderableType:
    """All subscriptions as a table, and their problems. ``others``: more problems. ``lanes``: the same numbers of each
    lane, if it is about one subscription. ``stream``: the only one that it is about.
    """
    problems = [*(problem for one in found for problem in one.problems(commands)), *others]
    shown = lanes if len(lanes) <= ROWS else [lane for lane in lanes if lane.unfinished][:ROWS]
    parts: list[RenderableType] = [_table([*found, *shown])]
    if len(shown) < len(lanes):
        parts.append(Text(f"and {len(lanes) - len(shown):,} more lanes: --json"))
    parts += [Text(f"! {problem}", "yellow") for problem in problems[:PROBLEMS]]
    if len(problems) > PROBLEMS:
        parts.append(Text(f"! and {len(problems) - PROBLEMS:,} more: --json", "yellow"))
    if len(found) > 1:
        first = next((one for one in found if one.unfinished), found[0])
        words = ("status", "-s", first.name, *(() if stream is None else ("--stream", stream)))
        parts.append(Text(f"{commands.of_app(*words)} shows one of them"))
    elif lanes:
        first = next((one for one in lanes if one.unfinished), lanes[0])
        words = ("status", "-s", found[0].name, "--stream", first.streams[0])
        parts.append(Text(f"{commands.of_app(*words)} shows one of its lanes"))
    return Group(*parts)


def _table(found: Sequence[SubscriptionStatus]) -> Text:
    """As text: a table of rich takes almost a second for a thousand rows."""
    rows = [("subscription", *COLUMNS), *map(_row, found)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join((name + " " * (widths[0] - cell_len(name)), *numbers)))
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _row(one: SubscriptionStatus) -> tuple[str, ...]:
    return (
        one_line(one.name),
        f"{one.led} of {one.lanes}" if one.lanes > 1 else "yes" if one.led else "no",
        unread_of(one),
        *(f"{number:,}" for number in _numbers(one)),
        f"{one.counters['done']:,}",
        duration(one.oldest_undone_ms),
        data_size(one.held_bytes),
    )


def _numbers(one: SubscriptionStatus) -> tuple[int, ...]:
    return (one.waiting, one.in_flight, one.awaiting_retry, one.delayed, one.parked, one.dead)


def line(found: Sequence[SubscriptionStatus]) -> str:
    """The state on one line, for a log."""
    led, lanes = sum(one.led for one in found), sum(one.lanes for one in found)
    undone = ", ".join(f"{one_line(one.name)} {undone_of(one)}" for one in found if one.undone)
    now = datetime.now().astimezone()
    return (
        f"{now:%H:%M:%S} {led} of {lanes} lanes led, undone {undone or 'nothing'}, "
        f"dead {sum(one.dead for one in found):,}, done {sum(one.counters['done'] for one in found):,}"
    )


def unread_of(one: SubscriptionStatus) -> str:
    """The number of unread messages. "at most" when the number is an upper bound."""
    return f"{one.unread:,}" if one.unread_exact else f"at most {one.unread:,}"


def undone_of(one: SubscriptionStatus, what: str = "") -> str:
    """The number of undone messages, in the same way; ``what``: with this noun."""
    number = count(one.undone, what) if what else f"{one.undone:,}"
    return number if one.unread_exact else f"at most {number}"
