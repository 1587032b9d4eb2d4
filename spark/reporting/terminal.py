"""The tables of a report on the terminal: the same columns as on the page, the widest of them left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bridge.spark.reporting.numbers import NONE, count, duration, rate, ratio, short, visible
from bridge.spark.reporting.table_columns import CONSUMERS, DEAD_LETTERS, HOT, SLOWEST, TASKS, Column, Row

#: Width of output to a file or a pipe, in which lines are not cut.
_PIPE_WIDTH = 1000
#: Columns of the page that a terminal has no room for.
_LEFT_OUT = ("waiting p90", "waiting max", "service p90", "service max", "turnaround p99", "first", "of busy")
_NAME_CHARS = 40


def show(found: dict[str, Any]) -> None:
    """Prints what ``bridge.spark.reporting.results.results`` returned."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=_PIPE_WIDTH)
    totals = found["totals"]
    console.print(
        f"{count(totals['messages'])} messages of {count(totals['tickets'])} tickets: {count(totals['done'])} done, "
        f"{count(totals['dead'])} dead, {count(totals['refused'])} refused, {count(totals['undone'])} undone, "
        f"{count(totals['unknown'])} unknown"
    )
    console.print(
        f"{count(totals['executions'])} executions: {count(totals['retries'])} retries, "
        f"{count(totals['failures'])} failures, {count(totals['losses'])} losses; "
        f"{rate(totals['throughput_per_s'])} on {count(totals['consumers'])} workers, "
        f"imbalance {ratio(totals['imbalance'])}"
    )
    times = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "p50", "p90", "p99", "max"):
        times.add_column(heading, justify="right" if heading else "left")
    for measure in ("waiting", "service", "turnaround"):
        shown = (duration(totals.get(f"{measure}_{name}_ms")) for name in ("p50", "p90", "p99", "max"))
        times.add_row(measure, *shown)
    console.print(times)
    for title, name, columns in (
        ("tasks", "tasks", TASKS),
        ("hot tickets", "hot_tickets", HOT),
        ("slowest tickets", "slowest_tickets", SLOWEST),
        ("workers", "consumers", CONSUMERS),
        ("dead letters", "dead_letters", DEAD_LETTERS),
    ):
        if found[name]:
            console.print(f"\n{title}")
            console.print(_table(columns, found[name]))


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
