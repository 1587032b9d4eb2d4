"""An entry of any fields, in any order, is the same message to all that read it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.inspect.delayed import DelayedMessage, Mode
from bridge.protocol import dead_letters
from bridge.routing.messages import EntryParser, Message, Refusal, ticket_of
from bridge.spark.read.columns import Columns, default_schema
from bridge.spark.read.decoder import Decoder
from bridge.spark.wire.page import read_page

DEFAULT = "a.task"
ID = "1700000000000-5"
COLUMNS = Columns.of(default_schema())
PARSER = EntryParser(default_task=DEFAULT, max_payload=200, known_tasks=[DEFAULT, "ünï"])

NUMBERS = st.sampled_from(
    [
        b"0",
        b"1",
        b"9",
        b"10",
        b"1000",
        b"1001",
        b"007",
        b"-1",
        b"+1",
        b" 1",
        b"1 ",
        b"1.0",
        b"1e3",
        b"",
        b"x",
        b"9" * 25,
    ]
)
TIMES = NUMBERS | st.sampled_from(
    [b"1699999999999", b"1700000000000", b"1700000000001", b"1900000000000", b"01900000000000", b"9999999999999999"]
)
PAYLOADS = st.sampled_from(
    [b"1", b" [1, 2.50] ", b'{"a":1,"a":2}', b'"\\ud800"', b"NaN", b"", b"\xff", b'"\xc3\xbc"', b"1e400", b"null",
     b"12345678901234567890123", b"[" * 201 + b"]" * 201, b'"' + b"x" * 198 + b'"', b'"' + b"x" * 199 + b'"', b"{}"]
)  # fmt: skip
FIELD = (
    st.tuples(st.just(b"ticket_id"), st.sampled_from([b"T", "ü".encode(), b"\0", b"", b"\xff", b"x" * 512, b"x" * 513]))
    | st.tuples(st.just(b"payload"), PAYLOADS)
    | st.tuples(st.just(b"task"), st.sampled_from([DEFAULT.encode(), "ünï".encode(), b"", b"none", b"\xff"]))
    | st.tuples(st.sampled_from([b"due", b"expires"]), TIMES)
    | st.tuples(st.just(b"hold"), st.sampled_from([b"1", b"1", b"0", b"true", b""]))
    | st.tuples(st.sampled_from([b"max_attempts", b"timeout", b"priority"]), NUMBERS)
    | st.tuples(st.sampled_from([b"x", b"kind", "ü".encode(), b"", b"\xff", b"field:x"]), st.binary(max_size=9))
)
ENTRIES = st.builds(
    lambda first, rest, order: order.shuffle(found := [first, *rest]) or found,
    st.tuples(st.just(b"ticket_id"), st.sampled_from([b"T", "ü".encode()])),
    st.lists(FIELD, max_size=5),
    st.randoms(use_true_random=False),
)


def read_by_all(entry: list[tuple[bytes, bytes]]) -> None:
    words = [word for pair in entry for word in pair]
    found = PARSER.parse(ID, words)
    begun = PARSER.parse_begun(ID, words)
    if isinstance(found, Refusal):
        assert begun == found
        letter = dead_letters.read_letter(
            b"1-0", [_bytes(word) for word in dead_letters.refused(found, at_ms=1).fields]
        )
        assert list(letter.fields) == entry
        assert letter.reason == found.reason.value
        letter.document()
        return
    assert isinstance(found, Message)
    assert isinstance(begun, Message)
    assert (begun.ticket, begun.task, begun.payload, begun.options) == (
        *(found.ticket, found.task, found.payload, found.options),
    )
    assert ticket_of(words) == found.ticket
    own = dict(entry)
    payload = json.loads(found.payload)
    if b"payload" not in own:
        kept = {name for name in own if name not in (b"ticket_id", b"task", b"due", b"hold")}
        assert payload == {name.decode(): own[name].decode() for name in kept}
    options = found.options
    delayed = DelayedMessage(ID, options.due_ms if options else 0, Mode.HOLD, tuple(words), DEFAULT)
    assert (delayed.ticket_id, delayed.task, delayed.payload) == (found.ticket, found.task, found.payload)
    died = dead_letters.given_up(found, reason="r", error="", traceback="", attempts=1, at_ms=1, consumer="", fence=1)
    letter = dead_letters.read_letter(b"1-0", [_bytes(word) for word in died.fields])
    assert (letter.ticket_id, letter.task, letter.payload) == (found.ticket, found.task, found.payload)
    due = options.due_ms if options is not None and not options.hold else 0
    assert letter.due_ms == due
    [row] = Decoder(COLUMNS).decode(read_page(pa.py_buffer(_reply(words)))).to_pylist()
    assert (row["ticket_id"], row["task"] or DEFAULT) == (found.ticket, found.task)
    assert row["payload"] == (own[b"payload"].decode() if b"payload" in own else None)
    rest = dict(row["fields"])
    if options is not None:
        # What expires before it is due is due then, and the entry stays as it came.
        ends = ("expires",) if options.expires_ms == options.due_ms else ()
        for names, value in (
            (("due", *ends), options.due_ms),
            (("expires",), options.expires_ms),
            (("timeout",), options.timeout_ms),
        ):
            assert not value or min(int(rest[name]) for name in names) == value


def _bytes(word: Any) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _reply(words: list[bytes]) -> bytes:
    head = b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(ID), ID.encode(), len(words))
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@pytest.mark.parametrize("examples", [60, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_an_entry_is_the_same_message_to_all_that_read_it(examples: int) -> None:
    @settings(max_examples=examples)
    @given(entry=ENTRIES)
    def read(entry: list[tuple[bytes, bytes]]) -> None:
        read_by_all(entry)

    read()
