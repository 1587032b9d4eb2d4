"""Writes as Spark tasks do them, without a JVM: rows, options, one partition at a time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bridge.spark import RedisStreamDataSource
from bridge.spark.write.layout import Layout
from bridge.spark.write.options import parse
from bridge.spark.write.partition import Written, write_partition
from bridge.spark.write.writer import RedisStreamWriter
from bridge.stack.embedded import EmbeddedServer

STREAM = "{events}:stream"
LOG = StructType(
    [
        StructField("ticket_id", StringType()),
        StructField("seq", LongType()),
        StructField("payload", StringType()),
    ]
)
Row = tuple[str | None, int, str | None]


def writer(url: str, **options: str) -> RedisStreamWriter:
    """The writer as it arrives in a task."""
    source = RedisStreamDataSource({"url": url, "stream": STREAM, **options})
    made = source.writer(LOG, overwrite=False)
    assert isinstance(made, RedisStreamWriter)
    # Spark sends it to the task so.
    sent = pickle.loads(pickle.dumps(made))
    assert isinstance(sent, RedisStreamWriter)
    return sent


def partition(url: str, batches: Iterator[pa.RecordBatch], at: tuple[int, int] = (0, 0), /, **options: str) -> Written:
    """What one task does for one partition; ``at``: its epoch and its number."""
    parsed = parse({"url": url, "stream": STREAM, **options})
    return write_partition(parsed, Layout.of(LOG, parsed), "run", *at, batches)


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "ticket_id": pa.array([row[0] for row in rows], pa.string()),
            "seq": pa.array([row[1] for row in rows], pa.int64()),
            "payload": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def log(rows: int, first: int = 0) -> pa.RecordBatch:
    """Rows of seven tickets, whose ``seq`` is their place."""
    return batch(*((f"T{row % 7}", row, f'{{"row": {row}}}') for row in range(first, first + rows)))


def cut(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``size``."""
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def entries(server: EmbeddedServer) -> list[dict[bytes, bytes]]:
    with server.client() as client:
        return [fields for _, fields in client.xrange(STREAM)]


def sequence(server: EmbeddedServer) -> list[int]:
    """The ``seq`` of each entry, in stream order."""
    return [int(fields[b"seq"]) for fields in entries(server)]
