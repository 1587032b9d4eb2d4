"""Reading a stream as a streaming query: epochs of ids, planned on the driver, read in the tasks.

An epoch is the entries between two offsets (``bridge.spark.read.offsets``), which the query's checkpoint has before
anything of the epoch is read. So an epoch that runs again after a crash has the same ids. The offsets also say how many
entries those are, so a task that reads the epoch notices when some have vanished. No consumer group is touched, and
nothing is written to the server.

Each partition of a split stream is read as a stream of its own, with an offset of its own. The layout is looked up for
each epoch. So a query goes on when the stream gets another layout: it reads the new partitions from their beginning,
and the earlier ones as long as they exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bridge.routing.errors import ConfigurationError, EntriesLost
from bridge.spark.read.columns import Columns
from bridge.spark.read.decoder import Decoder
from bridge.spark.read.epoch import StreamEpoch
from bridge.spark.read.fetch import Fetcher
from bridge.spark.read.offsets import Offset, Offsets, is_another_stream
from bridge.spark.read.options import ReadOptions
from bridge.spark.read.ranges import Range, TaskRanges, tasks_for
from bridge.spark.read.sharing import in_tasks, share_rows, share_tasks
from bridge.spark.read.stream_info import StreamInfo, stream_infos
from bridge.spark.read.streams import Source, source_named, sources_of
from bridge.spark.read.survey import ONE_RANGE, survey
from bridge.spark.wire.address import connect
from bridge.spark.wire.entry_ids import LAST, ZERO, EntryId
from bridge.spark.wire.worker import begin_task

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise ConfigurationError("reading a stream as a streaming query needs PySpark 4.2 or newer") from None

log = logging.getLogger(__name__)

#: Entries of one task where the number of all entries is not known in advance.
_UNKNOWN_SHARE = 50_000
_ADVICE = "read more often, keep more in the stream, or set failOnDataLoss to false to go on without them"


class RedisStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs beside the driver, in another process, and reads them in the tasks. Spark pickles it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``ConfigurationError`` for a schema that a stream cannot fill, and for options of a batch."""
        if options.ending_id != LAST:
            raise ConfigurationError("endingId is for a batch read; a streaming query has no end")
        self._options = options
        self._columns = Columns.of(schema)
        #: Where a query with the trigger availableNow ends: the last id, and the counter, of each stream at its start.
        self._goal: dict[str, Offset] | None = None
        #: The ranges of the epoch that was planned last, by the name of the stream and the ids between which they are,
        #: as far as planning has counted them.
        self._counted: dict[tuple[str, EntryId, EntryId], Sequence[Range]] = {}
        #: Streams about which a warning was logged that is logged once.
        self._told: set[str] = set()

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamStreamReader({self._options.stream} at {self._options.shown_url})"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, here and below
        """Where a query without a checkpoint begins."""
        begin = self._options.starting_id
        offsets = {}
        for source, info in self._look():
            if begin is None:
                offset = Offset(info.last_generated, info.added)
            elif begin == ZERO:
                # Entries that were gone before the query began are not lost.
                offset = Offset(ZERO, None if info.added is None else info.added - info.length)
            else:
                offset = Offset(begin.before(), None)
            offsets[source.name] = offset
        return self._json(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxRowsPerTrigger``."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, plan no entry that is added later."""
        self._goal = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the streams go, for the progress of the query."""
        return self._json(self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next epoch; ``start`` itself when there is nothing to read.

        Raises ``EntriesLost`` when entries after ``start`` are gone, unless ``failOnDataLoss`` is false.
        """
        begin = Offsets.of(start, self._options.stream)
        epochs = self._epochs(begin)
        if not epochs:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        waiting = [epoch.waiting(most, self._share(most)) for epoch in epochs]
        shares = share_rows(waiting, most)
        tasks = share_tasks(shares, self._tasks(shares))
        self._counted = {}
        planned: dict[str, Offset] = {}
        for epoch, rows_waiting, rows, parts in zip(epochs, waiting, shares, tasks, strict=True):
            # A stream whose entries all have to wait for the next epoch stays where it is.
            if rows or not rows_waiting:
                name, taken = epoch.source.name, epoch.take(rows, -(-rows // max(1, parts)))
                planned[name] = taken.end
                if taken.ranges is not None:
                    self._counted[name, epoch.begin.id, taken.end.id] = taken.ranges
        return self._json({**begin.each, **planned})

    def _epochs(self, begin: Offsets) -> list[StreamEpoch]:
        """The streams that have more, first those that were read least far: no stream waits for ever."""
        epochs = []
        for source, info in self._look(begin):
            offset = begin.each.get(source.name) or self._beginning()
            goal = None if self._goal is None else self._goal[source.name]
            if is_another_stream(info, offset):
                if not info.length and not self._options.fail_on_data_loss:
                    continue
                self._lost(
                    f"stream {source.key!r} was deleted or created again: its last id was {offset.id} or later, "
                    f"and is {info.last_generated} now"
                )
                kept = offset.id <= info.last_generated
                offset = replace(offset, id=offset.id if kept else ZERO, position=None)
            epoch = StreamEpoch(self._options.url, source, offset, info, goal, self._lost)
            if epoch.has_more:
                epochs.append(epoch)
                if info.added is None:
                    self._doubt(source, info, offset)
        return sorted(epochs, key=lambda epoch: epoch.begin.id)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of one epoch. It does not raise when entries have vanished since it was planned: `read` does, and
        of an epoch that a query has handled already nothing is read.
        """
        stream = self._options.stream
        begins, ends = Offsets.of(start, stream).each, Offsets.of(end, stream).each
        spans = [(name, begins.get(name) or self._beginning(), last) for name, last in ends.items()]
        spans = [(name, begin, last) for name, begin, last in spans if last.rows > begin.rows]
        rows = [last.rows - begin.rows for _, begin, last in spans]
        tasks = self._tasks(rows)
        found: list[Range] = []
        for (name, begin, last), count, parts in zip(spans, rows, share_tasks(rows, tasks), strict=True):
            known = self._counted.get((name, begin.id, last.id))
            found += known if known is not None else self._ranges(name, begin, last, count, parts)
        return in_tasks(found, tasks, [part.rows or 0 for part in found])

    def _ranges(self, name: str, begin: Offset, last: Offset, rows: int, parts: int) -> Sequence[Range]:
        """The entries of one stream between two offsets, in ``parts`` ranges; in one, where some of them are lost."""
        source = source_named(self._options, name)
        # A stream that was created again may begin with smaller ids than the old one ended with.
        first = begin.id.after() if begin.id < last.id else ZERO
        whole = Range(source, first, last.id, rows=rows)
        if parts == 1:
            return [whole]
        found = survey(self._options.url, source, first, last.id, each=-(-rows // parts))
        if found.rows < rows:
            if self._options.fail_on_data_loss:
                return [whole]
            self._lost(_vanished(whole, found.rows))
        return found.ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one task. Raises ``EntriesLost`` when there are fewer than were counted."""
        begin_task()
        assert isinstance(partition, TaskRanges)
        for part in partition.ranges:
            decoder = Decoder(self._columns, part.source.suffix)
            rows = 0
            with Fetcher(self._options.url, part.source.key) as fetcher:
                for page in fetcher.pages(part.first, part.last):
                    rows += len(page.ids)
                    if len(page.ids):
                        yield decoder.decode(page)
            if part.rows is not None and rows < part.rows:
                self._lost(_vanished(part, rows))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Does nothing: the checkpoint says how far the query is."""

    def _look(self, begin: Offsets | None = None) -> list[tuple[Source, StreamInfo]]:
        """The streams to read, and what the server says of each: those of the stored layout, and those of ``begin``.

        A stream that only ``begin`` has is of an earlier layout. It is left out when it is gone.
        """
        connection = connect(self._options.url)
        try:
            sources = sources_of(connection, self._options)
            now = {source.name for source in sources}
            before = begin.each if begin is not None else {}
            sources = [source_named(self._options, name) for name in before if name not in now] + sources
            infos = stream_infos(connection, self._options.url, [source.key for source in sources])
        finally:
            connection.disconnect()
        found = []
        for source, info in zip(sources, infos, strict=True):
            if begin is not None and self._goal is not None and source.name not in self._goal:
                if source.name not in before:
                    continue  # it was made after the query began
                self._goal[source.name] = Offset(info.last_generated, info.added)
            if source.name not in now and info.last_generated == ZERO:
                if before[source.name].id != ZERO:
                    self._tell(
                        source,
                        "stream %r, of an earlier layout, is gone; if it had entries that were not read yet, the query "
                        "goes on without them",
                    )
                continue
            found.append((source, info))
        return found

    def _ends(self) -> dict[str, Offset]:
        return {source.name: Offset(info.last_generated, info.added) for source, info in self._look()}

    def _beginning(self) -> Offset:
        """Where a stream begins that was made while the query ran."""
        begin = self._options.starting_id
        return Offset(ZERO, 0) if begin in (None, ZERO) else Offset(begin.before(), None)

    def _json(self, offsets: Mapping[str, Offset]) -> dict[str, Any]:
        return Offsets(offsets).to_json(self._options.stream)

    def _tasks(self, rows: Sequence[int]) -> int:
        """How many tasks read so many entries of each stream."""
        return self._options.partitions or tasks_for(sum(rows), sum(count > 0 for count in rows))

    def _share(self, most: int | None) -> int:
        """Entries of one range, where they are counted before it is known how many there are."""
        if most is not None:
            return max(1, -(-most // (self._options.partitions or tasks_for(most))))
        return ONE_RANGE if self._options.partitions in (None, 1) else _UNKNOWN_SHARE

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise EntriesLost(f"{what}; {_ADVICE}")
        log.warning("%s; the query goes on without them", what)

    def _doubt(self, source: Source, info: StreamInfo, begin: Offset) -> None:
        """Warn once of what cannot be known of a server that does not count."""
        if begin.rows and (info.first is None or info.first > begin.id):
            self._tell(
                source,
                f"stream %r was trimmed up to {begin.id} at least; the server is older than 7.0 and cannot tell "
                "whether later entries, not read yet, were trimmed too",
            )

    def _tell(self, source: Source, warning: str) -> None:
        """Logs a warning about a stream, the first time."""
        if source.key not in self._told:
            self._told.add(source.key)
            log.warning(warning, source.key)


def _vanished(part: Range, found: int) -> str:
    return (
        f"{(part.rows or 0) - found:,} of {part.rows:,} entries of stream {part.source.key!r} between {part.first} and "
        f"{part.last} vanished after they were planned"
    )
