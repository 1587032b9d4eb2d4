"""Reading a stream as a streaming query: epochs of ids, planned on the driver, read in the tasks.

An epoch is the entries between two offsets (``bridge.spark.read.offsets``), which the query's checkpoint has before
anything of the epoch is read. So an epoch that runs again after a crash has the same ids. The offsets also say how many
entries those are, so a task that reads the epoch notices when some have vanished. No consumer group is touched, and
nothing is written to the server.
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
from bridge.spark.read.fetch import Fetcher
from bridge.spark.read.offsets import Offset, is_another_stream, missing_after, present_after
from bridge.spark.read.options import ReadOptions
from bridge.spark.read.ranges import Range, tasks_for
from bridge.spark.read.stream_info import StreamInfo, stream_info_of
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
        #: Where a query with the trigger availableNow ends: the last id, and the counter, at its start.
        self._goal: Offset | None = None
        #: The ranges of the epoch that was planned last, if planning has counted them.
        self._counted: tuple[EntryId, EntryId, Sequence[Range]] | None = None
        self._doubted = False

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamStreamReader({self._options.stream} at {self._options.shown_url})"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, here and below
        """Where a query without a checkpoint begins."""
        info = self._info()
        begin = self._options.starting_id
        if begin is None:
            return Offset(info.last_generated, info.added).to_json()
        if begin == ZERO:
            # Entries that were gone before the query began are not lost.
            gone = None if info.added is None else info.added - info.length
            return Offset(ZERO, gone).to_json()
        return Offset(begin.before(), None).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxRowsPerTrigger``."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, plan no entry that is added later."""
        info = self._info()
        self._goal = Offset(info.last_generated, info.added)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the stream goes, for the progress of the query."""
        info = self._info()
        return Offset(info.last_generated, info.added).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next epoch; ``start`` itself when there is nothing to read.

        Raises ``EntriesLost`` when entries after ``start`` are gone, unless ``failOnDataLoss`` is false.
        """
        begin = Offset.of(start)
        info = self._info()
        if is_another_stream(info, begin):
            if not info.length and not self._options.fail_on_data_loss:
                return start
            self._lost(
                f"stream {self._options.stream!r} was deleted or created again: its last id was {begin.id} or later, "
                f"and is {info.last_generated} now"
            )
            kept = begin.id <= info.last_generated
            begin = replace(begin, id=begin.id if kept else ZERO, position=None)
        end = self._goal if self._goal is not None and self._goal.id < info.last_generated else None
        last = info.last_generated if end is None else end.id
        if last <= begin.id:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan(begin, info, last, end, most).to_json()

    def _plan(self, begin: Offset, info: StreamInfo, last: EntryId, goal: Offset | None, most: int | None) -> Offset:
        """The end of the epoch that begins after ``begin``: at ``last``, or after ``most`` entries."""
        present = present_after(info, begin.id, begin.position)
        beyond = 0 if goal is None else present_after(info, goal.id, goal.position)
        self._counted = None
        if info.added is not None and present is None:
            # Counted to the end of the stream: the missing entries follow from the number of all entries.
            present = survey(*self._place, begin.id.after(), info.last_generated, each=ONE_RANGE).rows
        missing = 0 if present is None else missing_after(info, begin, present)
        if missing < 0:
            # More entries than were added after the offset: counter and ids are those of another stream.
            self._lost(f"stream {self._options.stream!r} was deleted and created again since {begin.id} was read")
            missing = 0
        if present is None or beyond is None or (most is not None and present - beyond > most):
            first = begin.id.after()
            found = survey(*self._place, first, last, each=self._share(most or present), most=most)
            rows = found.rows
            if found.ranges and rows == most:
                last = found.ranges[-1].last
            self._counted = (begin.id, last, found.ranges)
        else:
            rows = present - beyond
        if missing:
            gone = f"{missing:,} {'entry' if missing == 1 else 'entries'}"
            self._lost(f"{gone} after {begin.id} left stream {self._options.stream!r} before they were read")
        elif info.added is None:
            self._doubt(info, begin)
        position = None if present is None or info.added is None else info.added - (present - rows)
        return Offset(last, position, begin.rows + rows, begin.lost + missing)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of one epoch. Raises ``EntriesLost`` when entries of it have vanished since it was planned."""
        begin, last = Offset.of(start), Offset.of(end)
        rows = last.rows - begin.rows
        if rows <= 0:
            return []
        if self._counted is not None and self._counted[:2] == (begin.id, last.id):
            return list(self._counted[2])
        # A stream that was created again may begin with smaller ids than the old one ended with.
        first, share = begin.id.after() if begin.id < last.id else ZERO, self._share(rows)
        if share >= rows:
            return [Range(first, last.id, rows=rows)]
        found = survey(*self._place, first, last.id, each=share)
        if found.rows < rows:
            self._lost(_vanished(self._options.stream, Range(first, last.id, rows), found.rows))
        return list(found.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one range. Raises ``EntriesLost`` when there are fewer than were counted."""
        begin_task()
        assert isinstance(partition, Range)
        decoder = Decoder(self._columns)
        rows = 0
        with Fetcher(*self._place) as fetcher:
            for page in fetcher.pages(partition.first, partition.last):
                rows += len(page.ids)
                if len(page.ids):
                    yield decoder.decode(page)
        if partition.rows is not None and rows < partition.rows:
            self._lost(_vanished(self._options.stream, partition, rows))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Does nothing: the checkpoint says how far the query is."""

    @property
    def _place(self) -> tuple[str, str]:
        return self._options.url, self._options.stream

    def _info(self) -> StreamInfo:
        connection = connect(self._options.url)
        try:
            return stream_info_of(connection, *self._place)
        finally:
            connection.disconnect()

    def _share(self, rows: int | None) -> int:
        """Entries of one task, in an epoch with this number of entries."""
        if rows is None:
            return ONE_RANGE if self._options.partitions in (None, 1) else _UNKNOWN_SHARE
        return max(1, -(-rows // (self._options.partitions or tasks_for(rows))))

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise EntriesLost(f"{what}; {_ADVICE}")
        log.warning("%s; the query goes on without them", what)

    def _doubt(self, info: StreamInfo, begin: Offset) -> None:
        """Warn once of what cannot be known of a server that does not count."""
        if begin.rows and not self._doubted and (info.first is None or info.first > begin.id):
            self._doubted = True
            log.warning(
                "stream %r was trimmed up to %s at least; the server is older than 7.0 and cannot tell whether later "
                "entries, not read yet, were trimmed too", self._options.stream, begin.id,
            )  # fmt: skip


def _vanished(stream: str, part: Range, found: int) -> str:
    return (
        f"{(part.rows or 0) - found:,} of {part.rows:,} entries of stream {stream!r} between {part.first} and "
        f"{part.last} vanished after they were planned"
    )
