"""The blocking reads of a leader end when the other end of a connection is gone without a word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis.exceptions import TimeoutError as NoReply

import bridge.leader.stream.blocking_reads
from bridge.leader.stream.blocking_reads import BlockingReads
from bridge.link.connections import UNAVAILABLE

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
