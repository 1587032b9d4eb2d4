"""Computes the tables of a report, writes each as Parquet, and reads back the few rows that are shown.

The shown rows are read from the written tables, so page and tables cannot differ. The tables are written beside their
places, and moved there when all are done: a report that fails leaves an earlier one unchanged. The earlier tables are
moved aside and removed last: one that is killed meanwhile leaves each table at its place or aside.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as fn

from bridge.routing.errors import InputError
from bridge.spark.archiving.reading import Range, read_table
from bridge.spark.job.paths import to_read
from bridge.spark.read.options import DEAD, HISTORY, MESSAGES
from bridge.spark.reporting import tables as report_tables
from bridge.spark.reporting.deliveries import deliveries, due_times, messages
from bridge.spark.reporting.tables import Facts, Whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]

#: Most rows that are read back of the tables that are shown whole. Such tables are small by their nature.
WHOLE = 1000
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


def results(
    session: SparkSession,
    archive: str,
    within: Range,
    top: int,
    folder: Path,
    tell: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Writes all tables below ``folder``, in place of earlier ones; returns what is shown.

    Keys: ``totals`` (one row, with ``imbalance``), ``tasks``, ``slowest_tickets``, ``hot_tickets``, ``consumers``,
    ``dead_letters`` (lists of at most ``top`` rows each), ``over_time`` and ``distribution`` (whole), ``rows`` (how
    many each table has) and ``bucket_us``. Raises ``InputError`` when the history has nothing of the range.
    """
    # Spark's default is a type without a zone, which other tools stop supporting.
    before = session.conf.get(_TIMESTAMPS)
    session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    rows = deliveries(read_table(session, archive, HISTORY), within).persist(StorageLevel.MEMORY_AND_DISK)
    due = due_times(read_table(session, archive, MESSAGES))
    each = messages(rows, due).persist(StorageLevel.MEMORY_AND_DISK)
    writer = _Writer(session, folder, tell)
    try:
        facts = Facts(rows, each, report_tables.letters(read_table(session, archive, DEAD), within))
        totals = writer.write("totals", report_tables.totals(facts)).first()
        assert totals is not None
        if not totals["messages"]:
            if within == Range():
                raise InputError(f"the history in {archive} is empty: when tasks have run, archive again")
            raise InputError(f"the history in {archive} has nothing of this range; are the times UTC?")
        whole = Whole(totals["messages"], totals["waiting_sum_ms"] or 0.0, totals["service_sum_ms"] or 0.0)
        bucket = report_tables.bucket_us(totals["first_us"], totals["last_us"])
        tasks = writer.write("tasks", report_tables.per(facts, "task", whole))
        tickets = writer.write("tickets", report_tables.per(facts, "ticket_id", whole), small=False)
        consumers = writer.write("consumers", report_tables.consumers(facts, whole))
        dead = writer.write("dead_letters", report_tables.dead_reasons(facts))
        over_time = writer.write("over_time", report_tables.over_time(facts, bucket))
        distribution = writer.write("distribution", report_tables.distribution(facts))
        finished = tickets.filter(fn.col("turnaround_max_ms").isNotNull())
        hottest = (fn.col("messages").desc(), fn.col("waiting_sum_ms").desc_nulls_last(), "ticket_id")
        busiest = _first(consumers, top, fn.col("busy_ms").desc(), "consumer")
        found = {
            "totals": _in_utc(totals.asDict())
            | {"tickets": writer.rows["tickets"], "consumers": writer.rows["consumers"]}
            | {"imbalance": _imbalance(busiest, whole.service_ms, writer.rows["consumers"])},
            "tasks": _first(tasks, top, fn.col("messages").desc(), "task"),
            "slowest_tickets": _first(finished, top, fn.col("turnaround_max_ms").desc(), "ticket_id"),
            "hot_tickets": _first(tickets, top, *hottest),
            "consumers": busiest,
            "dead_letters": _first(dead, top, fn.col("letters").desc(), "reason", "task"),
            "over_time": _first(over_time, WHOLE, "bucket_start"),
            "distribution": _first(distribution, WHOLE, "measure", "from_ms"),
            "rows": writer.rows,
            "bucket_us": bucket,
        }
        writer.put_in_place()
        return found
    finally:
        writer.clear()
        each.unpersist()
        rows.unpersist()
        session.conf.set(_TIMESTAMPS, before or "INT96")


def _imbalance(busiest: list[Row], busy_ms: float, consumers: int) -> float | None:
    """Busy time of the busiest consumer over the mean of all: 1 is a perfect balance."""
    return busiest[0]["busy_ms"] * consumers / busy_ms if busiest and busy_ms else None


def _first(table: DataFrame, count: int, *order: Any) -> list[Row]:
    return [_in_utc(row.asDict()) for row in table.orderBy(*order).limit(count).collect()]


def _in_utc(row: Row) -> Row:
    """The row with its times in UTC. PySpark gives them in the zone of the process, without naming it."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}


class _Writer:
    """Writes tables beside their places in one folder, counts their rows, and moves them there."""

    def __init__(self, session: SparkSession, folder: Path, tell: Callable[[str, int], None] | None) -> None:
        self._session = session
        self._folder = folder.resolve()
        self._tell = tell
        #: Rows of each table written so far.
        self.rows: dict[str, int] = {}
        #: Tables that are not in their place yet, by name.
        self._made: dict[str, Path] = {}

    def write(self, name: str, table: DataFrame, *, small: bool = True) -> DataFrame:
        """Writes a table, a ``small`` one as one file; returns it as it was written."""
        made = self._made[name] = self._folder / f".{name}.new"
        counted = Observation(name)
        whole = table.coalesce(1) if small else table
        whole.observe(counted, fn.count(fn.lit(1)).alias("rows")).write.mode("overwrite").parquet(f"file://{made}")
        self.rows[name] = int(counted.get["rows"])
        if self._tell is not None:
            self._tell(name, self.rows[name])
        # With its schema: otherwise Spark would run a job to find it.
        return self._session.read.schema(table.schema).parquet(to_read(made))

    def put_in_place(self) -> None:
        """Moves the tables to their places, all or none. DataFrames that were read before must not be read again."""
        with ExitStack() as undo:
            for name, made in self._made.items():
                place, aside = self._folder / name, self._aside(name)
                if place.exists():
                    # Of a report that was killed as it removed it.
                    shutil.rmtree(aside, ignore_errors=True)
                    undo.callback(_put_back, aside, place)
                    place.rename(aside)
                made.rename(place)
                undo.callback(place.rename, made)
            undo.pop_all()
        moved, self._made = self._made, {}
        for name in moved:
            shutil.rmtree(self._aside(name), ignore_errors=True)

    def clear(self) -> None:
        """Removes the tables that are not in their places."""
        for made in self._made.values():
            shutil.rmtree(made, ignore_errors=True)

    def _aside(self, name: str) -> Path:
        """Where the earlier table is until the new one is in its place."""
        return self._folder / f".{name}.old"


def _put_back(aside: Path, place: Path) -> None:
    if aside.exists() and not place.exists():
        aside.rename(place)
