"""A writer that is faster than the readers: it waits, says why, gives up in time, and leaves everything consistent."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import redis

from bridge.routing.errors import StreamFull
from bridge.spark.wire.address import RedisConnection, connect
from bridge.spark.write.guard import waiting
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.spark.spark_writes import STREAM, batch, cut, entries, log, partition, sequence

HIGH_WATER = 100
CHUNK = 30


class Reader:
    """Takes entries out of the stream, a few at a time, and keeps the largest size that it ever saw."""

    def __init__(self, server: EmbeddedServer, *, take: int) -> None:
        self.taken: list[int] = []
        self.most = 0
        self._server = server
        self._take = take
        self._over = threading.Event()

    def run(self) -> None:
        with self._server.client() as client:
            while not self._over.is_set():
                self.most = max(self.most, client.xlen(STREAM))
                for id_, fields in client.xrange(STREAM, count=self._take):
                    self.taken.append(int(fields[b"seq"]))
                    client.xdel(STREAM, id_)
                self._over.wait(0.001)

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="test-reader")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


@pytest.mark.parametrize("idempotence", ["watermark", "ticket", "none"])
def test_the_stream_never_passes_its_mark_by_more_than_a_chunk(server: EmbeddedServer, idempotence: str) -> None:
    # Given three partitions that are written at once, and a reader that begins when the stream is full
    options = {
        "idempotence": idempotence,
        "seqColumn": "seq",
        "fields": "seq,payload",
        "highWater": str(HIGH_WATER),
        "chunkSize": str(CHUNK),
        "window": "8",
    }
    parts = [batch(*((f"T{number}", row, "x") for row in range(number, 1500, 3))) for number in range(3)]
    reader = Reader(server, take=20)
    # When all is written
    with server.client() as client, ThreadPoolExecutor(3) as pool:
        writes = [
            pool.submit(partition, server.url, cut(part, 100), (0, number), **options)
            for number, part in enumerate(parts)
        ]
        wait_until(lambda: client.xlen(STREAM) >= HIGH_WATER, description="the stream to be full")
        with reader.reading():
            assert [write.result(60).rows for write in writes] == [500, 500, 500]
            wait_until(lambda: len(reader.taken) >= 1500, description="the reader to have everything")
    # Then the stream was never larger than the script allows: one chunk may come when it is just under the mark
    assert HIGH_WATER <= reader.most < HIGH_WATER + CHUNK
    # And everything came, once, each ticket in order
    assert sorted(reader.taken) == list(range(1500))
    for number in range(3):
        mine = [row for row in reader.taken if row % 3 == number]
        assert mine == sorted(mine)


@pytest.mark.parametrize("idempotence", ["watermark", "ticket"])
def test_a_writer_gives_up_in_one_line_and_the_next_attempt_goes_on(server: EmbeddedServer, idempotence: str) -> None:
    # Given a stream that nobody reads
    options = {"idempotence": idempotence, "seqColumn": "seq", "fields": "seq,payload"}
    with pytest.raises(StreamFull) as full:
        partition(
            server.url, cut(log(500), 90), highWater=str(HIGH_WATER), chunkSize=str(CHUNK), maxWait="1", **options
        )
    # Then it ends with one line that says what to do, and holds a beginning of the rows
    assert re.search(
        r"the stream holds 120 entries \(highWater 100\); waited [\d.]+ s without success \(maxWait\)", str(full.value)
    )
    assert "\n" not in str(full.value)
    assert sequence(server) == list(range(120))
    # And another attempt, once there is room, writes the rest
    partition(server.url, cut(log(500), 77), **options)
    assert sequence(server) == list(range(500))


@contextmanager
def no_room(server: EmbeddedServer, room: int) -> Iterator[redis.Redis]:
    """The server has room for so many bytes more, and evicts nothing."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + room)
        try:
            yield client
        finally:
            client.config_set("maxmemory", 0)


@pytest.mark.parametrize("idempotence", ["watermark", "ticket", "none"])
def test_a_server_without_memory_is_waited_for_and_no_chunk_is_torn(server: EmbeddedServer, idempotence: str) -> None:
    rows = batch(*((f"T{row % 7}", row, "x" * 1000) for row in range(3000)))
    options = {"idempotence": idempotence, "seqColumn": "seq", "fields": "seq,payload", "chunkSize": "40"}
    # Given a server that has room for some of the rows only
    with no_room(server, 1_000_000) as admin, ThreadPoolExecutor(1) as pool:
        write = pool.submit(partition, server.url, cut(rows, 500), **options)
        # When it is full, the writer waits, and says so even there
        with connect_to(server) as watching:
            notes = wait_until(lambda: waiting(watching, STREAM), description="the note of the writer", timeout_s=90)
        assert notes[0].why == "the server is out of memory (OOM, noeviction)"
        half = sequence(server)
        assert 0 < len(half) < 3000
        assert half == list(range(len(half)))
        assert len(half) % 20 == 0
        # When there is room again, it goes on
        admin.config_set("maxmemory", 0)
        assert write.result(60).waited_s > 0
    # Then everything is there, once, in order
    assert sequence(server) == list(range(3000))


def test_a_waiting_writer_is_shown_only_while_it_waits(valkey: EmbeddedServer) -> None:
    with ThreadPoolExecutor(1) as pool, connect_to(valkey) as watching, valkey.client() as admin:
        write = pool.submit(partition, valkey.url, iter([log(100)]), highWater="50", chunkSize="10")
        notes = wait_until(lambda: waiting(watching, STREAM), description="the note of the writer")
        assert notes[0].why == "the stream holds 50 entries (highWater 50)"
        assert notes[0].who == "run/0/0"
        assert 0 < notes[0].for_s < 30
        assert len(entries(valkey)) == 50
        admin.xtrim(STREAM, maxlen=0)
        done = write.result(30)
        assert (done.why, done.waited_s > 0) == ("the stream holds 50 entries (highWater 50)", True)
        assert waiting(watching, STREAM) == []


@contextmanager
def connect_to(server: EmbeddedServer) -> Iterator[RedisConnection]:
    connection = connect(server.url)
    try:
        yield connection
    finally:
        with suppress(OSError):
            connection.disconnect()
