"""apply.lua: effects with the success of their message, all or none, once, and only under the current fence."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import DataError

from bridge.app.effect_arguments import COMMANDS
from bridge.app.effects import Effects
from bridge.link.connections import client
from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.routing.effects import Effect, Success, apply
from bridge.routing.errors import PayloadError
from bridge.routing.ids import LAST_ID
from bridge.routing.return_codes import ReturnCode
from bridge.stack.embedded import EmbeddedServer
from tests.scripts.world import HOSTILE, World, changes, fields_of, snapshot

pytestmark = pytest.mark.scripts

INCARNATION = "life-of-w1@a"
#: The run of "busy" in the seeded world: fences 100 and 101.
FENCE = 100


def success(world: World, effects: tuple[Effect, ...], fence: int = FENCE, ticket: str = "busy") -> Success:
    known = {100: 0, 101: 1}
    id_ = world.busy[known.get(fence, 0)]
    return Success(ticket, fence, Outcome(id_, fence, Kind.DONE, 1.5).encode().decode(), effects)


def recorded(record: Callable[[Effects], object]) -> tuple[Effect, ...]:
    effects = Effects()
    record(effects)
    return effects.recorded()


def run(world: World, *successes: Success) -> list[tuple[ReturnCode, str]]:
    return apply(world.client, world.keys, INCARNATION, successes)


WRITES: dict[str, tuple[str, Callable[[Effects], object], object]] = {
    "set": ("string", lambda e: e.set("user:k", "v"), "v"),
    "set ex": ("string", lambda e: e.set("user:k", "v", ex=100), "v"),
    "set nx": ("string", lambda e: e.set("user:k", "v", nx=True), "v"),
    "setex": ("string", lambda e: e.execute_command("SETEX", "user:k", 100, "v"), "v"),
    "psetex": ("string", lambda e: e.execute_command("PSETEX", "user:k", 100_000, "v"), "v"),
    "setnx": ("string", lambda e: e.setnx("user:k", "v"), "v"),
    "mset": ("string", lambda e: e.mset({"user:k": "v", "user:l": "w"}), "v"),
    "append": ("string", lambda e: e.append("user:k", "v"), "v"),
    "incr": ("string", lambda e: e.incr("user:k"), "1"),
    "raw incr": ("string", lambda e: e.execute_command("INCR", "user:k"), "1"),
    "raw decr": ("string", lambda e: e.execute_command("DECR", "user:k"), "-1"),
    "incrby": ("string", lambda e: e.incrby("user:k", -7), "-7"),
    "decr": ("string", lambda e: e.decr("user:k", 3), "-3"),
    "decrby": ("string", lambda e: e.decrby("user:k", -3), "3"),
    "setbit": ("string", lambda e: e.setbit("user:k", 1, 1), "@"),
    "hset": ("hash", lambda e: e.hset("user:k", mapping={"a": 1, "b": "ü"}), {"a": "1", "b": "ü"}),
    "hsetnx": ("hash", lambda e: e.hsetnx("user:k", "a", "1"), {"a": "1"}),
    "hincrby": ("hash", lambda e: e.hincrby("user:k", "a", 2), {"a": "2"}),
    "hincrbyfloat": ("hash", lambda e: e.hincrbyfloat("user:k", "a", 0.25), {"a": "0.25"}),
    "lpush": ("list", lambda e: e.lpush("user:k", "a", "b"), ["b", "a"]),
    "rpush": ("list", lambda e: e.rpush("user:k", "a", "b"), ["a", "b"]),
    "sadd": ("set", lambda e: e.sadd("user:k", "b", "a"), ["a", "b"]),
    "zadd": ("zset", lambda e: e.zadd("user:k", {"a": 1, "b": float("-inf")}), {"a": 1.0, "b": float("-inf")}),
    "zincrby": ("zset", lambda e: e.zincrby("user:k", 2.5, "a"), {"a": 2.5}),
}

ON_WHAT_IS_THERE: dict[str, tuple[tuple[Any, ...], Callable[[Effects], object], object]] = {
    "delete": (("SET", "user:k", "v"), lambda e: e.delete("user:k", "user:l"), None),
    "unlink": (("HSET", "user:k", "a", "v"), lambda e: e.unlink("user:k"), None),
    "hdel": (("HSET", "user:k", "a", "1", "b", "2"), lambda e: e.hdel("user:k", "a"), {"b": "2"}),
    "ltrim": (("RPUSH", "user:k", "a", "b", "c"), lambda e: e.ltrim("user:k", 1, -1), ["b", "c"]),
    "lrem": (("RPUSH", "user:k", "a", "b", "a"), lambda e: e.lrem("user:k", 0, "a"), ["b"]),
    "srem": (("SADD", "user:k", "a", "b"), lambda e: e.srem("user:k", "a"), ["b"]),
    "zrem": (("ZADD", "user:k", "1", "a", "2", "b"), lambda e: e.zrem("user:k", "a"), {"b": 2.0}),
    "zremrangebyrank": (
        ("ZADD", "user:k", "1", "a", "2", "b"),
        lambda e: e.zremrangebyrank("user:k", 0, 0),
        {"b": 2.0},
    ),
    "zremrangebyscore": (
        ("ZADD", "user:k", "1", "a", "2", "b"),
        lambda e: e.zremrangebyscore("user:k", "-inf", "(2"),
        {"b": 2.0},
    ),
    "set xx": (("SET", "user:k", "v"), lambda e: e.set("user:k", "w", xx=True, keepttl=True), "w"),
    "set over a hash": (("HSET", "user:k", "a", "1"), lambda e: e.set("user:k", "w"), "w"),
    "incr": (("SET", "user:k", "-5"), lambda e: e.incr("user:k", 10), "5"),
    "hincrby": (("HSET", "user:k", "a", "41", "b", "x"), lambda e: e.hincrby("user:k", "a"), {"a": "42", "b": "x"}),
    "zadd gt": (
        ("ZADD", "user:k", "5", "a"),
        lambda e: e.zadd("user:k", {"a": 4, "b": 1}, gt=True),
        {"a": 5.0, "b": 1},
    ),
}


def after_success(world: World, record: Callable[[Effects], object], *touched: str) -> dict[str, Any]:
    """The server after a success whose effects change these keys; what was applied before is undone at first."""
    world.client.hset(world.keys.applied, "busy", 90)
    before = world.snapshot()
    assert run(world, success(world, recorded(record))) == [(ReturnCode.OK, "")]
    after = world.snapshot()
    assert changes(before, after) == {world.keys.outcomes, world.keys.applied, *touched}
    return after


def test_every_allowed_command_is_applied_with_its_success(world: World) -> None:
    for name, (kind, record, value) in WRITES.items():
        # When the only effect is this command
        after = after_success(world, record, "user:k", *(["user:l"] if name == "mset" else []))
        # Then the world is the one before with the value, the outcome and the fence that was applied
        assert (after["user:k"]["type"], after["user:k"]["value"]) == (kind, value), name
        assert after[world.keys.applied]["value"] == {"busy": "100", "other": "50"}
        entry = fields_of(after, world.keys.outcomes)[-1]
        assert entry["i"] == INCARNATION
        assert decode(entry["o"].encode()) == [Outcome(world.busy[0], FENCE, Kind.DONE, 1.5)]
        world.client.delete("user:k", "user:l")


def test_every_allowed_command_changes_a_key_that_exists(world: World) -> None:
    for name, (seed, record, value) in ON_WHAT_IS_THERE.items():
        world.client.delete("user:k")
        world.client.execute_command(*seed)
        assert after_success(world, record, "user:k").get("user:k", {}).get("value") == value, name


def test_times_to_live_streams_places_and_publications_are_effects_too(world: World) -> None:
    world.client.set("user:k", "v")
    world.client.set("user:p", "v", px=60_000)
    with world.client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("user:channel")
        listener.get_message(timeout=5)

        def record(effects: Effects) -> None:
            effects.expire("user:k", 100)
            effects.pexpire("user:k", 100_000)
            effects.persist("user:p")
            effects.xadd("user:s", {"*": "1"}, maxlen=10, approximate=False)
            effects.xadd("user:s", {"a": "2"}, nomkstream=True, minid="0-1", limit=5)
            effects.geoadd("user:g", (13.4, 52.5, "Berlin"))
            effects.publish("user:channel", "hello")

        assert run(world, success(world, recorded(record))) == [(ReturnCode.OK, "")]
        after = world.snapshot()
        assert after["user:k"]["expires"]
        assert not after["user:p"]["expires"]
        assert fields_of(after, "user:s") == [{"*": "1"}, {"a": "2"}]
        assert "Berlin" in after["user:g"]["value"]
        heard = listener.get_message(timeout=5)
        assert heard is not None
        assert heard["data"] == b"hello"


def test_every_allowed_command_was_seen_here() -> None:
    seen = {"EXPIRE", "PEXPIRE", "PERSIST", "XADD", "GEOADD", "PUBLISH"}
    for record in [*(w[1] for w in WRITES.values()), *(w[1] for w in ON_WHAT_IS_THERE.values())]:
        seen |= {str(effect.arguments[0]) for effect in recorded(record)}
    # DECRBY is written as INCRBY.
    assert seen == set(COMMANDS) - {"DECRBY"}


# -- what cannot be applied ----------------------------------------------------------------------------------------

SEEDS: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "user:wrong", "text"),
    "hash": ("HSET", "user:wrong", "a", "text"),
    "list": ("RPUSH", "user:wrong", "a"),
    "set": ("SADD", "user:wrong", "a"),
    "zset": ("ZADD", "user:wrong", "1", "a"),
    "stream": ("XADD", "user:wrong", "1-1", "a", "1"),
}
TYPED: dict[str, Callable[[Effects], object]] = {
    "string": lambda e: e.append("user:wrong", "x"),
    "hash": lambda e: e.hset("user:wrong", "b", "1"),
    "list": lambda e: e.rpush("user:wrong", "x"),
    "set": lambda e: e.sadd("user:wrong", "x"),
    "zset": lambda e: e.zadd("user:wrong", {"x": 1}),
    "stream": lambda e: e.xadd("user:wrong", {"a": "1"}),
}


@pytest.mark.parametrize("wanted", TYPED)
def test_a_key_of_another_type_lets_nothing_be_applied(wanted: str, world: World) -> None:
    for there, seed in SEEDS.items():
        if there == wanted:
            continue
        # Given a key of another type, and effects that need another one, alone or after others
        world.client.delete("user:wrong")
        world.client.execute_command(*seed)
        before = world.snapshot()
        alone, last = Effects(), Effects()
        last.set("user:first", "1")
        last.hset("user:account", "balance", "0")
        for effects in (alone, last):
            TYPED[wanted](effects)
            # Then the type that is there is named, and nothing at all changed
            [(code, problem)] = run(world, success(world, effects.recorded()))
            assert (code, problem.partition(": ")[2]) == (ReturnCode.ERR, f"the key holds a {there}, not a {wanted}")
            assert world.snapshot() == before


#: Value -> whether an integer, and a number with a fraction, can be added to it.
ADDED_TO = {
    "0": (True, True),
    "-12": (True, True),
    "9007199254740989": (True, True),
    "9007199254740991": (False, False),
    "9223372036854775807": (False, False),
    "99999999999999999999": (False, False),
    "007": (False, True),
    "-0": (False, True),
    "1.5": (False, True),
    "-0.25": (False, True),
    "1e3": (False, True),
    "1e-07": (False, True),
    "1e300": (False, False),
    **dict.fromkeys(
        ["", " 5", "5 ", "+5", "0x10", "nan", "inf", "-inf", "1e", ".5", "1.2.3", "text", "5\n"], (False, False)
    ),
}
#: What is added to -> the key's value, what adds to it, whether with a fraction.
ADDITIONS: dict[str, tuple[tuple[str, ...], Callable[[Effects], object], bool]] = {
    "string": (("SET", "user:n"), lambda e: e.incrby("user:n", 2), False),
    "hash, integer": (("HSET", "user:n", "f"), lambda e: e.hincrby("user:n", "f", 2), False),
    "hash, fraction": (("HSET", "user:n", "f"), lambda e: e.hincrbyfloat("user:n", "f", 2.0), True),
}


@pytest.mark.parametrize("place", ADDITIONS)
def test_a_number_is_checked_before_anything_is_added(place: str, world: World) -> None:
    seed, add, fraction = ADDITIONS[place]
    for value, fits in ADDED_TO.items():
        # Given a value that is a number, or none
        world.client.delete("user:n", "user:first")
        world.client.execute_command(*seed, value)
        world.client.hset(world.keys.applied, "busy", 90)
        effects = Effects()
        effects.set("user:first", "1")
        add(effects)
        before = world.snapshot()
        # When the message succeeded
        [(code, problem)] = run(world, success(world, effects.recorded()))
        # Then it is added, or nothing at all happened
        if fits[fraction]:
            assert code is ReturnCode.OK, value
            there = world.client.get("user:n") if place == "string" else world.client.hget("user:n", "f")
            assert float(there) == pytest.approx(float(value) + 2)
        else:
            assert code is ReturnCode.ERR, value
            assert "number" in problem
            assert world.snapshot() == before


def test_a_number_that_grows_too_large_is_not_added(world: World) -> None:
    world.client.set("user:n", 2**53 - 10)
    effects = Effects()
    effects.set("user:first", "1")
    effects.incrby("user:n", 10)
    before = world.snapshot()
    assert run(world, success(world, effects.recorded())) == [
        (ReturnCode.ERR, "INCRBY: the number would be too large"),
    ]
    assert world.snapshot() == before


def test_an_increment_that_is_no_integer_lets_nothing_be_applied(world: World) -> None:
    before = world.snapshot()
    for increment in ("x", "", "1.5", "nan", " 1", "1e3"):
        # Given effects that no recorder of ours would make
        bad = (Effect("", "", ("SET", "user:first", "1")), Effect("string", "int", ("INCRBY", "user:n", increment)))
        [(code, problem)] = run(world, success(world, bad))
        assert (code, problem) == (ReturnCode.ERR, "INCRBY: the increment is not a number"), increment
        assert world.snapshot() == before


#: What the server refuses by the keys, and only when it is applied: name -> what adds to it.
AT_ITS_END: dict[str, Callable[[Effects], object]] = {
    "a stream without another id": lambda e: e.xadd("user:end", {"a": "1"}),
    "the same, twice": lambda e: (e.xadd("user:end", {"a": "1"}), e.xadd("user:end", {"a": "1"})),
    "a string": lambda e: e.append("user:end", "x"),
    "a string that grows in two steps": lambda e: (e.append("user:short", "x" * 1024), e.append("user:short", "x")),
    "a string that is made first": lambda e: (e.set("user:new", "x" * MOST_BYTES), e.append("user:new", "x")),
    "one of several": lambda e: (e.mset({"user:a": "", "user:new": "x" * MOST_BYTES}), e.append("user:new", "x")),
    "a bit and a string": lambda e: (e.setbit("user:new", MOST_BYTES * 8 - 1, 1), e.append("user:new", "x")),
    "a bit": lambda e: e.setbit("user:new", MOST_BYTES * 8, 1),
    "a number of many digits": lambda e: e.hincrbyfloat("user:long", "f", 1.0),
}
#: The least that a server can be told to take.
MOST_BYTES = 1024 * 1024


@pytest.mark.parametrize("case", AT_ITS_END)
def test_what_is_at_its_end_is_seen_before_anything_is_applied(case: str, world: World) -> None:
    known = world.client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    world.client.config_set("proto-max-bulk-len", MOST_BYTES)
    try:
        # Given keys that are as full as they can be, or have room for a little
        if "stream" in case or "twice" in case:
            world.client.execute_command("XADD", "user:end", LAST_ID, "a", "1")
        else:
            world.client.set("user:end", "x" * MOST_BYTES)
        world.client.set("user:short", "x" * (MOST_BYTES - 1024))
        world.client.hset("user:long", "f", "0." + "1" * 5500)
        effects = Effects()
        effects.incr("user:first")
        AT_ITS_END[case](effects)
        before = world.snapshot()
        # When the message succeeded, then nothing at all happened
        [(code, problem)] = run(world, success(world, effects.recorded()))
        assert code is ReturnCode.ERR
        assert changes(before, world.snapshot()) == set()
        assert not problem.startswith("INCR:")
    finally:
        world.client.config_set("proto-max-bulk-len", known)


def test_strings_and_streams_may_be_filled_to_their_end(world: World) -> None:
    known = world.client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    world.client.config_set("proto-max-bulk-len", MOST_BYTES)
    try:
        world.client.execute_command("XADD", "user:s", f"{2**64 - 2}-{2**64 - 1}", "a", "1")
        world.client.set("user:a", "x" * (MOST_BYTES - 2))

        def record(effects: Effects) -> None:
            effects.append("user:a", "x")
            effects.append("user:a", "y")
            effects.setbit("user:b", MOST_BYTES * 8 - 1, 1)
            effects.xadd("user:s", {"a": "1"})
            effects.xadd("user:s", {"a": "2"})

        assert run(world, success(world, recorded(record))) == [(ReturnCode.OK, "")]
        assert (world.client.strlen("user:a"), world.client.strlen("user:b")) == (MOST_BYTES, MOST_BYTES)
        assert world.client.xlen("user:s") == 3
    finally:
        world.client.config_set("proto-max-bulk-len", known)


# -- fences --------------------------------------------------------------------------------------------------------


def test_a_fence_that_is_not_current_changes_nothing(world: World) -> None:
    # Given the run of "busy" with the fences 100 and 101
    before = world.snapshot()
    for fence in (0, 1, 99, 102, 103, 2**52):
        codes = run(world, success(world, recorded(lambda e: e.set("user:k", "v")), fence))
        assert codes == [(ReturnCode.STALE, "")], fence
        assert world.snapshot() == before


def test_a_repeat_of_the_same_call_is_applied_once(world: World) -> None:
    # Given effects that were applied, and a reply that was lost
    one = success(world, recorded(lambda e: e.incr("user:k")))
    assert run(world, one) == [(ReturnCode.OK, "")]
    before = world.snapshot()
    # When the worker sends them again
    assert run(world, one) == [(ReturnCode.AGAIN, "")]
    # Then nothing changes: neither the value nor the outcomes
    assert world.snapshot() == before


def test_each_message_of_a_call_stands_for_itself(world: World) -> None:
    # Given four messages: one whose effects cannot be applied between good ones, and a stale one
    world.client.rpush("user:wrong", "x")
    effects = recorded(lambda e: e.hincrby("user:account", "balance", 1))
    bad = recorded(lambda e: (e.set("user:never", "1"), e.incr("user:wrong")))
    before = world.snapshot()
    codes = run(
        world,
        success(world, effects, 100),
        success(world, bad, 101),
        Success("other", 199, "[]", effects),
        Success("other", 200, '["o",200,"S",0.0]', effects),
    )
    # Then each has its own word, and the outcomes of those that were applied are one entry
    assert [code for code, _ in codes] == [ReturnCode.OK, ReturnCode.ERR, ReturnCode.STALE, ReturnCode.OK]
    after = world.snapshot()
    expected = deepcopy(before)
    expected["user:account"]["value"]["balance"] = "12"
    expected[world.keys.applied]["value"] = {"busy": "100", "other": "200"}
    entry = fields_of(after, world.keys.outcomes)[-1]
    assert orjson.loads(entry["o"]) == [[world.busy[0], 100, "S", 1.5, 0], ["o", 200, "S", 0.0]]
    expected[world.keys.outcomes] = after[world.keys.outcomes]
    assert after == expected


def test_a_ticket_id_is_data_for_effects_too(fresh: World) -> None:
    for ticket in HOSTILE:
        fresh.in_flight(ticket, fresh.pushed(ticket), "w1@a", 2**50 + 1)
        effect = Effect("", "", ("SET", f"user:{ticket}", b"\xff\0\r\n"))
        one = Success(ticket, 2**50 + 1, "[]", (effect,))
        assert run(fresh, one) == [(ReturnCode.OK, "")]
        assert fresh.client.hget(fresh.keys.applied, ticket) == str(2**50 + 1).encode()
        assert fresh.client.get(f"user:{ticket}") == b"\xff\0\r\n"
        assert run(fresh, one) == [(ReturnCode.AGAIN, "")]


@pytest.mark.parametrize("base", [2**50 + 1, 2**52 + 1, 2**53 - 3])
def test_large_fences_are_compared_exactly(base: int, fresh: World) -> None:
    fresh.in_flight("t", fresh.pushed("t", 2), "w1@a", base)
    effects = recorded(lambda e: e.incr("user:n"))
    codes = [
        run(fresh, Success("t", fence, "[]", effects))[0][0] for fence in (base - 1, base, base, base + 1, base + 2)
    ]
    assert codes == [ReturnCode.STALE, ReturnCode.OK, ReturnCode.AGAIN, ReturnCode.OK, ReturnCode.STALE]
    assert fresh.client.hget(fresh.keys.applied, "t") == str(base + 1).encode()


# -- all or nothing, whatever the effects --------------------------------------------------------------------------

KEYS = st.sampled_from([f"user:{name}" for name in "abcde"])
FIELDS = st.sampled_from(["f", "g", "*", "NX", ""])
VALUES = st.sampled_from(
    ["0", "5", "-3", "1.5", "text", "", "007", "1e300", "9007199254740990", "nan", b"\xff", 2, 0.1]
)
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**53, -(2**63), 2**70, 0.5, 1e-7, "7", "x", "1.5", "", "inf", b"\xff", "1e-400", "1" * 300]),
)
#: None of a few: what expires between two looks at the world differs in them.
MILLISECONDS = NUMBERS.map(lambda n: n * 10_000 if isinstance(n, int) else n)
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def call(name: str, *args: st.SearchStrategy[Any], **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), st.tuples(*args), st.fixed_dictionaries({}, optional=options))


MANY = {str(i): i for i in range(5000)}
YES = st.just(True)
CALLS: st.SearchStrategy[Call] = st.one_of(
    call("set", KEYS, VALUES, ex=NUMBERS, px=MILLISECONDS, nx=YES, xx=YES, keepttl=YES, get=YES),
    call("execute_command", st.just("SETEX"), KEYS, NUMBERS, VALUES),
    call("setnx", KEYS, VALUES),
    call("mset", st.dictionaries(KEYS, VALUES, max_size=3)),
    call("append", KEYS, VALUES),
    call("incr", KEYS, NUMBERS),
    call("decr", KEYS, NUMBERS),
    call("incrbyfloat", KEYS, NUMBERS),
    call("delete", KEYS, KEYS),
    call("delete"),
    call("expire", KEYS, NUMBERS, nx=YES, gt=YES),
    call("persist", KEYS),
    call("hset", KEYS, FIELDS, VALUES),
    call("hset", KEYS, mapping=st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3)),
    call("hset", KEYS, items=st.lists(VALUES, min_size=1, max_size=3)),
    call("hsetnx", KEYS, FIELDS, VALUES),
    call("hdel", KEYS, FIELDS),
    call("hincrby", KEYS, FIELDS, NUMBERS),
    call("hincrbyfloat", KEYS, FIELDS, NUMBERS),
    call("lpush", KEYS, VALUES),
    call("rpush", KEYS),
    call("ltrim", KEYS, NUMBERS, NUMBERS),
    call("lrem", KEYS, NUMBERS, VALUES),
    call("sadd", KEYS, VALUES),
    call("srem", KEYS, VALUES),
    call(
        "zadd", KEYS, st.dictionaries(FIELDS, NUMBERS, min_size=1, max_size=2), nx=YES, xx=YES, gt=YES, lt=YES, ch=YES
    ),
    call("zadd", KEYS, st.dictionaries(FIELDS, NUMBERS, min_size=1, max_size=1), incr=YES),
    call("zincrby", KEYS, NUMBERS, FIELDS),
    call("zremrangebyrank", KEYS, NUMBERS, NUMBERS),
    call("zremrangebyscore", KEYS, NUMBERS, st.sampled_from(["(5", "+inf", "x", "(", "5"])),
    call(
        "xadd",
        KEYS,
        st.dictionaries(FIELDS, VALUES, min_size=1, max_size=2),
        id=st.sampled_from(["*", "1-1", "9-*", "0-0"]),
        maxlen=st.sampled_from([0, 5, -1]),
        minid=st.sampled_from(["5", "5-5", "x"]),
        approximate=st.booleans(),
        nomkstream=YES,
        limit=st.sampled_from([0, 3]),
    ),
    call("setbit", KEYS, st.sampled_from([0, 7, -1, 2**32]), st.sampled_from([0, 1])),
    call("geoadd", KEYS, st.tuples(st.sampled_from([1.5, 190, "x"]), st.sampled_from([2.5, 89]), FIELDS)),
    call("publish", KEYS, VALUES),
    call("getset", KEYS, VALUES),
    call("pfadd", KEYS, VALUES),
)
SEED_COMMANDS = [
    ("SET", "user:a", "5"),
    ("SET", "user:b", "text"),
    ("HSET", "user:c", "f", "3", "g", "x", "*", "1.5"),
    ("ZADD", "user:d", "inf", "f"),
    ("XADD", "user:e", LAST_ID, "f", "1"),
]


@pytest.mark.parametrize("examples", [50, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_effects_are_all_applied_or_none(server: EmbeddedServer, examples: int) -> None:
    @settings(max_examples=examples, print_blob=True)
    @given(calls=st.lists(CALLS, min_size=1, max_size=6), seeds=st.sets(st.sampled_from(range(len(SEED_COMMANDS)))))
    @example(calls=[("set", ("user:a", "text"), {}), ("incr", ("user:a",), {})], seeds=set())
    @example(calls=[("set", ("user:a", "1"), {}), ("hset", ("user:a", "f", "1"), {})], seeds=set())
    @example(calls=[("hset", ("user:a", "f", "x"), {}), ("hincrby", ("user:a", "f", 1), {})], seeds=set())
    @example(calls=[("hincrbyfloat", ("user:a", "f", 0.5), {}), ("hincrby", ("user:a", "f", 1), {})], seeds=set())
    @example(calls=[("set", ("user:b", "1"), {}), ("set", ("user:a", "1"), {"ex": 0})], seeds=set())
    @example(calls=[("set", ("user:b", "1"), {}), ("xadd", ("user:a", {"*": "1"}), {"id": "0-0"})], seeds=set())
    @example(
        calls=[("set", ("user:b", "1"), {}), ("hset", ("user:a",), {"mapping": {str(i): i for i in range(5000)}})],
        seeds=set(),
    )
    def all_or_none(calls: list[Call], seeds: set[int]) -> None:
        with client(server.url) as connected:
            # Given keys of several types, and whatever effects the recorder accepts
            connected.flushall()
            world = World(connected).begin()
            world.busy = world.pushed("busy")
            world.in_flight("busy", world.busy, "w1@a", FENCE)
            for i in sorted(seeds):
                connected.execute_command(*SEED_COMMANDS[i])
            effects = Effects()
            for name, args, options in calls:
                try:
                    getattr(effects, name)(*args, **options)
                except (PayloadError, DataError):
                    continue
            before = world.snapshot()
            # When they come with a success
            [(code, problem)] = run(world, success(world, effects.recorded()))
            after = world.snapshot()
            if code is ReturnCode.ERR:
                # Then either nothing changed, and the reason is told
                assert problem
                assert after == before
                return
            # Or all of it did: as when each is sent by itself
            assert code is ReturnCode.OK
            connected.flushall()
            for i in sorted(seeds):
                connected.execute_command(*SEED_COMMANDS[i])
            for effect in effects.recorded():
                connected.execute_command(*effect.arguments)
            plain = snapshot(connected)
            assert {k: _comparable(v) for k, v in after.items() if k.startswith("user:")} == {
                k: _comparable(v) for k, v in plain.items()
            }

    all_or_none()


def _comparable(value: dict[str, Any]) -> object:
    if value["type"] == "stream":
        return [fields for _, fields in value["value"]["entries"]]
    return value
