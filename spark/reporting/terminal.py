"""The tables of a report on the terminal: the same columns as on the page, the widest of them left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bridge.routing.numbers import NONE, duration, rate, ratio, whole
from bridge.routing.terminal import console
from bridge.spark.reporting.table_columns import CONSUMERS, DEAD_LETTERS, HOT, SLOWEST, TASKS, Column, Row
from bridge.spark.reporting.text import short, visible

#: Columns of the page that a terminal has no room for.
_LEFT_OUT = ("waiting p90", "waiting max", "service p90", "service max", "turnaround p99", "first", "of busy")
_NAME_CHARS = 40


def show(found: dict[str, Any], lane: tuple[str, str] | None = None) -> None:
    """Prints what ``bridge.spark.reporting.results.results`` returned. ``lane``: the stream and the group."""
    out = console()
    if lane is not None:
        out.print(f"stream {visible(lane[0])}, group {visible(lane[1])}", markup=False)
    totals = found["totals"]
    out.print(
        f"{whole(totals['messages'])} messages of {whole(totals['tickets'])} tickets: {whole(totals['done'])} done, "
        f"{whole(totals['dead'])} dead, {whole(totals['refused'])} refused, {whole(totals['undone'])} undone, "
        f"{whole(totals['unknown'])} unknown{_not_handled(totals)}"
    )
    out.print(
        f"{whole(totals['executions'])} executions: {whole(totals['retries'])} retries, "
        f"{whole(totals['failures'])} failures, {whole(totals['losses'])} losses; "
        f"{rate(totals['throughput_per_s'])} on {whole(totals['consumers'])} workers, "
        f"imbalance {ratio(totals['imbalance'])}"
    )
    times = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "p50", "p90", "p99", "max"):
        times.add_column(heading, justify="right" if heading else "left")
    for measure in ("waiting", "service", "turnaround"):
        shown = (duration(totals.get(f"{measure}_{name}_ms")) for name in ("p50", "p90", "p99", "max"))
        times.add_row(measure, *shown)
    out.print(times)
    for title, name, columns in (
        ("tasks", "tasks", TASKS),
        ("hot tickets", "hot_tickets", HOT),
        ("slowest tickets", "slowest_tickets", SLOWEST),
        ("workers", "consumers", CONSUMERS),
        ("dead letters", "dead_letters", DEAD_LETTERS),
    ):
        if found[name]:
            out.print(f"\n{title}")
            out.print(_table(columns, found[name]))


def _not_handled(totals: Row) -> str:
    """The messages that were dropped, or that the subscription never dispatched, where there are any."""
    shown = (
        f", {whole(totals[key])} {name}"
        for key, name in (("dropped", "dropped"), ("left_out", "left out"), ("skipped", "skipped"))
        if totals[key]
    )
    return "".join(shown)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    kept = [column for column in columns if column.title not in _LEFT_OUT]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in kept:
        table.add_column(column.title, justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(column, row[column.key]) for column in kept))
    return table


def _cell(column: Column, value: Any) -> str:
    if column.shown is not None:
        return column.shown(value)
    return short(visible(value), _NAME_CHARS) if value else NONE
