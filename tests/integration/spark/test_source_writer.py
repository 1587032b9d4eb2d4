"""The writer of the data source, called as a Spark task calls it, without a JVM, against real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from bridge.routing.errors import ConfigurationError, PayloadError, ServerUnavailable, StreamFull
from bridge.spark import RedisStreamDataSource
from bridge.spark.wire.address import check_server, connect
from bridge.spark.wire.replies import RefusedByServer
from bridge.spark.write.layout import Layout
from bridge.spark.write.options import parse
from bridge.spark.write.sorting import sorted_rows
from bridge.spark.write.writer import RedisStreamWriter
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.spark_writes import LOG, STREAM, batch, entries, log, writer


def test_entries_are_the_rows_in_their_order(server: EmbeddedServer) -> None:
    # Given more rows than go into one send, with awkward texts among them
    nasty = batch(("ü\0", 1, ""), ("T", 2, None), ("日本", 3, "-ERR\r\n$3\r\n"))
    # When two batches are written
    written = writer(server.url, chunkSize="10", window="3").write(iter([log(95), nasty]))
    # Then every row is an entry, in order, field by field; a null field is absent
    assert written.rows == 98
    found = entries(server)
    assert [int(fields[b"seq"]) for fields in found] == [*range(95), 1, 2, 3]
    assert found[95:] == [
        {b"ticket_id": "ü\0".encode(), b"seq": b"1", b"payload": b""},
        {b"ticket_id": b"T", b"seq": b"2"},
        {b"ticket_id": "日本".encode(), b"seq": b"3", b"payload": b"-ERR\r\n$3\r\n"},
    ]


def test_a_partition_without_rows_writes_nothing(valkey: EmbeddedServer) -> None:
    assert writer(valkey.url).write(iter([])).rows == 0
    assert writer(valkey.url, orderBy="seq").write(iter([log(0)])).rows == 0
    assert entries(valkey) == []


def test_the_writer_sorts_a_whole_partition_when_asked(valkey: EmbeddedServer) -> None:
    # Given batches whose rows are out of order within and between them
    batches = [batch(("B", 4, None), ("A", 2, None)), batch(("A", 1, None), ("B", 3, None))]
    # When they are written with orderBy
    writer(valkey.url, orderBy="seq", seqColumn="seq", fields="payload").write(iter(batches))
    # Then the order holds over all of them
    assert [fields[b"ticket_id"] for fields in entries(valkey)] == [b"A", b"A", b"B", b"B"]


def test_a_partition_to_sort_may_hold_more_text_than_numbers_of_32_bits_can_count() -> None:
    options = parse({"orderBy": "seq", "seqColumn": "seq"})
    (found,) = sorted_rows([log(3)], options.order_by, Layout.of(LOG, options))
    assert found.schema.field("payload").type == pa.large_string()
    assert found.to_pylist() == log(3).to_pylist()


@pytest.mark.parametrize(
    ("bad", "options", "said"),
    [
        ((None, 100, "x"), {}, "no ticket"),
        (("", 100, "x"), {}, "empty ticket"),
        (("T" * 513, 100, "x"), {}, "513 bytes"),
        (("T9", 100, "x" * 2001), {"maxPayload": "2000"}, "maxPayload allows 2000"),
        (("T9", -1, "x"), {"seqColumn": "seq"}, "does not rise"),
    ],
    ids=["null", "empty", "long", "large", "order"],
)
def test_nothing_of_a_batch_with_a_bad_row_is_written(
    valkey: EmbeddedServer, bad: tuple[str | None, int, str], options: dict[str, str], said: str
) -> None:
    # Given a bad row far behind good ones, so that they would long be sent by then
    rows: list[tuple[str | None, int, str | None]] = [("T9", number, "x") for number in range(100)]
    # When the batch is written
    with pytest.raises(PayloadError, match=said):
        writer(valkey.url, chunkSize="5", **options).write(iter([batch(*rows, bad)]))
    # Then none of its rows is in the stream
    assert entries(valkey) == []


def test_a_refusal_by_the_server_is_raised_with_its_reason(server: EmbeddedServer) -> None:
    with server.client() as client:
        client.set(STREAM, "no stream")
    with pytest.raises(RefusedByServer, match="WRONGTYPE"):
        writer(server.url, chunkSize="10").write(iter([log(1000)]))


@pytest.fixture
def full_server(own_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    with own_server.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + 400_000)
        client.config_set("maxmemory-policy", "noeviction")
        yield own_server
        client.config_set("maxmemory", 0)


def test_a_server_that_runs_full_in_the_middle_is_an_error_and_never_a_success(full_server: EmbeddedServer) -> None:
    # Given a server with room for some of the rows only
    rows = batch(*(("T", number, "x" * 500) for number in range(5000)))
    # When they are written
    with pytest.raises(StreamFull, match="out of memory"):
        writer(full_server.url, chunkSize="50", maxWait="1").write(iter([rows]))
    # Then a beginning of them is there, whole chunks, without a hole
    found = [int(fields[b"seq"]) for fields in entries(full_server)]
    assert 0 < len(found) < 5000
    assert found == list(range(len(found)))
    assert len(found) % 50 == 0


def test_a_server_that_dies_while_it_is_written_to_is_one_clear_error(own_server: EmbeddedServer) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield log(1000)
        own_server.kill()
        while True:
            yield log(1000)

    with pytest.raises(ServerUnavailable) as failed:
        writer(own_server.url, maxWait="1").write(batches())
    assert "\n" not in str(failed.value)


def test_the_password_is_used_and_shown_nowhere(own_server: EmbeddedServer) -> None:
    # Given a server that wants a password
    with own_server.client() as client:
        client.config_set("requirepass", "hunter2")
    url = own_server.url.replace("redis://", "redis://:hunter2@")
    # When the writer has it, it writes
    source = RedisStreamDataSource({"url": url, "stream": STREAM})
    made = source.writer(LOG, overwrite=False)
    assert isinstance(made, RedisStreamWriter)
    assert made.write(iter([log(3)])).rows == 3
    # And no representation has it
    assert "hunter2" not in repr(source) + repr(made)
    # And when the password is wrong, the error has neither
    with pytest.raises(ServerUnavailable) as refused:
        connect(url.replace("hunter2", "hunter3"))
    assert "hunter" not in str(refused.value)


def test_a_check_before_the_job_accepts_a_stream_or_nothing_and_refuses_other_keys(server: EmbeddedServer) -> None:
    check_server(server.url, STREAM)
    with server.client() as client:
        client.xadd(STREAM, {"a": "b"})
        client.set("text", "x")
    check_server(server.url, STREAM)
    with pytest.raises(ConfigurationError, match=r"key 'text' at redis://.* is a string, not a stream"):
        check_server(server.url, "text")
