"""The blocking reads of a leader end when the other end of a connection is gone without a word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.exceptions import TimeoutError as NoReply

import bridge.leader.stream.blocking_reads
from bridge.leader.stream.blocking_reads import BlockingReads
from bridge.link.connections import UNAVAILABLE
from bridge.testing.waiting import wait_until

#: Replies after which the other end says nothing more: none at all (the set-up of the connection fails), the replies of
#: a set-up, and half of the reply to a read.
SILENCES = {"at once": 0, "after the set-up": 1, "in a reply": 2}


@contextmanager
def ending_in_silence(spoken: int) -> Iterator[str]:
    """The address of a server that falls silent, and holds its connections open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                threading.Thread(target=speak, args=(connection,), daemon=True).start()

        def speak(connection: socket.socket) -> None:
            while asked := connection.recv(65536):
                if b"XREAD" in asked:
                    if spoken > 1:
                        connection.sendall(b"*1\r\n*2\r\n$3\r\na")
                elif spoken:
                    connection.sendall(b"+OK\r\n" * asked.count(b"*"))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in held:
                connection.close()


def read_on(reads: BlockingReads) -> None:
    """Reads as the loop of a leader does, without an end."""
    reads.entries.ask("XREAD", "BLOCK", 200, "STREAMS", "s", "0")
    while True:
        if reads.entries.file in reads.wait(1.0):
            reads.entries.answer()


@pytest.mark.parametrize("spoken", SILENCES.values(), ids=SILENCES)
def test_a_server_that_falls_silent_is_an_outage(spoken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given short times
    monkeypatch.setattr(bridge.leader.stream.blocking_reads, "ANSWER_S", 0.2)
    monkeypatch.setattr(bridge.leader.stream.blocking_reads, "BLOCK_S", 0.2)
    with ending_in_silence(spoken) as url:
        reads = BlockingReads(url)
        # When a leader waits for a read; then that ends with an error that counts as an outage
        with reads.selected(), pytest.raises(UNAVAILABLE) as raised:
            read_on(reads)
        assert isinstance(raised.value, NoReply)
        # And the next read begins with a new connection
        assert not reads.entries.asked
        assert reads.entries.file is None
        reads.close()


def open_files() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def test_lanes_at_rest_have_no_file_open() -> None:
    """A process may lead some hundred lanes that sleep."""
    before = open_files()
    lanes = [BlockingReads("redis://127.0.0.1:1/0") for _ in range(20)]
    for reads in lanes:
        with reads.selected():
            reads.wait(0.0)
    assert open_files() == before


def test_a_wake_before_the_loop_and_one_in_it_end_the_wait() -> None:
    reads = BlockingReads("redis://127.0.0.1:1/0")
    # Given a loop that ends and begins, as that of a lane that sleeps, and is woken between the two
    for _ in range(3):
        reads.wake()
        with reads.selected():
            assert reads.wait(60.0)
            assert not reads.wait(0.0)
            # Then one wait ends for many wakes, also when nothing reads them for long
            for _ in range(100_000):
                reads.wake()
            waker = threading.Thread(target=reads.wake)
            assert reads.wait(60.0)
            while reads.wait(0.0):
                """Reads what is left."""
            waker.start()
            assert reads.wait(60.0)
            waker.join()


def test_a_wake_while_loops_end_and_begin_reaches_no_other_file() -> None:
    reads = BlockingReads("redis://127.0.0.1:1/0")
    woken, stop = [0], threading.Event()

    def wake() -> None:
        while not stop.is_set():
            reads.wake()
            woken[0] += 1

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        for _ in range(200):
            seen = woken[0]
            with reads.selected():
                assert reads.wait(60.0)
            # A file that is opened now has the number of one that was closed
            here, there = socket.socketpair()
            with here, there:
                wait_until(lambda seen=seen: woken[0] > seen, description="another wake")  # type: ignore[misc]
                for one in (here, there):
                    one.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        one.recv(1)
    finally:
        stop.set()
        waker.join()
