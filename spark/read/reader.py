"""Reading a stream as a batch: its entries as they are when their page is fetched. No consumer group is touched.

The driver plans the read: it finds the first and the last id of each stream, and cuts the ids into ranges. Each task
then fetches a range, page by page. An entry that is added meanwhile is after the last range, and is not read. An entry
that is trimmed meanwhile is gone, and the read notices it: each range begins with an entry that existed when the read
was planned, and each page with the last entry of the page before. Trimming begins at the oldest entry, so while that
entry exists, nothing after it was trimmed. An entry that is deleted singly before its page is fetched is not read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bridge.routing.errors import ConfigurationError, EntriesLost
from bridge.spark.read.columns import Columns, default_schema
from bridge.spark.read.decoder import Decoder
from bridge.spark.read.fetch import Fetcher
from bridge.spark.read.options import ReadOptions
from bridge.spark.read.ranges import Range, TaskRanges, ranges, tasks_for
from bridge.spark.read.sharing import in_tasks, share_tasks
from bridge.spark.read.stream_info import UNANSWERED, stream_infos
from bridge.spark.read.streams import Source, sources_of
from bridge.spark.wire.address import RedisConnection, connect, unavailable
from bridge.spark.wire.entry_ids import EntryId
from bridge.spark.wire.options import columns
from bridge.spark.wire.worker import begin_task

#: The columns of a read for which neither a schema nor the option ``fields`` was given.
SCHEMA = default_schema()

log = logging.getLogger(__name__)


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns of a read without a schema, by the option ``fields``; other options are not looked at."""
    named = next((value for name, value in given.items() if name.lower() == "fields"), None)
    return default_schema(columns("fields", named)) if named is not None else SCHEMA


class RedisStreamReader(DataSourceReader):
    """Plans a batch on the driver, and reads its ranges in the tasks. Spark pickles it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``ConfigurationError`` for a schema that a stream cannot fill, and for options of a streaming read."""
        if options.starting_id is None:
            raise ConfigurationError("startingId=latest is for a streaming read; a batch would be empty")
        if options.max_rows is not None:
            raise ConfigurationError("maxRowsPerTrigger is for a streaming read; use endingId to read less")
        self._options = options
        self._from = options.starting_id
        self._columns = Columns.of(schema)

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamReader({self._options.stream} at {self._options.shown_url})"

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read, from what the stream has now. Raises ``ServerUnavailable`` and ``RefusedByServer``."""
        options = self._options
        connection = connect(options.url)
        try:
            sources = sources_of(connection, options)
            infos = stream_infos(connection, options.url, [source.key for source in sources])
            bounds = self._bounds(connection, sources)
            found = [(source, max(1, info.length)) for source, info in zip(sources, infos, strict=True)]
            there = [(*one, bound) for one, bound in zip(found, bounds, strict=True) if bound]
            lengths = [length for _, length, _ in there]
            tasks = options.partitions or tasks_for(sum(lengths), len(there))
            planned: list[Range] = []
            weights: list[int] = []
            for (source, length, bound), parts in zip(there, share_tasks(lengths, tasks), strict=True):
                made = ranges(connection, options.url, source, bound, parts)
                planned += made
                weights += [-(-length // len(made))] * len(made)
            return in_tasks(planned, tasks, weights)
        finally:
            connection.disconnect()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one task. Raises ``EntriesLost``, ``ServerUnavailable`` and ``RefusedByServer``."""
        begin_task()
        # Where there are no ranges, Spark makes a partition of its own.
        if isinstance(partition, TaskRanges):
            for part in partition.ranges:
                yield from _read(self._options, Decoder(self._columns, part.source.suffix), part)

    def _bounds(self, connection: RedisConnection, sources: Sequence[Source]) -> list[tuple[EntryId, EntryId] | None]:
        """The first and the last entry to read of each stream; None when there is none."""
        options = self._options
        first, last = str(self._from), str(options.ending_id)
        ends: list[list[list[bytes]]] = []
        try:
            for start in range(0, len(sources), UNANSWERED):
                some = sources[start : start + UNANSWERED]
                for source in some:
                    connection.send_command("XRANGE", source.key, first, last, "COUNT", "1")
                    connection.send_command("XREVRANGE", source.key, last, first, "COUNT", "1")
                replies = [connection.read_response(disable_decoding=True) for _ in range(2 * len(some))]
                ends += cast(list[list[list[bytes]]], replies)
        except (redis.RedisError, OSError) as error:
            raise unavailable(options.url, error) from None
        found = zip(ends[::2], ends[1::2], strict=True)
        return [(EntryId.of(head[0][0]), EntryId.of(tail[0][0])) if head and tail else None for head, tail in found]


class _TrimCheck:
    """Notices that a stream was trimmed beyond the entries that were read."""

    def __init__(self, options: ReadOptions, source: Source) -> None:
        self._options = options
        self._key = source.key

    def check(self, expected: EntryId, found: EntryId | None) -> None:
        """``expected`` was an entry before, and is none now: the next entry is ``found`` (None: there is none).

        When later entries may be gone too, raises ``EntriesLost``, or logs a warning.
        """
        options = self._options
        connection = connect(options.url)
        try:
            [info] = stream_infos(connection, options.url, [self._key])
        finally:
            connection.disconnect()
        if info.first is not None and info.first <= expected:
            return  # it was deleted singly: later entries still exist
        line = (
            f"stream {self._key!r} was trimmed while it was read, or its oldest entries were deleted: entries "
            f"between {expected} and {found or 'the end of the range'} are gone"
        )
        if options.fail_on_data_loss:
            raise EntriesLost(f"{line}; trim it later, read from a later startingId, or set failOnDataLoss to false")
        log.warning("%s; the read goes on without them", line)


def _read(options: ReadOptions, decoder: Decoder, part: Range) -> Iterator[pa.RecordBatch]:
    trimmed = _TrimCheck(options, part.source)
    expected = part.first if part.begins else None
    fresh = True
    with Fetcher(options.url, part.source.key) as fetcher:
        for page in fetcher.pages(part.first, part.last, again=True):
            found = EntryId.of(page.ids[0].as_py()) if len(page.ids) else None
            if expected is not None and found != expected:
                trimmed.check(expected, found)
            if found is None:
                return
            batch = decoder.decode(page)
            # The first entry of a later page was the last one of the page before it.
            repeated = not fresh and found == expected
            yield batch.slice(1) if repeated else batch
            fresh, expected = False, EntryId.of(page.ids[-1].as_py())
