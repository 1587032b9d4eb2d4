"""The tables of a report on the terminal: the same columns as on the page, the widest of them left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bridge.routing.numbers import NONE, duration, rate, ratio, whole
from bridge.spark.reporting.table_columns import CONSUMERS, DEAD_LETTERS, HOT, SLOWEST, TASKS, Column, Row
from bridge.spark.reporting.text import short, visible

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
        f"{whole(totals['messages'])} messages of {whole(totals['tickets'])} tickets: {whole(totals['done'])} done, "
        f"{whole(totals['dead'])} dead, {whole(totals['refused'])} refused, {whole(totals['undone'])} undone, "
        f"{whole(totals['unknown'])} unknown"
    )
    console.print(
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
