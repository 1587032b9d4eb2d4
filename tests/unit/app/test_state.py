"""The state of a ticket as its tasks see it: what is read, what is written, and what is refused."""

from __future__ import annotations

import copy
import enum
import json
import math
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bridge.app.state import FIELDS_OF_CALL, StateDict
from bridge.app.state_home import home_in
from bridge.routing.effects import Effect
from bridge.routing.errors import PayloadError

KEY = "{s}:g:state:T"
MIB = 1024 * 1024


class Colour(enum.Enum):
    RED = "red"


def effects_of(state: StateDict, **options: Any) -> list[tuple[Any, ...]]:
    found = state.changes(KEY, **{"most_bytes": MIB, **options}).effects
    assert all(effect == Effect("hash", effect.check, effect.arguments) for effect in found)
    return [effect.arguments if not effect.check else (effect.check, *effect.arguments) for effect in found]


def test_a_state_that_is_only_read_writes_nothing() -> None:
    state = StateDict({b"total": b"3", b"tags": b'["a", "b"]', b"\xc3\xbc": b'{"deep":[1]}'})
    assert state == {"total": 3, "tags": ["a", "b"], "ü": {"deep": [1]}}
    assert effects_of(state) == []
    assert effects_of(StateDict({b"total": b"3"})) == []
    assert effects_of(StateDict()) == []


def test_changes_are_found_however_deep_they_are() -> None:
    state = StateDict({b"a": b"1", b"b": b'{"x":{"y":[1,2]}}', b"c": b"2", b"d": b"null"})
    state["b"]["x"]["y"].append(3)
    del state["c"]
    state["new"] = (1, "two")
    assert effects_of(state) == [
        ("HSET", KEY, b"b", b'{"x":{"y":[1,2,3]}}', b"new", b'[1,"two"]'),
        ("HDEL", KEY, b"c"),
    ]
    assert state.changes(KEY, most_bytes=MIB).stored == {
        b"a": b"1",
        b"b": b'{"x":{"y":[1,2,3]}}',
        b"d": b"null",
        b"new": b'[1,"two"]',
    }


@pytest.mark.parametrize(
    "text",
    [
        b"1208925819614629174706176",
        b"-9223372036854775809",
        b"18446744073709551615",
        b'{"a":[36893488147419103232]}',
        b"0.12345678901234567890123",
        b"1.0e5",
        b'"\\u00fc"',
        b' { "a" : 1 } ',
    ],
)
def test_what_another_program_wrote_stays_as_it_is(text: bytes) -> None:
    state = StateDict({b"v": text, b"n": b"1"})
    assert state["v"] == json.loads(text)
    state["n"] += 1
    assert effects_of(state) == [("HSET", KEY, b"n", b"2")]
    assert state.changes(KEY, most_bytes=MIB).stored == {b"v": text, b"n": b"2"}


def test_a_whole_number_of_any_size_is_kept() -> None:
    state = StateDict({b"n": b"1208925819614629174706176"})
    state["n"] += 1
    state["m"] = [1 << 70, -(1 << 64)]
    assert effects_of(state) == [
        ("HSET", KEY, b"n", b"1208925819614629174706177", b"m", b"[1180591620717411303424,-18446744073709551616]")
    ]


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (1, 1.0), (0, False), ("1", 1), (None, False)])
def test_a_value_that_is_equal_in_python_and_not_in_json_is_written(before: Any, after: Any) -> None:
    state = StateDict({b"v": json.dumps(before).encode()})
    state["v"] = after
    [(_, _, _, text)] = effects_of(state)
    assert json.loads(text) == after
    assert type(json.loads(text)) is type(after)


def test_clear_removes_all_fields() -> None:
    state = StateDict({b"a": b"1", b"b": b"2"})
    state.clear()
    assert effects_of(state, default_ttl_s=5.0) == [("HDEL", KEY, b"a", b"b")]


def test_the_time_to_live() -> None:
    state = StateDict({b"a": b"1"})
    state.ttl(1.5)
    same = ("gone", "HSET", KEY, b"a", b"1")
    assert effects_of(state, default_ttl_s=60.0) == [same, ("PEXPIRE", KEY, b"1500")]
    state.ttl(None)
    assert effects_of(state, default_ttl_s=60.0) == [same, ("PERSIST", KEY)]
    assert effects_of(StateDict({b"a": b"1"}), default_ttl_s=0.25) == [same, ("PEXPIRE", KEY, b"250")]
    state.ttl(timedelta(minutes=2))
    assert effects_of(state) == [same, ("PEXPIRE", KEY, b"120000")]
    for wrong in (0, -1, math.nan, math.inf, True, "5", 1e12, timedelta(0), timedelta.max):
        with pytest.raises(PayloadError, match=r"state\.ttl takes seconds"):
            state.ttl(wrong)  # type: ignore[arg-type]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=name)
        for name, value in {
            "nan": math.nan,
            "infinity": [1, {"a": -math.inf}],
            "bytes": b"x",
            "a set": {1},
            "a date": datetime(2026, 1, 1, tzinfo=UTC),
            "an enum": Colour.RED,
            "an id": [uuid.UUID(int=1)],
            "a key that is no text": {1: 2},
            "half a pair": "\ud800",
            "a huge number and an enum": [1 << 70, Colour.RED],
            "a huge number and a number as a key": {"a": 1 << 70, "b": {1: 2}},
            "an object": object(),
            "deep": deep(250),
            "very deep": deep(5000),
        }.items()
    ],
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    state = StateDict({b"a": b"1"})
    state["v"] = value
    with pytest.raises(PayloadError, match="state") as refused:
        effects_of(state)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("stored", "value"), [(b"null", math.nan), (b"[null,1]", [math.inf, 1]), (b'{"a": null}', {"a": -math.inf})]
)
def test_what_json_cannot_say_is_not_the_null_that_was_read(stored: bytes, value: Any) -> None:
    state = StateDict({b"v": stored})
    assert effects_of(state) == []
    state["v"] = value
    with pytest.raises(PayloadError, match=r"it has -?(nan|inf)"):
        effects_of(state)


@pytest.mark.parametrize("name", [1, b"a", None, "\ud800", ("a",)])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    state = StateDict()
    state[name] = 1
    with pytest.raises(PayloadError, match="name"):
        effects_of(state)


def test_a_state_that_is_too_large_is_refused() -> None:
    state = StateDict({b"a": b"1"})
    state["b"] = "x" * 10
    assert effects_of(state, most_bytes=15)
    with pytest.raises(PayloadError, match="would have 15 bytes; bridge_max_state is 14"):
        effects_of(state, most_bytes=14)


@pytest.mark.parametrize(
    ("value", "is_taken"), [("x" * 10, True), ("x" * 9, True), ("y" * 10, True), ("x" * 11, False)]
)
def test_a_state_that_was_too_large_before_may_stay_so(value: str, is_taken: bool) -> None:
    state = StateDict({b"a": b"1", b"b": b'"xxxxxxxxxx"'})
    state["b"] = value
    if is_taken:
        assert bool(effects_of(state, most_bytes=3)) == (value != "x" * 10)
    else:
        with pytest.raises(PayloadError, match="would have 16 bytes; bridge_max_state is 3"):
            effects_of(state, most_bytes=3)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"nan", b"'a'"])
def test_a_damaged_field_is_refused(text: bytes) -> None:
    with pytest.raises(PayloadError, match="the field total of the state is not JSON"):
        StateDict({b"total": text})


LONG = b"1234567890123456789"


@pytest.mark.parametrize(
    "text",
    [
        b"[%b,NaN]",
        b"[%b,1e999]",
        b"[%b,-1e999]",
        b'"\\ud800 %b"',
        b"[%b,Infinity]",
        b'"\xed\xa0\x80%b"',
        b"\xef\xbb\xbf%b",
        b"[%b,01]",
    ],
)
def test_a_field_with_a_long_number_is_read_by_the_same_rules(text: bytes) -> None:
    """Long numbers are read by another parser."""
    with pytest.raises(PayloadError, match="the field total of the state is not JSON") as refused:
        StateDict({b"total": text % LONG})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("depth", [201, 400, 1200, 100_000])
@pytest.mark.parametrize("inner", [b"1", LONG])
def test_a_field_that_is_nested_too_deep_is_refused_by_name(depth: int, inner: bytes) -> None:
    with pytest.raises(PayloadError, match=r"^the field total of the state is not JSON: ") as refused:
        StateDict({b"total": b"[" * depth + inner + b"]" * depth})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("inner", [b"1", LONG])
def test_a_field_may_be_nested_as_deep_as_a_payload(inner: bytes) -> None:
    state = StateDict({b"total": b"[" * 200 + inner + b"]" * 200})
    assert effects_of(state) == []


def test_many_fields_go_in_several_calls() -> None:
    state = StateDict()
    state.update({f"f{n}": n for n in range(FIELDS_OF_CALL + 1)})
    assert [len(one) for one in effects_of(state)] == [2 + 2 * FIELDS_OF_CALL, 2 + 2]
    stored = state.changes(KEY, most_bytes=MIB).stored
    state = StateDict(stored)
    state.clear()
    assert [len(one) for one in effects_of(state)] == [2 + FIELDS_OF_CALL, 2 + 1]


def drawn(random_: random.Random, depth: int = 0) -> Any:
    kind = random_.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [drawn(random_, depth + 1) for _ in range(random_.randrange(4))]
    if kind == 7:
        return {f"k{n}": drawn(random_, depth + 1) for n in range(random_.randrange(4))}
    return [None, True, random_.randrange(-5, 5), random_.random(), 'ü\n"', 0][kind]


@pytest.mark.parametrize("seed", range(20))
def test_what_the_commands_write_is_what_the_next_message_reads(seed: int) -> None:
    """A small Redis hash and a plain dict go through the same drawn changes, and stay equal."""
    random_ = random.Random(seed)
    stored: dict[bytes, bytes] = {}
    model: dict[str, Any] = {}
    for _ in range(50):
        state = StateDict(stored)
        assert state == model
        for _ in range(random_.randrange(4)):
            name = f"n{random_.randrange(6)}"
            if random_.random() < 0.3:
                state.pop(name, None)
            elif isinstance(state.get(name), list):
                state[name].append(drawn(random_))
            elif isinstance(state.get(name), dict):
                state[name]["more"] = drawn(random_)
            else:
                state[name] = drawn(random_)
        if random_.random() < 0.3:
            # The attempt fails.
            continue
        model = copy.deepcopy(dict(state))
        changes = state.changes(KEY, most_bytes=MIB)
        for effect in changes.effects:
            command, _, *rest = effect.arguments
            arguments: list[Any] = rest
            if command == "HSET":
                stored = {**stored, **dict(zip(arguments[::2], arguments[1::2], strict=True))}
            else:
                stored = {name: text for name, text in stored.items() if name not in arguments}
        assert stored == changes.stored


def test_the_state_stays_where_the_oldest_version_had_it() -> None:
    assert home_in(["s"], [None]) == ("s", False)
    assert home_in(["s:v2", "s"], [None, None]) == ("s", True)
    assert home_in(["s:v3", "s:v2"], [None, b"s"]) == ("s", True)
    assert home_in(["s:v2", "s"], [b"s", None]) == ("s", False)
    assert home_in(["s:v2"], [b"s"]) == ("s", False)
