"""The batch writer of the data source: the part that runs in a task, and the commit on the driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bridge.spark.write.layout import Layout
from bridge.spark.write.options import WriteOptions
from bridge.spark.write.partition import Written, settle, write_partition
from bridge.spark.write.sorting import sorted_rows

#: How long the guard of a write without a name is kept after its end, in seconds: for late attempts of its tasks.
NAMELESS_GUARD_S = 3600


class RedisStreamWriter(DataSourceArrowWriter):
    """Writes the partitions of one batch. Spark pickles it and calls ``write`` in each task."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        """A batch without ``runId`` gets a new one here, on the driver: all attempts of its tasks share it."""
        self._options = options
        self._layout = layout
        self._run = options.run_id or f"write-{uuid.uuid4()}"

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamWriter({self._options.stream} at {self._options.shown_url})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Appends the rows of one partition in their order; returns when the server has answered for all of them.

        Raises ``PayloadError`` before anything of the refused batch is written (earlier batches are), and what
        ``bridge.spark.write.partition`` raises.
        """
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        rows = iterator
        if self._options.order_by:
            rows = sorted_rows(list(iterator), self._options.order_by, self._layout)
        return write_partition(self._options, self._layout, self._run, 0, number, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Notes in the guard what the write has done. The guard stays, so that the same run finds it again."""
        life_s = self._options.guard_ttl
        settle(
            self._options,
            self._layout,
            self._run,
            0,
            messages,
            life_s if self._options.run_id else min(life_s, NAMELESS_GUARD_S),
        )
