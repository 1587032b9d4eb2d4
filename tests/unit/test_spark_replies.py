"""Counting replies in a byte stream, however the network cuts it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark.replies import ReplyCounter

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
