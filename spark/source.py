"""The Spark data source ``redisstream``: a DataFrame appended to a Redis stream, one entry per row.

What it does now: batch writes, each row once per task attempt, the rows of a partition in their order on one
connection. What it does not do yet: skip what an earlier attempt of a task wrote (a retried task or a re-run job
writes its rows again), streaming writes, reading. Those have their places: ``spark.options`` for their options,
``writer`` and its siblings below for their classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from routing.errors import ConfigurationError
from spark.address import connect
from spark.encoder import EntryEncoder, chunks, parts
from spark.layout import Layout
from spark.options import WriteOptions, parse
from spark.refusals import SequenceGuard, check_payloads, check_tickets
from spark.replies import Pipeline

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

#: Rows per batch after the writer has sorted a partition: what Spark itself uses.
_SORTED_BATCH_ROWS = 10_000


class RedisStreamDataSource(DataSource):
    """Register it once per session, then ``df.write.format("redisstream").mode("append").options(…).save()``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises ``ConfigurationError`` for an unknown option or an impossible value."""
        # Not passed on to the base class as a whole: it would keep the URL where a debugger or a log prints it.
        super().__init__(options={})
        self._options = parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "redisstream"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch.

        Raises ``ConfigurationError`` for ``mode("overwrite")`` and for columns that the options name and the DataFrame
        does not have.
        """
        if overwrite:
            raise ConfigurationError('a stream is appended to, never replaced; use mode("append")')
        return RedisStreamWriter(self._options, Layout.of(schema, self._options))

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamDataSource({self._options.stream} at {self._options.shown_url})"


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    #: Entries that the server accepted.
    rows: int


class RedisStreamWriter(DataSourceArrowWriter):
    """Writes the partitions of one batch. Spark pickles it and calls ``write`` in each task."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamWriter({self._options.stream} at {self._options.shown_url})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one partition, in their order; returns after the server has answered for all of them.

        Raises ``PayloadError`` before anything of the offending batch is written (batches before it are), and
        ``ServerUnavailable`` or ``RefusedByServer`` when the server fails.
        """
        options, layout = self._options, self._layout
        encoder = EntryEncoder(options.stream, layout.key, layout.fields)
        guard = SequenceGuard(layout.sequence) if layout.sequence else None
        connection = connect(options.url)
        try:
            pipeline = Pipeline(connection, options.url, options.window)
            for batch in self._sorted(iterator):
                tickets = batch.column(layout.key)
                check_tickets(tickets)
                check_payloads(batch, tickets, list(layout.fields), options.max_payload)
                if guard is not None:
                    guard.check(tickets, batch.column(layout.sequence))
                for part in parts(batch):
                    commands = encoder.encode(part)
                    for wire, rows in chunks(commands, options.chunk_size):
                        pipeline.send(wire, rows)
            return Written(rows=pipeline.drain())
        finally:
            connection.disconnect()

    def _sorted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches as they come, or the whole partition sorted by ``orderBy``, which holds it in memory."""
        if not self._options.order_by:
            return batches
        held = list(batches)
        if not held:
            return iter(held)
        table = pa.Table.from_batches(held)
        ordered = table.sort_by([(column, "ascending") for column in self._options.order_by])
        return iter(ordered.to_batches(max_chunksize=_SORTED_BATCH_ROWS))
