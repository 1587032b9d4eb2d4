"""What a producer may push: tickets and payloads that are read unchanged, or a refusal."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum, IntEnum
from io import BytesIO
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.producer.parts import parts_of
from bridge.producer.rows import Rules, rows
from bridge.producer.sources import Source
from bridge.routing.errors import InputError, PayloadError
from bridge.routing.messages import MAX_DEPTH, EntryParser, Message

MAX = 1 << 20
RULES = Rules("ticket_id", None, "shop.update", frozenset(), MAX)
NAN, INFINITY = math.nan, math.inf


class Colour(Enum):
    RED = 1.5
    NONE = NAN


class Number(IntEnum):
    ONE = 1


@dataclass
class Measure:
    value: float


@dataclass(slots=True)
class Slotted:
    value: Any


Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Private:
    value: float
    _hidden: float = NAN


@dataclass
class Below(Slotted):
    more: float


def with_attributes(made: Any, **attributes: Any) -> Any:
    """A dataclass with attributes that are no fields, which orjson writes, too."""
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def nested(levels: int) -> Any:
    payload: Any = 1
    for _ in range(levels):
        payload = {"in": payload}
    return payload


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(Colour),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.floats() | st.integers(), inner)
        | st.tuples(inner)
        | st.builds(Slotted, inner)
    ),
)


@given(payload=anything)
def test_a_pushed_message_is_read_unchanged(payload: Any) -> None:
    try:
        raw = payload_bytes(payload, MAX)
    except PayloadError:
        return
    # Python's own encoder writes some values that JSON does not have.
    assert json.loads(raw) == json.loads(json.dumps(plain(payload), allow_nan=False))


def plain(payload: Any) -> Any:
    """As built-in types."""
    if isinstance(payload, Enum):
        return plain(payload.value)
    if isinstance(payload, Slotted):
        return {"value": plain(payload.value)}
    if isinstance(payload, dict):
        return {key: plain(value) for key, value in payload.items()}
    return [plain(one) for one in payload] if isinstance(payload, list | tuple) else payload


@pytest.mark.parametrize("number", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize(
    "around",
    [
        lambda number: number,
        lambda number: [None, {"a": [{"b": (1, number)}]}],
        lambda number: {"null": number},
        Measure,
        lambda number: Slotted([Measure(number)]),
        lambda number: with_attributes(Measure(1.0), extra=[number]),
        lambda number: with_attributes(Below(1.0, 2.0), extra=number),
        lambda number: Pair(None, number)._asdict(),
        lambda number: {number: 1},
        lambda number: [{"a": {number: None}}],
        lambda number: [Colour.NONE, number],
    ],
)
def test_a_number_that_json_does_not_have_is_refused_wherever_it_is(around: Any, number: float) -> None:
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        payload_bytes(around(number), MAX)


def test_a_number_that_is_not_written_refuses_nothing() -> None:
    for written in (Private(NAN), with_attributes(Measure(1.0), extra=NAN)):
        with pytest.raises(PayloadError, match="it holds nan"):
            payload_bytes([None, written], MAX)
    assert payload_bytes([None, with_attributes(Private(1.0), _more=NAN)], MAX) == b'[null,{"value":1.0}]'
    assert payload_bytes([None, Below(NAN, 2.0)], MAX) == b'[null,{"more":2.0}]'


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_whole_number_has_at_most_64_bits(number: int) -> None:
    nearest = number - 1 if number > 0 else number + 1
    assert json.loads(payload_bytes({"n": [nearest]}, MAX)) == {"n": [nearest]}
    with pytest.raises(PayloadError, match="Integer exceeds 64-bit range"):
        payload_bytes({"n": [number]}, MAX)


@pytest.mark.parametrize("payload", [None, [None, 1.5], {"null": None}, "null", Colour.RED, Slotted(None)])
def test_nothing_is_refused_that_json_has(payload: Any) -> None:
    assert orjson.loads(payload_bytes(payload, MAX)) == orjson.loads(orjson.dumps(payload))


@pytest.mark.parametrize(("levels", "refused"), [(199, False), (200, False), (201, True), (254, True)])
def test_a_payload_too_deep_for_the_master_is_refused_at_the_push(levels: int, refused: bool) -> None:
    payload = nested(levels)
    line = json.dumps({"ticket_id": "T", "payload": payload}).encode()
    parser = EntryParser(default_task="t", max_payload=MAX, known_tasks=["t"])
    by_master = parser.parse("1-0", [b"ticket_id", b"T", b"payload", json.dumps(payload).encode()])
    assert isinstance(by_master, Message) is not refused
    if not refused:
        payload_bytes(payload, MAX)
        return
    with pytest.raises(PayloadError, match="nested more than 200 levels deep"):
        payload_bytes(payload, MAX)
    with pytest.raises(InputError, match="nested"):
        list(rows(Source("log", BytesIO(line), BytesIO(line), None), "json", RULES))


@pytest.mark.parametrize("ticket", [0, 42, -7, 10**30, "42", "x", Number.ONE])
def test_a_ticket_is_the_same_to_push_and_to_bridge_push(ticket: Any) -> None:
    assert of_file(ticket) == ticket_bytes(ticket) == (f"{int(ticket)}" if ticket != "x" else "x").encode()


@pytest.mark.parametrize("ticket", [True, False, 1.5, 42.0, None, [], b"42", "", "x" * 513, 10**600, "\ud800"])
def test_producer_and_master_refuse_the_same_ticket_ids(ticket: Any) -> None:
    with pytest.raises(PayloadError, match="ticket_id"):
        ticket_bytes(ticket)
    if isinstance(ticket, bytes):
        return  # not in any file
    with pytest.raises(InputError):
        of_file(ticket)


def test_a_ticket_that_python_does_not_write_is_refused() -> None:
    with pytest.raises(PayloadError, match="ticket_id is too large a number"):
        ticket_bytes(10**5000)


tickets = st.text(max_size=3) | st.integers() | st.sampled_from([True, None, b"T", "", "x" * 512, "x" * 513, "\ud800"])


@given(
    ticket=tickets, payload=anything | st.sampled_from([[[]] * 200, "x" * 300, {1, 2}]), max_payload=st.integers(2, 400)
)
@example(ticket="T", payload={"a": NAN}, max_payload=MAX)
@example(ticket="T", payload="x" * 20, max_payload=20)
@example(ticket="T", payload=nested(201), max_payload=MAX)
def test_a_message_of_many_is_taken_or_refused_as_if_alone(ticket: Any, payload: Any, max_payload: int) -> None:
    refusal = ""
    arguments: tuple[bytes, ...] = ()
    try:
        arguments = ticket_bytes(ticket), payload_bytes(payload, max_payload)
    except PayloadError as exc:
        refusal = f"message 1: {exc}; nothing was pushed"
    if refusal:
        with pytest.raises(PayloadError) as raised:
            parts_of([("T", 1), (ticket, payload)], max_payload)
        assert str(raised.value) == refusal
        return
    [part], count = parts_of([("T", 1), (ticket, payload)], max_payload)
    assert count == part.count == 2
    assert part.packed == b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in (b"T", b"1", *arguments))


def of_file(ticket: Any) -> bytes:
    line = json.dumps({"ticket_id": ticket}).encode()
    [row] = rows(Source("log", BytesIO(line), BytesIO(line), None), "json", RULES)
    return row.ticket


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 300, 5000])
def test_however_deep_a_payload_is_it_is_refused_for_its_depth(levels: int) -> None:
    with pytest.raises(PayloadError, match=r"^the payload is nested more than 200 levels deep$"):
        payload_bytes(nested(levels), MAX)
    assert payload_bytes(nested(MAX_DEPTH), MAX)


@pytest.mark.parametrize("messages", [None, 5, object()], ids=["None", "a number", "an object"])
def test_many_messages_that_are_no_row_of_them_are_refused(messages: Any) -> None:
    with pytest.raises(PayloadError, match=r"^messages must be pairs of .*, not .*; nothing was pushed$"):
        parts_of(messages, MAX)
