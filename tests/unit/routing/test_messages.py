"""From a stream entry to a message, or to the reason of its refusal."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.routing.messages import MAX_DEPTH, MAX_TICKET_BYTES, EntryParser, Message, Refusal, Refused, unreadable
from bridge.routing.partitions import partition_of

TASKS = ("shop.update", "shop.ünï")


def parser(default: str | None = "shop.update", max_payload: int = 1000) -> EntryParser:
    return EntryParser(default_task=default, max_payload=max_payload, known_tasks=TASKS)


def parsed(*fields: bytes, **options: Any) -> Message:
    found = parser(**options).parse("5-1", fields)
    assert isinstance(found, Message), found
    return found


def refused(*fields: bytes, **options: Any) -> Refusal:
    found = parser(**options).parse("5-1", fields)
    assert isinstance(found, Refusal), found
    assert found.id == "5-1"
    assert tuple(found.fields) == fields
    return found


REFUSALS: dict[str, tuple[Refused, tuple[bytes, ...], dict[str, Any]]] = {
    "no ticket": (Refused.NO_TICKET, (b"payload", b"1"), {}),
    "a field that is nearly it": (Refused.NO_TICKET, (b"Ticket_Id", b"T", b"payload", b"1"), {}),
    "an empty ticket": (Refused.BAD_TICKET, (b"ticket_id", b"", b"payload", b"1"), {}),
    "a long ticket": (Refused.BAD_TICKET, (b"ticket_id", b"x" * 513, b"payload", b"1"), {}),
    "a ticket long in bytes": (Refused.BAD_TICKET, (b"ticket_id", "ü".encode() * 257, b"payload", b"1"), {}),
    "a ticket not UTF-8": (Refused.BAD_TICKET, (b"ticket_id", b"\xff", b"payload", b"1"), {}),
    "a ticket with a surrogate": (Refused.BAD_TICKET, (b"ticket_id", b"\xed\xa0\x80", b"payload", b"1"), {}),
    "a field not UTF-8": (Refused.NOT_UTF8, (b"ticket_id", b"T", b"a", b"\xff"), {}),
    "a name not UTF-8": (Refused.NOT_UTF8, (b"ticket_id", b"T", b"\xff", b"a"), {}),
    "a payload not UTF-8": (Refused.NOT_UTF8, (b"ticket_id", b"T", b"payload", b'"\xff"'), {}),
    "no JSON": (Refused.BAD_JSON, (b"ticket_id", b"T", b"payload", b"{"), {}),
    "an empty payload": (Refused.BAD_JSON, (b"ticket_id", b"T", b"payload", b""), {}),
    "JSON and more": (Refused.BAD_JSON, (b"ticket_id", b"T", b"payload", b'1,"x"'), {}),
    "not a number": (Refused.BAD_JSON, (b"ticket_id", b"T", b"payload", b"NaN"), {}),
    "half a surrogate": (Refused.HALF_PAIR, (b"ticket_id", b"T", b"payload", b'"\\ud800"'), {}),
    "a long whole number": (Refused.HUGE_NUMBER, (b"ticket_id", b"T", b"payload", b"9" * 900), {}),
    "a raw NUL": (Refused.BAD_JSON, (b"ticket_id", b"T", b"payload", b'"\0"'), {}),
    "too deep": (Refused.TOO_DEEP, (b"ticket_id", b"T", b"payload", b"[" * 300 + b"]" * 300), {}),
    "too large": (Refused.TOO_LARGE, (b"ticket_id", b"T", b"payload", b"1" * 1001), {}),
    "fields too large": (Refused.TOO_LARGE, (b"ticket_id", b"T", b"a", b"x" * 1000), {}),
    "two tickets": (Refused.TWICE, (b"ticket_id", b"T", b"ticket_id", b"U", b"payload", b"1"), {}),
    "two payloads": (Refused.TWICE, (b"ticket_id", b"T", b"payload", b"1", b"payload", b"1"), {}),
    "two tasks": (Refused.TWICE, (b"task", b"x", b"ticket_id", b"T", b"task", b"x"), {}),
    "a field of the payload twice": (Refused.TWICE, (b"ticket_id", b"T", b"a", b"1", b"a", b"1"), {}),
    "unknown task": (Refused.UNKNOWN_TASK, (b"ticket_id", b"T", b"task", b"shop.other", b"payload", b"1"), {}),
    "an empty task": (Refused.EMPTY_TASK, (b"ticket_id", b"T", b"task", b"", b"payload", b"1"), {}),
    "a task not UTF-8": (Refused.UNKNOWN_TASK, (b"ticket_id", b"T", b"task", b"\xff", b"payload", b"1"), {}),
    "no task": (Refused.NO_TASK, (b"ticket_id", b"T", b"payload", b"1"), {"default": None}),
    "a bad due time": (Refused.BAD_DUE, (b"ticket_id", b"T", b"payload", b"1", b"due", b"soon"), {}),
    "a bad option": (Refused.BAD_OPTION, (b"ticket_id", b"T", b"payload", b"1", b"priority", b"high"), {}),
    "deleted from the stream": (Refused.TRIMMED, (), {}),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_broken_entry_is_refused_with_its_reason_and_kept_as_it_came(case: str) -> None:
    reason, fields, options = REFUSALS[case]
    assert refused(*fields, **options).reason is reason


def test_every_reason_is_seen_here() -> None:
    unforeseen = unreadable([b"5-1", [b"a", b"1"]], "ValueError()")
    assert (unforeseen.reason, unforeseen.id, unforeseen.fields) == (Refused.FAULT, "5-1", [b"a", b"1"])
    assert {reason for reason, _, _ in REFUSALS.values()} == set(Refused) - {
        *(Refused.FAULT, Refused.WRONG_PARTITION, Refused.DELIVERED)
    }


def test_an_empty_task_is_refused_as_empty_and_not_as_unknown() -> None:
    # It comes from a producer that fills the field from an unset variable.
    assert refused(b"ticket_id", b"T", b"task", b"", b"payload", b"1").reason.value == "the field task is empty"


def test_the_detail_says_what_was_wrong() -> None:
    assert refused(b"ticket_id", b"x" * 513).detail == "513 bytes"
    assert refused(b"ticket_id", b"T", b"task", b"nope\xff").detail == "nope\N{REPLACEMENT CHARACTER}"
    assert refused(b"ticket_id", b"T", b"payload", b"x" * 1001).detail == "1001 bytes"
    assert "column" in refused(b"ticket_id", b"T", b"payload", b"{").detail


@pytest.mark.parametrize("ticket", ["T", "x" * MAX_TICKET_BYTES, "ü" * 256, "\0", "a b:{c}\n\"'\\", "🎫"], ids=ascii)
def test_a_ticket_is_any_text_of_1_to_512_bytes(ticket: str) -> None:
    assert parsed(b"ticket_id", ticket.encode(), b"payload", b"1").ticket == ticket


def test_the_payload_is_passed_on_byte_for_byte() -> None:
    payload = b' {"b":1.50, "a":"\\u0000\\u00fc", "n":12345678901234567890123} '
    message = parsed(b"payload", payload, b"ticket_id", b"T")
    assert (message.id, message.task, message.payload) == ("5-1", "shop.update", payload)


def test_a_payload_of_exactly_the_limit_passes() -> None:
    assert parsed(b"ticket_id", b"T", b"payload", b"[" + b" " * 998 + b"]").payload[:1] == b"["


def test_without_a_payload_the_other_fields_are_it() -> None:
    message = parsed(b"a", b"1", b"ticket_id", b"T", b"task", "shop.ünï".encode(), 'ü"'.encode(), b"\0\n")
    assert message.task == "shop.ünï"
    assert orjson.loads(message.payload) == {"a": "1", 'ü"': "\0\n"}


def test_a_ticket_alone_has_an_empty_payload() -> None:
    assert parsed(b"ticket_id", b"T").payload == b"{}"


def test_a_field_that_is_there_twice_is_named() -> None:
    assert refused(b"ticket_id", b"T1", b"payload", b"1", b"ticket_id", b"T2").detail == "ticket_id"
    assert refused(b"b", b"1", b"ticket_id", b"T", b"a", b"1", b"task", b"shop.update", b"a", b"2").detail == "a"
    # If there is a payload, the other fields are ignored.
    assert parsed(b"ticket_id", b"T", b"a", b"1", b"payload", b"1", b"a", b"2").payload == b"1"


class CountedName(bytes):
    """The name of a field. It counts how often names are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("count", [100, 3000])
@pytest.mark.parametrize("twice", ["first", "middle", "last", "all"])
def test_work_for_many_fields_grows_with_their_number(count: int, twice: str) -> None:
    names = [b"%d" % i for i in range(count)]
    again = names if twice == "all" else [names[{"first": 0, "middle": count // 2, "last": -1}[twice]]]
    fields = [part for name in names + again for part in (CountedName(name), b"")]
    CountedName.compared = 0
    found = refused(b"ticket_id", b"T", *fields, max_payload=2**20)
    assert (found.reason, found.detail) == (Refused.TWICE, again[0].decode())
    assert CountedName.compared <= 20 * len(fields)


@pytest.mark.parametrize("around", ["%s", "[%s]", '{"a":"x", "ü":[1, %s]}', '["[[", %s, ]'], ids=ascii)
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('"\\ud800"', Refused.HALF_PAIR),
        ('"ü\\uDBFF and more"', Refused.HALF_PAIR),
        ('"\\udc00"', Refused.HALF_PAIR),
        ('"\\ud800\\u0041"', Refused.HALF_PAIR),
        ("1e400", Refused.HUGE_NUMBER),
        ("-1.5E+999", Refused.HUGE_NUMBER),
        ("7" * 310, Refused.HUGE_NUMBER),
        ("-" + "7" * 4400, Refused.HUGE_NUMBER),
        ("[" * 1100 + "]" * 1100, Refused.TOO_DEEP),
        ('{"[":' * 1100 + "1" + "}" * 1100, Refused.TOO_DEEP),
        ("NaN", Refused.BAD_JSON),
        ("01", Refused.BAD_JSON),
        ('"\\ud83d\\u12"', Refused.BAD_JSON),
        ('"\\ud8"', Refused.BAD_JSON),
        ("[{}," * 2 + "[]," * 300 + "x]]", Refused.BAD_JSON),
        ('"' + "[" * 300 + '\\x"', Refused.BAD_JSON),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_a_refusal_for_another_reason_does_not_mention_json(around: str, payload: str, reason: Refused) -> None:
    found = refused(b"ticket_id", b"T", b"payload", (around % payload).encode(), max_payload=100_000)
    assert found.reason is reason


def test_a_refusal_of_one_field_is_not_hidden_by_a_default_of_another() -> None:
    # An unknown task is refused although there is a default, and a bad ticket although the payload is bad too
    assert refused(b"ticket_id", b"T", b"task", b"x", b"payload", b"{").reason is Refused.UNKNOWN_TASK
    assert refused(b"ticket_id", b"", b"payload", b"{").reason is Refused.BAD_TICKET


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=12,
)


@given(payload=st.one_of(JSON.map(lambda v: json.dumps(v).encode("utf-8", "surrogatepass")), st.binary(max_size=40)))
@example(payload=b"1" * 4400)
@example(payload=b"\xef\xbb\xbf{}")
def test_a_worker_can_decode_every_accepted_payload(payload: bytes) -> None:
    # Given an entry that is accepted
    found = parser(max_payload=10_000).parse("1-0", (b"ticket_id", b"T", b"payload", payload))
    if not isinstance(found, Message):
        return

    # Then Python's own parser can decode the body of a bundle with it
    [[_, _, _, [[_, _, decoded]]]] = json.loads(bundle_with(found.payload))
    assert decoded == json.loads(found.payload)


def no_constant(name: str) -> Any:
    raise ValueError(name)


ODD = st.sampled_from(["\ud800", "\udfff x", 10**400, -(10**309), "[" * 250, "\\ud800", "1e400"])


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_only_what_is_no_json_is_called_so(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        value=st.recursive(JSON | ODD, lambda some: st.lists(some) | st.dictionaries(st.text() | ODD.map(str), some))
    )
    @example(value={"a": math.nan})
    def is_called_so(value: Any) -> None:
        payload = json.dumps(value).encode()
        found = parser(max_payload=1 << 20).parse("1-0", (b"ticket_id", b"T", b"payload", payload))
        if isinstance(found, Refusal) and found.reason is Refused.BAD_JSON:
            with pytest.raises(ValueError, match=r"NaN|Infinity"):
                json.loads(payload, parse_constant=no_constant)

    is_called_so()


def bundle_with(payload: bytes) -> bytes:
    return b'[["T",0,1,[["1-0","t",' + payload + b"]]]]"


@pytest.mark.parametrize("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, 900, 990, 1010, 2000])
@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_however_deep_a_payload_that_is_accepted_does_not_stop_a_workers_parser(kind: str, depth: int) -> None:
    # Given a payload of this depth
    opening, closing = {"lists": ("[", "]"), "objects": ('{"a":', "}"), "both": ('[{"a":', "}]")}[kind]
    levels = -(-depth // 2) if kind == "both" else depth
    payload = (opening * levels + "1" + closing * levels).encode()
    found = parser(max_payload=100_000).parse("1-0", (b"ticket_id", b"T", b"payload", payload))
    assert isinstance(found, Message) == (depth <= MAX_DEPTH)

    # Then it can be decoded, in a bundle, from deep in a worker's stack
    def deep(frames: int) -> Any:
        return deep(frames - 1) if frames else json.loads(bundle_with(payload))

    if isinstance(found, Message):
        assert deep(400)


@given(pairs=st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), min_size=1, max_size=5))
def test_any_entry_is_a_message_or_a_refusal_and_never_an_error(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [word for pair in [(b"ticket_id", b"T"), *pairs] for word in pair]
    found = parser().parse("1-0", fields)
    assert isinstance(found, Message | Refusal)


def test_brackets_in_text_are_no_depth() -> None:
    payload = orjson.dumps("[{" * 400)
    assert parsed(b"ticket_id", b"T", b"payload", payload).payload == payload
    wide = b"[" + b",".join([b"[]"] * 300) + b"]"
    assert parsed(b"ticket_id", b"T", b"payload", wide).payload == wide


def test_an_entry_in_the_wrong_partition_is_refused_unless_it_was_dispatched_before() -> None:
    fields = (b"ticket_id", "Å42".encode(), b"payload", b"1")
    right = partition_of("Å42", 4)
    for number in range(4):
        parser = EntryParser(default_task="shop.update", max_payload=100, known_tasks=[], partition=(number, 4))
        found = parser.parse("1-1", fields)
        if number == right:
            assert isinstance(found, Message)
        else:
            assert isinstance(found, Refusal)
            assert (found.reason, found.detail) == (Refused.WRONG_PARTITION, f"partition {right} of 4")
        assert isinstance(parser.parse_begun("1-1", fields), Message)


def test_the_page_of_errors_has_each_reason() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
    shown = [re.escape(one).replace("…", ".*") for one in re.findall(r"`([^`]+)`", page.read_text())]
    assert [one.value for one in Refused if not any(re.fullmatch(form, one.value) for form in shown)] == []
