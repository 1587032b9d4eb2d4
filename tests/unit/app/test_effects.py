"""The recorder of effects: what is recorded, and what is refused at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import DataError

from bridge.app.effect_arguments import MAX_ARGUMENTS, MAX_NUMBER
from bridge.app.effects import Effects
from bridge.routing.effects import Effect
from bridge.routing.errors import PayloadError


def test_commands_are_recorded_in_order_and_return_nothing() -> None:
    effects = Effects()
    assert effects.set("k", "v", ex=5) is None
    assert effects.hset("h", mapping={"a": 1, "ü": 2.5}) is None
    assert effects.decr("n", 4) is None
    assert effects.recorded() == (
        Effect("", "", ("SET", b"k", b"v", b"EX", b"5")),
        Effect("hash", "", ("HSET", b"h", b"a", b"1", "ü".encode(), b"2.5")),
        Effect("string", "int", ("INCRBY", b"n", b"-4")),
    )
    assert len(effects) == 3


def test_an_empty_recorder_is_there() -> None:
    assert Effects()
    assert len(Effects()) == 0


REFUSED: dict[str, Callable[[Effects], Any]] = {
    "a reading command": lambda e: e.get("k"),
    "a command that waits": lambda e: e.blpop(["k"]),
    "a rename": lambda e: e.rename("k", "l"),
    "a script": lambda e: e.eval("return 1", 0),
    "flushall": lambda e: e.flushall(),
    "xack": lambda e: e.xack("s", "g", "1-0"),
    "incrbyfloat, which breaks an old server": lambda e: e.incrbyfloat("k", 1.5),
    "pfadd": lambda e: e.pfadd("k", "a"),
    "set with get": lambda e: e.set("k", "v", get=True),
    "set that ends at once": lambda e: e.set("k", "v", ex=0),
    "set that ended": lambda e: e.set("k", "v", px=-1),
    "set that ends never": lambda e: e.set("k", "v", ex=10**18),
    "set nx and xx": lambda e: e.execute_command("SET", "k", "v", "NX", "XX"),
    "set without a value": lambda e: e.execute_command("SET", "k"),
    "set with an unfinished option": lambda e: e.execute_command("SET", "k", "v", "EX"),
    "setex of nothing": lambda e: e.execute_command("SETEX", "k", "soon", "v"),
    "expire with a condition": lambda e: e.expire("k", 5, nx=True),
    "expire in the past": lambda e: e.expire("k", -5),
    "delete of nothing": lambda e: e.delete(),
    "mset of nothing": lambda e: e.mset({}),
    "lpush of nothing": lambda e: e.lpush("k"),
    "hset of half a field": lambda e: e.hset("k", items=["a"]),
    "incr by a fraction": lambda e: e.incrby("k", 1.5),  # type: ignore[arg-type]
    "incr by text": lambda e: e.incrby("k", "x"),  # type: ignore[arg-type]
    "incr by too much": lambda e: e.incrby("k", MAX_NUMBER + 1),
    "hincrbyfloat by nan": lambda e: e.hincrbyfloat("k", "f", float("nan")),
    "hincrbyfloat by infinity": lambda e: e.hincrbyfloat("k", "f", float("inf")),
    "decr by text": lambda e: e.execute_command("DECRBY", "k", "x"),
    "ltrim by text": lambda e: e.ltrim("k", "a", "b"),  # type: ignore[arg-type]
    "zadd of nan": lambda e: e.zadd("k", {"a": float("nan")}),
    "zadd of less than a double holds": lambda e: e.zadd("k", {"a": "1e-400"}),
    "zadd of what a double holds in part": lambda e: e.zadd("k", {"a": "-4e-320"}),
    "zincrby by less than a double holds": lambda e: e.zincrby("k", "0.001e-399", "a"),  # type: ignore[arg-type]
    "geoadd of less than a double holds": lambda e: e.geoadd("k", ("1e-400", 0, "x")),
    "hincrbyfloat by a long text": lambda e: e.hincrbyfloat("k", "f", "0." + "1" * 5500),  # type: ignore[arg-type]
    "zadd of text": lambda e: e.zadd("k", {"a": "x"}),
    "zadd that adds up": lambda e: e.zadd("k", {"a": 1}, incr=True),
    "zadd gt and nx": lambda e: e.execute_command("ZADD", "k", "GT", "NX", "1", "a"),
    "zincrby of infinity": lambda e: e.zincrby("k", float("inf"), "a"),
    "zremrangebyscore by text": lambda e: e.zremrangebyscore("k", "a", "b"),
    "xadd with an id": lambda e: e.xadd("s", {"a": "1"}, id="5-1"),
    "xadd with an id and a star": lambda e: e.xadd("s", {"*": "*"}, id="5-1"),
    "xadd of nothing": lambda e: e.execute_command("XADD", "s", "*"),
    "xadd with a bad length": lambda e: e.xadd("s", {"a": "1"}, maxlen=-1),
    "xadd with a bad oldest id": lambda e: e.xadd("s", {"a": "1"}, minid="x"),
    "xadd with a limit that must be exact": lambda e: e.xadd("s", {"a": "1"}, maxlen=5, approximate=False, limit=5),
    "setbit at a negative place": lambda e: e.setbit("k", -1, 1),
    "setbit far away": lambda e: e.setbit("k", 2**32, 1),
    "geoadd off the map": lambda e: e.geoadd("k", (190, 0, "x")),
    "a lone surrogate": lambda e: e.set("k", "\ud800"),
    "none": lambda e: e.set("k", None),  # type: ignore[arg-type]
    "true": lambda e: e.set("k", True),
    "a list": lambda e: e.set("k", [1]),  # type: ignore[arg-type]
    "too many arguments": lambda e: e.rpush("k", *range(MAX_ARGUMENTS)),
    "a pipeline": lambda e: e.pipeline(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_commands_that_could_fail_half_way_are_refused_at_the_call(case: str) -> None:
    effects = Effects()
    effects.set("before", "1")
    # redis-py refuses some by itself
    with pytest.raises((PayloadError, DataError)) as raised:
        REFUSED[case](effects)
    assert "\n" not in str(raised.value)
    # And what was recorded before is still all
    assert len(effects) == 1


CLASHES: dict[str, tuple[Callable[[Effects], Any], Callable[[Effects], Any]]] = {
    "a string that becomes a hash": (lambda e: e.set("k", "v"), lambda e: e.hset("k", "f", "v")),
    "a hash that becomes a string": (lambda e: e.hset("k", "f", "v"), lambda e: e.append("k", "v")),
    "a list that becomes a set": (lambda e: e.lpush("k", "v"), lambda e: e.sadd("k", "v")),
    "one of many that becomes a list": (lambda e: e.mset({"j": "1", "k": "1"}), lambda e: e.lpush("k", "v")),
    "a text that is added to": (lambda e: e.set("k", "v"), lambda e: e.incr("k")),
    "a text that is appended and added to": (lambda e: e.append("k", "v"), lambda e: e.incr("k")),
    "a field that is added to": (lambda e: e.hset("k", "f", "v"), lambda e: e.hincrby("k", "f", 1)),
    "one of many fields": (lambda e: e.hset("k", mapping={"e": 1, "f": 1}), lambda e: e.hincrbyfloat("k", "f", 1.0)),
    "a field set once": (lambda e: e.hsetnx("k", "f", "v"), lambda e: e.hincrby("k", "f", 1)),
    "a fraction and a whole": (lambda e: e.hincrbyfloat("k", "f", 0.5), lambda e: e.hincrby("k", "f", 1)),
    "sums too large": (lambda e: e.incrby("k", MAX_NUMBER - 1), lambda e: e.incrby("k", -2)),
}


@pytest.mark.parametrize("case", CLASHES)
def test_a_command_that_an_earlier_one_could_make_fail_is_refused(case: str) -> None:
    first, second = CLASHES[case]
    effects = Effects()
    first(effects)
    with pytest.raises(PayloadError):
        second(effects)
    assert len(effects) == 1
    # Alone it is fine
    second(Effects())


HARMLESS: list[Callable[[Effects], Any]] = [
    lambda e: (e.set("k", "v"), e.expire("k", 5), e.set("k", "w"), e.delete("k"), e.set("k", "x")),
    lambda e: (e.hset("k", "f", "v"), e.hincrby("k", "g", 1), e.hincrby("k", "g", 2), e.hdel("k", "f")),
    lambda e: (e.hset("k", "f", "v"), e.hset("k", "f", "w"), e.delete("k"), e.hset("k", "f", "x")),
    lambda e: (e.incr("k"), e.incr("k"), e.decr("k"), e.set("k", "0")),
    lambda e: (e.sadd("a", "1"), e.zadd("b", {"1": 1}), e.lpush("c", "1"), e.set("d", "1"), e.publish("a", "1")),
]


@pytest.mark.parametrize("number", range(len(HARMLESS)))
def test_ordinary_combinations_are_recorded(number: int) -> None:
    effects = Effects()
    HARMLESS[number](effects)
    assert len(effects) >= 4


def test_the_refusal_of_a_command_names_the_possible_ones() -> None:
    with pytest.raises(PayloadError, match=r"cannot get: .* hset, .* zadd"):
        Effects().get("k")


@pytest.mark.parametrize(
    "record",
    [
        lambda e: e.delete("ticket_stream"),
        lambda e: e.unlink("mine", "ticket_stream"),
        lambda e: e.hset("{ticket_stream}:group:tickets", "T", "x"),
        lambda e: e.mset({"mine": 1, "{ticket_stream}/push:run:x": 2}),
        lambda e: e.expire("ticket_stream", 1),
        lambda e: e.xadd("{ticket_stream}:group:outcomes", {"a": 1}),
        lambda e: e.delete("ticket_stream:p1"),
        lambda e: e.hset("{ticket_stream:p1}:group:tickets", "T", "x"),
        lambda e: e.set("{ticket_stream}/layout", "x"),
    ],
)
def test_no_effect_touches_the_lane_itself(record: Callable[[Effects], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Effects, "own", frozenset({b"ticket_stream", b"ticket_stream:p1"}))
    effects = Effects()
    with pytest.raises(PayloadError, match="it is the lane's own"):
        record(effects)
    assert len(effects) == 0
    # A push with the success, values of any content, and keys that merely look alike
    effects.xadd("ticket_stream", {"ticket_id": "T", "payload": "{}"})
    effects.mset({"mine": "ticket_stream"})
    effects.set("ticket_stream2", "{ticket_stream}:x")
    effects.publish("ticket_stream", "x")
    assert len(effects) == 4
