"""One run of an archive: a streaming query per table, which writes each epoch once and reports missing entries.

A query's checkpoint says which entries an epoch has, before any of them is read. ``bridge.spark.archiving.place`` says
why an epoch that runs again leaves finished files unchanged.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as fn

from bridge.routing.errors import EntriesLost
from bridge.routing.numbers import duration
from bridge.routing.stop_signal import StopSignal
from bridge.spark.archiving.place import NO_DATE, ArchivePlace
from bridge.spark.archiving.tables import Table
from bridge.spark.job.failures import Terminated, emit, one_line
from bridge.spark.job.session import job_session
from bridge.spark.read.offsets import Offsets
from bridge.spark.read.options import MESSAGES
from bridge.spark.wire.address import database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import SourceProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from bridge.spark.job.progress import Progress

#: Settings of a session that archives.
CONF = {
    # Spark's default is an old type that other tools read without its timezone, or not.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Somebody may have written a letter with ``payload`` and ``field:payload``. No entry ends an archive.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.adaptive.enabled": "false",
}
#: Seconds between two looks at the queries.
QUERY_CHECK_S = 1
#: Seconds that running epochs have to end after the first signal.
GRACE_S = 20.0


@dataclass(frozen=True)
class Archive:
    """The options of one run."""

    place: ArchivePlace
    #: Where the server is. Never printed: it may hold a password.
    url: str = field(repr=False)
    stream: str
    group: str
    tables: tuple[Table, ...]
    #: Entries of one epoch at most.
    max_rows: int
    #: Whether to fail when entries left the server before they were archived; otherwise their number is reported. None:
    #: fail, except for tables whose entries leave regularly.
    fail_on_data_loss: bool | None
    #: Seconds between two epochs while following; None: archive the present entries, and end.
    every_s: float | None
    progress: Progress
    master: str | None = None
    log: Path | None = None
    #: Spark's own configuration, as the user wants it.
    conf: dict[str, str] = field(default_factory=dict)

    def claim(self) -> None:
        """Makes the folder the archive of this lane. Raises what ``ArchivePlace.claim`` raises."""
        self.place.claim(self.stream, self.group, [table.name for table in self.tables], database=database(self.url))


def archive(asked: Archive) -> dict[str, int]:
    """Archive with a session of its own, with progress as asked for. Returns the rows written to each table.

    Raises ``EntriesLost`` for entries that left before they were archived, when the other tables are archived;
    ``Terminated`` and ``KeyboardInterrupt`` when a run without ``every_s`` was stopped; and what else ended a query.
    """
    with asked.place.held():
        asked.claim()
        conf = {**CONF, **asked.conf}
        with job_session("ticket-bridge archive", master=asked.master, log=asked.log, conf=conf) as session:
            return Run(session, asked).run()


class _TableRun:
    """The query of one table, and its counts."""

    def __init__(self, session: SparkSession, asked: Archive, table: Table, tell: Callable[..., None]) -> None:
        self.table = table
        self._place = asked.place
        self._stream = asked.stream
        self._max_rows = asked.max_rows
        self._tell = tell
        self._reported: set[int] = set()
        #: Epochs whose files were in place already: nothing was read for them.
        self._skipped: set[int] = set()
        #: Rows written, and entries found missing, in this run.
        self.rows = self.missing = 0
        asked.place.tidy(table.name)
        fails = asked.fail_on_data_loss if asked.fail_on_data_loss is not None else not table.leaves
        entries = (
            session.readStream.format("redisstream")
            .schema(table.schema)
            .options(url=asked.url, stream=asked.stream, table=table.name)
            .options(**({} if table.name == MESSAGES else {"group": asked.group}))
            .options(maxRowsPerTrigger=str(asked.max_rows), failOnDataLoss=str(fails))
            .load()
        )
        writer = (
            entries.writeStream.queryName(table.name)
            .option("checkpointLocation", f"file://{asked.place.checkpoint(table.name)}")
            .foreachBatch(self._write)
        )
        if asked.every_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{asked.every_s:g} seconds")
        self.query: StreamingQuery = writer.start()

    def _write(self, entries: DataFrame, epoch: int) -> None:
        """Writes the files of one epoch. Spark calls this again for the last epoch of a run that was killed."""
        name = self.table.name
        if self._place.is_whole(name, epoch):
            self._skipped.add(epoch)
            return
        rows = self.table.rows(entries)
        there = self._place.dates_of(name, epoch)
        if there:
            date = fn.coalesce(fn.col("date").cast("string"), fn.lit(NO_DATE))
            rows = rows.filter(~date.isin(there))
        written = Observation("written")
        (
            rows.withColumn("batch", fn.lit(epoch))
            .observe(written, fn.count(fn.lit(1)).alias("rows"))
            .write.mode("overwrite")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .partitionBy("date", "batch")
            .parquet(f"file://{self._place.unfinished(name, epoch)}")
        )
        self._place.finish(name, epoch)
        rows_written = int(written.get["rows"])
        self.rows += rows_written
        self._tell(event="archived", table=name, epoch=epoch, rows=rows_written)

    def has_caught_up(self) -> bool:
        """Whether no entries had to wait for the next epoch when the last one was planned; also when it has ended."""
        last = self.query.lastProgress
        return not self.query.isActive or (last is not None and last.numInputRows < self._max_rows)

    def has_begun(self) -> bool:
        """Whether its first epoch is done, or it had none."""
        return self.query.lastProgress is not None or not self.query.isActive

    def report_missing(self) -> None:
        """Reports the missing entries of epochs that have ended since the last call."""
        for progress in self.query.recentProgress:
            if progress.batchId in self._reported or not progress.sources:
                continue
            [source] = progress.sources
            # While nothing comes, Spark reports the next epoch, which has not begun.
            if source.startOffset == source.endOffset:
                continue
            missing = self._missing(progress.batchId, source)
            if missing is None:
                continue
            self._reported.add(progress.batchId)
            if missing:
                self.missing += missing
                self._tell(event="missing", table=self.table.name, epoch=progress.batchId, entries=missing)

    def _missing(self, epoch: int, source: SourceProgress) -> int | None:
        """How many entries of an epoch are gone; None before the epoch has ended."""
        begin, end = (_offsets(text, self._stream) for text in (source.startOffset, source.endOffset))
        if end is None:
            return None
        planned, lost = (end.rows - begin.rows, end.lost - begin.lost) if begin else (end.rows, end.lost)
        vanished = 0 if epoch in self._skipped else planned - source.numInputRows
        return lost + max(vanished, 0)


class Run:
    """The queries of one run."""

    def __init__(self, session: SparkSession, asked: Archive) -> None:
        self._session = session
        self._asked = asked
        #: Table -> what was lost there, which ended its query.
        self._lost: dict[str, str] = {}

    def run(self) -> dict[str, int]:
        asked, started = self._asked, time.monotonic()
        where = {"out": str(asked.place.root), "stream": asked.stream, "group": asked.group}
        self._tell(event="started", **where, tables=[table.name for table in asked.tables])
        with StopSignal() as stop:
            tables: list[_TableRun] = []
            try:
                for wanted in asked.tables:
                    # One after the other: each starts processes, for which Spark waits only ten seconds.
                    if stop.number is None:
                        tables.append(_TableRun(self._session, asked, wanted, self._tell))
                        self._watch(tables, stop, until=tables[-1].has_begun)
                self._watch(tables, stop)
            finally:
                for table in tables:
                    table.query.stop()
        if self._lost:
            what = "; ".join(f"{table}: {what}" for table, what in self._lost.items())
            advice = "archive more often, set bridge_retention, or use --allow-data-loss to go on without them"
            raise EntriesLost(f"{what}; {advice}")
        if stop.number is not None and asked.every_s is None:
            # Some entries are not archived: this is a failure.
            raise Terminated if stop.number == signal.SIGTERM else KeyboardInterrupt
        rows = {table.table.name: table.rows for table in tables}
        missing = {table.table.name: table.missing for table in tables if table.missing}
        self._tell(event="done", rows=rows, missing=missing, seconds=round(time.monotonic() - started, 3))
        return rows

    def _watch(self, tables: list[_TableRun], stop: StopSignal, until: Callable[[], bool] = lambda: False) -> None:
        """Watches the queries until they end, one of them fails, a signal arrives, or ``until`` is true.

        A loss in one table is no reason to lose entries of the others, too: they are archived first, as far as they go.
        """
        deadline = None
        while True:
            # A query that has ended is looked at once more: its last epoch is reported after its end.
            active = [table for table in tables if table.query.isActive]
            for table in tables:
                table.report_missing()
                self._look_for_failure(table)
            if not active or until():
                return
            ends_by_loss = self._asked.every_s is not None and bool(self._lost)
            if stop.number is not None or (ends_by_loss and all(table.has_caught_up() for table in tables)):
                deadline = deadline or time.monotonic() + GRACE_S
                busy = any(table.query.status["isTriggerActive"] for table in active)
                if not busy or stop.count > 1 or time.monotonic() > deadline:
                    return
            try:
                active[0].query.awaitTermination(QUERY_CHECK_S)
            except StreamingQueryException:
                continue

    def _look_for_failure(self, table: _TableRun) -> None:
        """Notes a loss. Raises any other error that ended the query."""
        failure = table.query.exception()
        if failure is None or table.table.name in self._lost:
            return
        error = one_line(failure)
        if not isinstance(error, EntriesLost):
            raise error
        # The reader's advice names an option that this job does not have.
        self._lost[table.table.name] = str(error).rpartition("; ")[0] or str(error)

    def _tell(self, **event: Any) -> None:
        if self._asked.progress == "json":
            emit(**event)
        elif self._asked.progress == "text":
            print(_line(**event), flush=True)


def _offsets(text: str | None, stream: str) -> Offsets | None:
    return Offsets.of(json.loads(text), stream) if text and text != "null" else None


def _line(event: str, **about: Any) -> str:
    """The line of text for an event."""
    match event:
        case "started":
            return f"archiving {', '.join(about['tables'])} of {about['stream']} into {about['out']}"
        case "archived":
            return f"{about['table']}: {about['rows']:,} rows (epoch {about['epoch']})"
        case "missing":
            gone = about["entries"]
            return (
                f"{about['table']}: {gone:,} {'entry' if gone == 1 else 'entries'} had left before they were archived"
            )
    rows = ", ".join(f"{count:,} of {table}" for table, count in about["rows"].items())
    missing = ", ".join(f"{count:,} of {table}" for table, count in about["missing"].items())
    return f"archived {rows} in {duration(about['seconds'] * 1000)}" + (f"; missing: {missing}" if missing else "")
