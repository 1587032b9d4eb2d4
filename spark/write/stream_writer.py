"""The streaming writer of the data source: it writes each partition of an epoch once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from bridge.routing.errors import ConfigurationError
from bridge.spark.write.layout import Layout
from bridge.spark.write.options import Idempotence, WriteOptions
from bridge.spark.write.partition import Written, checked, settle, write_partition
from bridge.spark.write.sorting import sorted_rows

#: Spark's internal properties that say to which query, and to which epoch of it, a task belongs.
QUERY_PROPERTY = "sql.streaming.queryId"
EPOCH_PROPERTY = "streaming.sql.batchId"


class RedisStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of epochs. Spark pickles it and calls ``write`` in each task, ``commit`` on another one."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStreamStreamWriter({self._options.stream} at {self._options.shown_url})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Appends the rows of one partition of one epoch, sorted; returns when the server has answered for all of them.

        The whole partition is held in memory: it is sorted by ``orderBy`` and ``seqColumn``, where named, and nothing
        of it is sent before all of it was checked. Raises ``PayloadError``, and what
        ``bridge.spark.write.partition`` raises.
        """
        options, layout = self._options, self._layout
        query, epoch, number = _where()
        batches = list(iterator)
        order = options.order_by or tuple(filter(None, [layout.sequence]))
        if order:
            batches = list(sorted_rows(batches, order, layout))
        batches = list(checked(options, layout, iter(batches)))
        return write_partition(options, layout, query, epoch, number, iter(batches))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Notes what the epoch has done, and removes earlier epochs from the guard.

        This epoch stays in the guard: Spark writes its own commit after this one, and runs the epoch again if it dies
        between the two.
        """
        query = next((message.run for message in messages if isinstance(message, Written)), "")
        if query and self._options.idempotence is Idempotence.WATERMARK:
            settle(self._options, self._layout, query, batchId, messages, self._options.guard_ttl)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Rows that were written stay, and the guard knows of them: the next attempt goes on from there."""


def _where() -> tuple[str, int, int]:
    """Query, epoch and partition of this task."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    epoch = None if context is None else context.getLocalProperty(EPOCH_PROPERTY)
    if context is None or not query or epoch is None or not epoch.isdigit():
        raise ConfigurationError(
            f"this Spark does not tell its tasks their query and epoch ({QUERY_PROPERTY}, {EPOCH_PROPERTY}), so "
            "nothing keeps a replayed epoch from being written twice; write from foreachBatch with runId"
        )
    return query, int(epoch), context.partitionId()
