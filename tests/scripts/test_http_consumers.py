"""The scripts of HTTP consumers, on both servers: what is given, what is given back, and what an outcome needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from bridge.protocol.outcome_limits import MOST_ITEMS
from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.routing import http_consumers
from bridge.routing.async_connection import async_client
from bridge.routing.http_consumers import Answer, Enlisting, Taken, acknowledge, enlist, heartbeat, leave, take
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import in_layout
from bridge.routing.message_options import EXPIRED
from bridge.routing.records import record, tail
from bridge.routing.return_codes import ReturnCode
from bridge.stack.embedded import EmbeddedServer

T = TypeVar("T")
LANES = [LaneKeys("s:p0", "g"), LaneKeys("s:p1", "g")]
LIFE = "life"
FENCE = 1_700_000_000_000_000
LEASE_MS = 60_000


def records_of(life: str) -> list[str]:
    """The keys of the copies of its record: one for each version of the stream."""
    return [f"{{s}}/http:{life}", f"{{s:v2}}/http:{life}"]


class Stage:
    """An HTTP consumer ``h`` with a lease in two lanes."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.redis: Any = server.client(decode_responses=True)
        assert self.enlist() is ReturnCode.OK

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **more: Any) -> T:
        async def called() -> T:
            client = async_client(self.server.url)
            try:
                return await function(client, *args, **more)
            finally:
                await client.aclose(close_connection_pool=True)

        return asyncio.run(called())

    def enlist(self, life: str = LIFE) -> ReturnCode:
        found = self.redis.hget(LANES[0].consumers, "h")
        old = None if found is None else (found.encode(), json.loads(found)["incarnation"])
        text = json.dumps({"incarnation": life}).encode()
        lanes = [Enlisting(keys, in_layout(keys.stream, "s"), LEASE_MS, text, old) for keys in LANES]
        code, _ = self.call(enlist, "h", life, records_of(life), (b"{}", LEASE_MS), lanes)
        return code

    def send(self, lane: int, number: int, ticket: str = "T", **headers: Any) -> str:
        """Puts a message in flight, as a leader does. Returns its id."""
        keys, id_, fence = LANES[lane], f"{number}-0", FENCE + number
        more = {"bridge_incarnation": LIFE, "id": f"{id_}@p{lane}", "task": "t", **headers}
        text = {"headers": {"bridge_fence": fence, "bridge_runs": [[ticket, 0, 1, 1, 0]], **more}, "body": "[]"}
        self.redis.lpush(keys.queue("h"), json.dumps(text))
        self.redis.hset(keys.tickets, ticket, record(fence, tail("h", LIFE, 1, [id_], 0)))
        return str(more["id"])

    def take(self, most: int = 10, slots: int = 10, has: tuple[int, ...] = (), most_bytes: int = 10**6) -> Taken | None:
        facts = {"most": most, "slots": slots, "most_bytes": most_bytes, "first": 0, "has": has}
        return self.call(take, LANES, "h", LIFE, **facts)

    def taken(self, **facts: Any) -> list[str]:
        """The ids of the messages that it gets."""
        found = self.take(**facts)
        assert found is not None
        return [json.loads(message.text)["headers"]["id"] for message in found.messages]

    def answer(self, id_: str, kind: str = "S", fence: int | None = None, rest: str = "") -> ReturnCode:
        number = int(id_.partition("-")[0])
        [code] = self.call(acknowledge, LANES, LIFE, [Answer(id_, fence or FENCE + number, kind, rest)])
        return code

    def outcomes(self, lane: int) -> list[list[Any]]:
        found = self.redis.xrange(LANES[lane].outcomes)
        return [row for _, fields in found if "o" in fields for row in json.loads(fields["o"])]


@pytest.fixture
def stage(server: EmbeddedServer) -> Stage:
    return Stage(server)


def test_what_was_given_is_returned_first_and_not_more_than_its_slots(stage: Stage) -> None:
    ids = [stage.send(0, n, f"T{n}") for n in range(1, 5)]
    assert stage.taken(most=0) == []
    assert stage.taken(slots=2) == ids[:2]
    assert stage.taken(most=0) == []
    assert stage.taken(slots=2) == ids[:2]
    assert stage.taken(slots=2, has=(FENCE + 1,)) == ids[1:2]
    assert stage.taken(slots=2, has=(FENCE + 1, FENCE + 2)) == []
    assert stage.taken(slots=3, has=(FENCE + 1,)) == ids[1:3]
    assert stage.taken(most=1) == ids[:1]
    assert 0 < stage.redis.pttl(LANES[0].given(LIFE)) <= LEASE_MS


def test_an_answer_has_a_limit_in_bytes_and_at_least_one_message(stage: Stage) -> None:
    ids = [stage.send(0, n, f"T{n}") for n in range(1, 4)]
    assert stage.taken(most_bytes=1) == ids[:1]
    assert stage.taken(most_bytes=1) == ids[:1]
    assert stage.taken(most_bytes=1, has=(FENCE + 1,)) == ids[1:2]


def test_what_is_acknowledged_last_is_remembered_also_when_its_fence_is_the_lowest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_consumers, "REMEMBERED", 3)
    slow, *others = [stage.send(0, n, f"T{n}") for n in range(1, 6)]
    assert stage.taken() == [slow, *others]
    for id_ in [*others, slow]:
        assert stage.answer(id_) is ReturnCode.OK
    remembered = {id_: stage.answer(id_) for id_ in [slow, *others]}
    assert remembered == {
        slow: ReturnCode.AGAIN,
        **dict.fromkeys(others[:2], ReturnCode.UNKNOWN),
        **dict.fromkeys(others[2:], ReturnCode.AGAIN),
    }
    # The leader sends it again, since it seemed to be lost.
    stage.send(0, 1, "T1")
    assert stage.taken() == []


def test_all_outcomes_of_one_call_are_remembered(stage: Stage) -> None:
    most = http_consumers.REMEMBERED
    assert most >= MOST_ITEMS
    ids = [stage.send(0, n, f"T{n}") for n in range(1, most + 1)]
    assert len(stage.taken(most=most, slots=most)) == most
    answers = [Answer(id_, FENCE + n, "S", "") for n, id_ in enumerate(ids, 1)]
    for expected in (ReturnCode.OK, ReturnCode.AGAIN):
        assert set(stage.call(acknowledge, LANES, LIFE, answers)) == {expected}


def test_an_outcome_is_written_once_under_its_fence_in_its_lane(stage: Stage) -> None:
    first, second = stage.send(0, 1, "é ü"), stage.send(1, 2)
    assert stage.answer(first) is ReturnCode.UNKNOWN
    assert sorted(stage.taken()) == [first, second]
    assert stage.answer(first, fence=FENCE + 2) is ReturnCode.STALE
    assert stage.answer("1-0@p1") is ReturnCode.UNKNOWN
    assert stage.answer(first) is ReturnCode.OK
    assert stage.answer(first) is ReturnCode.AGAIN
    assert stage.answer(first, "F", rest=',"",""') is ReturnCode.CHANGED
    assert stage.answer(first, fence=FENCE) is ReturnCode.STALE
    assert stage.answer(second, "F", rest=',"no","",5') is ReturnCode.OK
    [[id_, fence, kind, service_ms, started_us]] = stage.outcomes(0)
    assert (id_, fence, kind) == ("1-0", FENCE + 1, "S")
    assert 0 <= service_ms < 10_000
    assert started_us > FENCE
    assert stage.outcomes(1)[0][2:3] + stage.outcomes(1)[0][5:] == ["F", "no", "", 5]
    assert stage.taken() == []


def test_each_delivery_of_a_message_that_comes_again_has_an_answer_of_its_own(stage: Stage) -> None:
    first = stage.send(0, 1)
    stage.taken()
    assert stage.answer(first, "F", rest=',"","",0') is ReturnCode.OK
    # The same message under a later fence, to the same incarnation
    again = stage.send(0, 2, id="1-0@p0")
    assert (again, stage.taken()) == (first, [first])
    assert stage.answer(first, "F", fence=FENCE + 1, rest=',"","",0') is ReturnCode.AGAIN
    assert stage.answer(first, fence=FENCE + 2) is ReturnCode.OK
    assert stage.answer(first, fence=FENCE + 2) is ReturnCode.AGAIN
    assert stage.answer(first, fence=FENCE + 3) is ReturnCode.STALE


def test_a_message_that_moved_or_was_settled_is_not_given_and_its_outcome_is_stale(stage: Stage) -> None:
    ids = [stage.send(0, n, f"T{n}") for n in (1, 2)]
    assert stage.taken() == ids
    stage.redis.hdel(LANES[0].tickets, "T1")
    assert stage.answer(ids[0]) is ReturnCode.STALE
    stage.redis.hset(LANES[0].tickets, "T2", record(FENCE + 9, tail("other", "x", 1, ["2-0"], 0)))
    assert stage.taken() == []
    assert stage.answer(ids[1]) is ReturnCode.UNKNOWN
    assert stage.outcomes(0) == []


@pytest.mark.parametrize("lane", [0, 1])
def test_when_one_lease_is_over_the_incarnation_is_over(stage: Stage, lane: int) -> None:
    id_ = stage.send(0, 1)
    assert stage.taken() == [id_]
    stage.redis.delete(LANES[lane].lease(LIFE))
    assert stage.take() is None
    assert stage.answer(id_) is ReturnCode.LATE
    assert stage.call(heartbeat, LANES, "h", LIFE, (records_of(LIFE), LEASE_MS), LEASE_MS) is None
    assert stage.outcomes(0) == []
    assert not stage.redis.exists(LANES[lane].lease(LIFE))


@pytest.mark.parametrize("registered", [None, "damaged", '{"incarnation":"another"}'])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_heartbeat_of_an_incarnation_that_is_not_registered_renews_nothing(
    stage: Stage, lane: int, registered: str | None
) -> None:
    id_ = stage.send(0, 1)
    assert stage.taken() == [id_]
    if registered is None:
        stage.redis.hdel(LANES[lane].consumers, "h")
    else:
        stage.redis.hset(LANES[lane].consumers, "h", registered)
    kept = [*(keys.lease(LIFE) for keys in LANES), LANES[0].given(LIFE), *records_of(LIFE)]
    for key in kept:
        assert stage.redis.pexpire(key, 30_000)
    assert stage.call(heartbeat, LANES, "h", LIFE, (records_of(LIFE), LEASE_MS), LEASE_MS) is None
    assert all(0 < stage.redis.pttl(key) <= 30_000 for key in kept)
    assert not stage.redis.exists(*(keys.held(LIFE) for keys in LANES))
    # It may still run what it has: no other one gets that before the lease is over.
    assert stage.answer(id_) is ReturnCode.OK


def test_a_heartbeat_reports_what_is_held_and_says_whose_messages_are(stage: Stage) -> None:
    ids = [stage.send(n - 1, n, f"T{n}") for n in (1, 2)]
    stage.taken()
    stage.redis.hset(LANES[1].drains, "h", "{}")
    for key in (LANES[0].lease(LIFE), *records_of(LIFE)):
        assert stage.redis.pexpire(key, 1000)
    asked = [(ids[0], FENCE + 1), (ids[0], FENCE + 2), (ids[1], FENCE + 2), ("9-0", 5)]
    found = stage.call(heartbeat, LANES, "h", LIFE, (records_of(LIFE), LEASE_MS), LEASE_MS, asked)
    assert found is not None
    assert (found.drains, found.is_own) == ([b"", b"{}"], [True, False, True, False])
    held = [json.loads(stage.redis.get(keys.held(LIFE))) for keys in LANES]
    assert [one["fences"] for one in held] == [[FENCE + 1], [FENCE + 2]]
    assert held[0]["n"] > FENCE
    assert stage.redis.pttl(LANES[0].lease(LIFE)) > 1000
    assert stage.redis.pttl(LANES[0].given(LIFE)) > 1000
    assert all(stage.redis.pttl(record) > 1000 for record in records_of(LIFE))


def test_a_second_incarnation_waits_for_the_end_of_all_leases(stage: Stage) -> None:
    assert stage.enlist("second") is ReturnCode.HELD
    stage.redis.delete(LANES[0].lease(LIFE))
    assert stage.enlist("second") is ReturnCode.HELD
    assert not stage.redis.exists(LANES[0].lease("second"))
    assert stage.call(leave, LANES, "h", LIFE, ends_drain=False) is ReturnCode.OK
    assert stage.call(leave, LANES, "h", LIFE, ends_drain=False) is ReturnCode.LATE
    assert stage.enlist("second") is ReturnCode.OK
    assert [fields for _, fields in stage.redis.xrange(LANES[1].outcomes)] == [
        {"i": LIFE, "joined": "h"},
        {"i": LIFE, "gone": "h"},
        {"i": "second", "joined": "h"},
    ]


@pytest.mark.parametrize("ends_drain", [False, True])
@pytest.mark.parametrize("over", [(), (0,), (1,), (0, 1)])
def test_an_order_that_drains_the_consumer_ends_when_it_leaves_by_itself(
    stage: Stage, over: tuple[int, ...], ends_drain: bool
) -> None:
    for keys in LANES:
        stage.redis.hset(keys.drains, mapping={"h": "{}", "other": "{}"})
    for lane in over:
        stage.redis.delete(LANES[lane].lease(LIFE))
    code = stage.call(leave, LANES, "h", LIFE, ends_drain=ends_drain)
    assert code is (ReturnCode.LATE if len(over) == len(LANES) else ReturnCode.OK)
    ends = ends_drain and code is ReturnCode.OK
    assert [stage.redis.hkeys(keys.drains) for keys in LANES] == [["other"] if ends else ["h", "other"]] * 2


def test_copies_requests_and_messages_of_another_incarnation_are_dropped(stage: Stage) -> None:
    id_ = stage.send(0, 1)
    assert stage.taken() == [id_]
    stage.send(0, 1)
    assert stage.taken(has=(FENCE + 1,)) == []
    assert stage.answer(id_) is ReturnCode.OK
    stage.send(0, 1)
    stage.send(0, 2, "T2", bridge_incarnation="another")
    stage.send(0, 3, "T3", bridge_word="probe")
    stage.redis.lpush(LANES[0].queue("h"), "no JSON")
    assert stage.taken() == []
    assert stage.redis.llen(LANES[0].queue("h")) == 0


def test_the_bundle_of_an_older_leader_is_given_back(stage: Stage) -> None:
    body = json.dumps([["T1", 0, 1, [["1-0@p0", "t", {}], ["2-0@p0", "t", {}]]], ["T2", 2, 1, [["3-0@p0", "t", {}]]]])
    headers = {"bridge_fence": FENCE, "bridge_incarnation": LIFE, "task": "bridge.bundle", "id": "bundle"}
    stage.redis.lpush(LANES[0].queue("h"), json.dumps({"headers": headers, "body": body}))
    assert stage.taken() == []
    assert stage.outcomes(0) == [["1-0", FENCE, "B", 0, 0], ["3-0", FENCE + 2, "B", 0, 0]]


def test_a_suspect_is_given_alone_and_given_back_beside_others(stage: Stage) -> None:
    suspect, other = stage.send(0, 1, "T1", bridge_alone=1), stage.send(0, 2, "T2")
    assert stage.taken() == [suspect]
    assert stage.taken(has=(FENCE + 1,)) == [other]
    stage.send(1, 3, "T3", bridge_alone=1)
    assert stage.taken(has=(FENCE + 1, FENCE + 2)) == []
    assert stage.outcomes(1) == [["3-0", FENCE + 3, "B", 0, 0]]


def test_a_new_message_that_has_expired_is_dead_and_takes_no_slot(stage: Stage) -> None:
    seconds, us = stage.redis.time()
    now_ms = seconds * 1000 + us // 1000
    far = now_ms + 600_000
    stage.send(0, 1, "T1", bridge_own=[3, None, now_ms], bridge_alone=1)
    stage.send(0, 2, "T2", bridge_own=[None, None, 0])
    # One that was begun has no such time.
    ids = [stage.send(0, 3, "T3", bridge_own=[3, 5, None]), stage.send(0, 4, "T4", bridge_own=[None, None, far])]
    assert stage.taken(slots=2) == ids
    # The outcomes are those of a worker.
    found = decode(json.dumps(stage.outcomes(0)).encode())
    assert found == [Outcome(f"{n}-0", FENCE + n, Kind.DEAD, error=EXPIRED) for n in (1, 2)]


def test_a_full_server_takes_outcomes_and_heartbeats(stage: Stage) -> None:
    ids = [stage.send(0, n, f"T{n}") for n in (1, 2)]
    assert stage.taken(slots=1) == ids[:1]
    # Another connection must not need memory to begin
    stage.redis.config_set("maxmemory", 1)
    try:
        assert stage.answer(ids[0]) is ReturnCode.OK
        assert stage.call(heartbeat, LANES, "h", LIFE, (records_of(LIFE), LEASE_MS), LEASE_MS) is not None
        assert stage.taken() == ids[1:]
    finally:
        stage.redis.config_set("maxmemory", 0)


def test_nobody_registers_in_a_lane_that_its_stream_has_left(stage: Stage) -> None:
    # Given a master that does not know yet that its stream has other partitions
    stage.redis.set(layout_key("s"), json.dumps({"partitions": 3, "generation": 1, "since_ms": 1}))
    assert stage.enlist("another") is ReturnCode.LAYOUT
    assert not stage.redis.exists(*(keys.lease("another") for keys in LANES), *records_of("another"))
    stage.redis.delete(layout_key("s"))
    assert stage.enlist("another") is not ReturnCode.LAYOUT
