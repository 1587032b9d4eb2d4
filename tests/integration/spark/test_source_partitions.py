"""The data source writes to a stream that is split: each row goes to the partition of its ticket, once, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from threading import Timer
from typing import Any

import pyarrow as pa
import pytest

from bridge.routing.errors import ServerUnavailable, StreamFull
from bridge.routing.keys import layout_key
from bridge.routing.partitions import Layout, partition_of
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.spark_writes import STREAM, batch, cut, log, partition, writer

P = 4
SPLIT = Layout(P)


@pytest.fixture
def split(server: EmbeddedServer) -> Iterator[Any]:
    with server.client(decode_responses=True) as client:
        client.set(layout_key(STREAM), '{"partitions":4,"generation":0,"since_ms":1}')
        yield client


def found(client: Any, layout: Layout = SPLIT) -> dict[str, list[int]]:
    """Ticket -> the numbers of its rows, in the order of its partition."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for n, stream in enumerate(layout.streams(STREAM)):
        for _, fields in client.xrange(stream):
            assert partition_of(fields["ticket_id"], layout.partitions) == n
            numbers[fields["ticket_id"]].append(int(fields["seq"]))
    return numbers


def wanted(rows: int, first: int = 0) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for n in range(first, first + rows):
        numbers[f"T{n % 7}"].append(n)
    return numbers


@pytest.mark.parametrize(
    "options",
    [{}, {"idempotence": "none"}, {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}],
    ids=["watermark", "none", "ticket"],
)
def test_each_row_is_in_the_partition_of_its_ticket_in_order(
    server: EmbeddedServer, split: Any, options: dict[str, str]
) -> None:
    written = writer(server.url, chunkSize="10", window="3", **options).write(cut(log(200), 33))
    assert written.rows == 200
    assert found(split) == wanted(200)
    assert not split.exists(STREAM)


def test_a_null_field_is_absent_also_in_a_partition(server: EmbeddedServer, split: Any) -> None:
    rows = batch(*((f"T{n}", n, None if n % 2 else "{}") for n in range(20)))
    writer(server.url).write(iter([rows]))
    entries = [fields for stream in Layout(P).streams(STREAM) for _, fields in split.xrange(stream)]
    assert len(entries) == 20
    assert all(("payload" in fields) == (int(fields["seq"]) % 2 == 0) for fields in entries)


@pytest.mark.parametrize(
    "options",
    [{"runId": "r"}, {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}],
    ids=["watermark", "ticket"],
)
def test_an_attempt_goes_on_in_another_layout_and_writes_no_row_twice(
    server: EmbeddedServer, split: Any, options: dict[str, str]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield log(50)
        split.set(layout_key(STREAM), '{"partitions":3,"generation":1,"since_ms":2}')
        yield log(50, 50)

    assert partition(server.url, batches(), chunkSize="10", window="1", **options).rows == 100
    old, new = found(split), found(split, Layout(3, 1))
    # A chunk or two of the first batch may have been without an answer.
    for ticket, numbers in wanted(100).items():
        assert old[ticket] + new[ticket] == numbers
    assert sum(map(len, new.values())) >= 50
    # The same once more adds nothing, in any layout.
    assert partition(server.url, iter([log(50), log(50, 50)]), chunkSize="10", **options).found == 100
    assert (found(split), found(split, Layout(3, 1))) == (old, new)


@pytest.mark.parametrize(
    "options",
    [{"runId": "r"}, {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}],
    ids=["watermark", "ticket"],
)
def test_a_write_waits_while_the_layout_is_lost(server: EmbeddedServer, split: Any, options: dict[str, str]) -> None:
    text = split.get(layout_key(STREAM))
    split.xadd(f"{STREAM}:p0", {"ticket_id": "T"})
    split.delete(layout_key(STREAM))
    with pytest.raises(ServerUnavailable, match=r"stream is split, .*; a master that runs stores it again"):
        partition(server.url, iter([log(50)]), chunkSize="10", maxWait="1", **options)
    assert not split.exists(STREAM)

    def batches() -> Iterator[pa.RecordBatch]:
        yield log(50)
        split.delete(layout_key(STREAM))
        Timer(0.3, split.set, (layout_key(STREAM), text)).start()
        yield log(50, 50)

    split.set(layout_key(STREAM), text)
    assert partition(server.url, batches(), chunkSize="10", window="1", **options).rows == 100
    assert not split.exists(STREAM)
    assert sum(split.xlen(stream) for stream in SPLIT.streams(STREAM)) == 101


def test_the_high_water_counts_all_partitions_of_a_chunk(server: EmbeddedServer, split: Any) -> None:
    with pytest.raises(StreamFull, match="the stream holds 100 entries"):
        writer(server.url, chunkSize="20", window="1", highWater="100", maxWait="1").write(iter([log(200)]))
    assert sum(map(len, found(split).values())) == 100


def test_a_chunk_is_in_whole_or_not_at_all(server: EmbeddedServer, split: Any) -> None:
    # A partition that is not the first row's is no stream.
    split.set(f"{STREAM}:p{(partition_of('T0', P) + 1) % P}", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        writer(server.url).write(iter([log(50)]))
    assert not any(split.type(stream) == "stream" for stream in Layout(P).streams(STREAM))
