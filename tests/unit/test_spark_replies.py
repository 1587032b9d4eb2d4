"""Replies to pipelined commands: counted however the network cuts them, and waited for in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import ServerUnavailable
from spark.replies import Pipeline, RefusedByServer, ReplyCounter

REPLY = b"$15\r\n1700000000000-0\r\n"
SHORT_REPLY = b"$3\r\n1-1\r\n"
REFUSAL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """``data`` in pieces, cut at the given places."""
    places = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in pairwise(places) if end > start]


@given(st.lists(st.sampled_from([REPLY, SHORT_REPLY])), st.lists(st.integers(0, 10_000)))
def test_replies_are_counted_the_same_wherever_they_are_cut(replies: list[bytes], places: list[int]) -> None:
    counter = ReplyCounter()
    for piece in cut(b"".join(replies), places):
        assert counter.feed(piece) is None
    assert counter.complete == len(replies)


@given(st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 10_000)))
def test_a_refusal_is_found_wherever_it_stands_and_is_cut(before: int, after: int, places: list[int]) -> None:
    counter = ReplyCounter()
    found = b""
    for piece in cut(REPLY * before + REFUSAL + REPLY * after, places):
        if found:
            found += piece
            continue
        refusal = counter.feed(piece)
        if refusal is not None:
            found = refusal
    assert found.partition(b"\r\n")[0] + b"\r\n" == REFUSAL


def test_the_dash_inside_an_id_is_no_refusal() -> None:
    counter = ReplyCounter()
    assert counter.feed(b"$15\r\n1700000000000") is None
    assert counter.feed(b"-0\r\n") is None
    assert counter.complete == 1


def test_half_a_reply_does_not_count() -> None:
    counter = ReplyCounter()
    counter.feed(REPLY + b"$15\r\n17000")
    assert counter.complete == 1


class Ends:
    """A connection whose other end is the test: what is sent is kept, what arrives the test decides."""

    def __init__(self) -> None:
        self._sock: socket.socket | None
        self._sock, self.server = socket.socketpair()
        self._sock.settimeout(0.05)
        self.sent: list[bytes] = []

    def connect(self) -> None: ...

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def send_command(self, *args: str | bytes) -> None: ...

    def send_packed_command(self, command: Sequence[bytes | memoryview], check_health: bool = True) -> None:
        assert not check_health
        self.sent += map(bytes, command)

    def read_response(self, disable_decoding: bool = False) -> object: ...


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.disconnect()
    made.server.close()


def test_no_more_than_the_window_is_sent_without_an_answer(ends: Ends) -> None:
    # Given a window of two chunks, both sent
    pipeline = Pipeline(ends, "redis://h", window=2)
    pipeline.send(memoryview(b"a"), 3)
    pipeline.send(memoryview(b"b"), 3)
    # When the server answers the first, the third is sent
    ends.server.sendall(REPLY * 3)
    pipeline.send(memoryview(b"c"), 3)
    # Then the fourth is not, while the second has one answer too few
    ends.server.sendall(REPLY * 2)
    with pytest.raises(ServerUnavailable, match="timed out"):
        pipeline.send(memoryview(b"d"), 3)
    assert ends.sent == [b"a", b"b", b"c"]


def test_the_end_waits_for_every_answer(ends: Ends) -> None:
    pipeline = Pipeline(ends, "redis://h", window=9)
    for _ in range(4):
        pipeline.send(memoryview(b"x"), 2)
    ends.server.sendall(REPLY * 8)
    assert pipeline.drain() == 8


def test_a_refusal_is_raised_even_when_it_is_the_very_last_answer(ends: Ends) -> None:
    pipeline = Pipeline(ends, "redis://h", window=9)
    pipeline.send(memoryview(b"x"), 2)
    ends.server.sendall(REPLY + REFUSAL)
    with pytest.raises(RefusedByServer, match="refused an entry: OOM command not allowed"):
        pipeline.drain()


def test_a_connection_that_the_server_closes_is_an_error_and_no_endless_wait(ends: Ends) -> None:
    pipeline = Pipeline(ends, "redis://:hunter2@h", window=9)
    pipeline.send(memoryview(b"x"), 2)
    ends.server.sendall(REPLY)
    ends.server.close()
    with pytest.raises(ServerUnavailable, match="redis://h:6379 closed the connection"):
        pipeline.drain()
