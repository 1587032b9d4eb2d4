"""Parked tickets and replayed messages: the order is kept exactly, also through other changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.operate.orders import give
from bridge.protocol.orders import ORDERS
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, Kept, LaneUnderTest, kept_in_each_mode

kept = kept_in_each_mode()


@pytest.fixture
def lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A lane with a master and a worker."""
    yield from kept.lend()


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def own_lane(
    request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


def order(lane: LaneUnderTest, do: str, **fields: Any) -> dict[str, Any]:
    return give(lane.server.client(), lane.keys, ORDERS[do](**fields))


def shelved(lane: LaneUnderTest, ticket: str) -> int:
    """How many messages are pending under the parked ticket's own name."""
    name = lane.keys.parked_consumer("master", ticket)
    found: Any = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    return sum(entry["pending"] for entry in found if entry["name"] == name)


def letters_of(lane: LaneUnderTest, ticket: str) -> list[str]:
    found: Any = lane.redis.xrange(lane.keys.dead)
    return [id_ for id_, fields in found if fields["ticket_id"] == ticket]


def push_flaky(lane: LaneUnderTest, ticket: str, n: int, until: int = 99) -> str:
    return lane.push(ticket, {"n": n, "until": until}, task="counter.flaky")


def restart(lane: LaneUnderTest, master: Any) -> None:
    """Starts another leader, which knows only what is in Redis."""
    master.kill()
    master.wait()
    master.start()
    wait_until(lambda: lane.redis.exists(lane.keys.leader), description="the next leader")


@pytest.mark.parametrize(
    "record", [b"[1", b"\xff", b'[0,0,"","",1,[],1,""]', b'[5,1,"w1@h","i",1,["x-y"],1,""]'], ids=ascii
)
def test_a_ticket_whose_record_cannot_be_read_is_parked_and_others_go_on(lane: LaneUnderTest, record: bytes) -> None:
    [master] = lane.nodes.masters()
    # Given messages in flight, and no leader
    lane.push_many(2, 3, gate="opened")
    wait_until(lambda: len(lane.held()) == 2, description="the second message of each to run")
    master.kill()
    master.wait()
    # When somebody damages a record, and writes one of a ticket that there cannot be
    lane.redis.hset(lane.keys.tickets, mapping={b"T0": record, b"\xff": b"[1"})
    master.start()
    wait_until(lambda: "cannot be read" in master.logs(), description="the next leader to say so")
    lane.open("opened")
    # Then the other ticket goes on, and this one when it is released
    wait_until(lambda: lane.log("T1") == [0, 1, 2], description="the other ticket to go on")
    wait_until(lambda: shelved(lane, "T0") == 2, description="the messages of this one to be put aside")
    order(lane, "release", ticket="T0")
    lane.wait_done(6)
    # The effects of what ran meanwhile were refused
    assert lane.log("T0") == [0, 1, 2]
    assert master.logs().count("Traceback") == 0
    lane.redis.hdel(lane.keys.tickets, b"\xff")


def test_a_ticket_is_parked_in_every_state_and_goes_on_in_order(lane: LaneUnderTest) -> None:
    [master] = lane.nodes.masters()
    # Given tickets that are idle, in flight with more behind, in backoff, and one that is left alone
    order(lane, "park", ticket="idle", reason="a test")
    for n in range(30):
        lane.push("busy", {"n": n, "ms": 20})
        lane.push("idle", {"n": n})
    lane.push("slow", {"countdown": 30, "n": 0}, task="counter.asks_again")
    lane.push("slow", {"n": 1})
    wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1, description="the backoff")
    wait_until(lambda: lane.log("busy"), description="the busy one to begin")
    # When all but one are parked
    for ticket in ("busy", "slow"):
        order(lane, "park", ticket=ticket)
    wait_until(lambda: shelved(lane, "slow") == 2, description="the one in backoff to be parked")
    wait_until(lambda: shelved(lane, "idle") == 30, description="messages of an idle one to be put aside")
    wait_until(lambda: shelved(lane, "busy") == 30 - len(lane.log("busy")), description="what ran to be done")
    # Then they stand still, also under the next leader, and other tickets do not
    before = lane.log("busy")
    restart(lane, master)
    for n in range(5):
        lane.push("other", {"n": n})
    lane.push("busy", {"n": 30})
    wait_until(lambda: lane.log("other") == list(range(5)), description="others to go on")
    wait_until(lambda: shelved(lane, "busy") == 31 - len(before), description="what came meanwhile to be put aside")
    assert (lane.log("busy"), lane.log("idle"), lane.log("slow")) == (before, [], [])
    # When they are released, everything comes in order
    restart(lane, master)
    for ticket in ("busy", "slow", "idle"):
        assert order(lane, "release", ticket=ticket)["ok"]
    lane.wait_done(5 + 31 + 30 + 2)
    assert (lane.log("busy"), lane.log("idle"), lane.log("slow")) == (list(range(31)), list(range(30)), [0, 1])
    lane.assert_no_overlap()
    lane.assert_at_rest()
    names: Any = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    assert not [entry["name"] for entry in names if "/parked/" in entry["name"]]


def test_a_dead_message_parks_its_ticket_and_its_replay_comes_first(own_lane: LaneUnderTest) -> None:
    own_lane.env["COUNTER_ON_DEAD"] = "park"
    master = own_lane.master("m1")
    own_lane.worker("w1")
    push_flaky(own_lane, "T", 0)
    for n in range(1, 5):
        own_lane.push("T", {"n": n})
    wait_until(lambda: shelved(own_lane, "T") == 4, description="the ticket to be parked")
    [letter] = letters_of(own_lane, "T")
    own_lane.redis.set("log:fixed", 1)
    restart(own_lane, master)
    # The replayed message comes before all messages that are younger
    assert order(own_lane, "replay", letters=[letter])["replayed"] == [letter]
    wait_until(lambda: shelved(own_lane, "T") == 5, description="it to stand with the others")
    restart(own_lane, master)
    order(own_lane, "release", ticket="T")
    own_lane.wait_done(6)
    assert own_lane.log("T") == [0, 1, 2, 3, 4]
    own_lane.assert_at_rest()


def test_replays_go_before_everything_that_was_not_begun(lane: LaneUnderTest) -> None:
    [master] = lane.nodes.masters()
    # Given two dead messages, a younger one that awaits a retry, and one behind it
    push_flaky(lane, "T", 0)
    push_flaky(lane, "T", 1)
    wait_until(lambda: len(letters_of(lane, "T")) == 2, description="two dead letters")
    lane.redis.set("log:fixed", 1)
    lane.push("T", {"countdown": 3600, "n": 2}, task="counter.asks_again")
    lane.push("T", {"n": 3})
    wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1, description="the younger one to await its retry")
    # When they are replayed, the later one first, and the leader changes at once
    first, second = letters_of(lane, "T")
    order(lane, "replay", letters=[second])
    order(lane, "replay", letters=[first])
    master.kill_main()
    master.wait()
    # The backoff of the younger one ends then, and not before the orders, however slow they are
    found: Any = lane.redis.zrange(lane.keys.retries, 0, -1)
    lane.redis.zadd(lane.keys.retries, {found[0]: time.time() * 1000}, xx=True)
    master.start()
    # Then the one that was begun stays first, and the others come in their order
    lane.wait_done(2 + 4)
    assert lane.log("T") == [2, 0, 1, 3]
    assert letters_of(lane, "T") == []
    lane.assert_at_rest()


def test_a_replay_beside_what_is_in_flight_waits_for_no_more_than_that(lane: LaneUnderTest) -> None:
    push_flaky(lane, "T", 0)
    wait_until(lambda: letters_of(lane, "T"), description="a dead letter")
    lane.redis.set("log:fixed", 1)
    lane.push("T", {"n": 1, "gate": "open"}, task="counter.held")
    wait_until(lambda: in_flight_of(lane, "T"), description="the younger one to run")
    lane.push("T", {"n": 2})
    order(lane, "replay", letters=letters_of(lane, "T"))
    lane.open("open")
    lane.wait_done(4)
    assert lane.log("T") == [1, 0, 2]
    lane.assert_at_rest()


def in_flight_of(lane: LaneUnderTest, ticket: str) -> bool:
    text: Any = lane.redis.hget(lane.keys.tickets, ticket)
    return text is not None and json.loads(text)[0] > 0


@pytest.mark.parametrize("own_lane", ["10"], indirect=True, ids=["bundles"])
@pytest.mark.long
def test_thousands_behind_parked_tickets_hold_no_window(own_lane: LaneUnderTest) -> None:
    own_lane.env["COUNTER_WINDOW"] = "100"
    master = own_lane.master("m1")
    own_lane.worker("w1")
    order(own_lane, "park", ticket="T0")
    # Given 10,000 messages of parked tickets; one was spilled when it was parked
    own_lane.push("T1", {"n": 0, "ms": 1000})
    with own_lane.redis.pipeline(transaction=False) as pipe:
        for n in range(5000):
            for ticket in ("T0", "T1"):
                number = n if ticket == "T0" else n + 1
                pipe.xadd(own_lane.keys.stream, {"ticket_id": ticket, "payload": json.dumps({"n": number})})
        pipe.execute()
    order(own_lane, "park", ticket="T1")
    began = time.monotonic()
    # When others come behind them
    for n in range(200):
        own_lane.push(f"O{n % 20}", {"n": n // 20})
    wait_until(lambda: all(len(own_lane.log(f"O{i}")) == 10 for i in range(20)), description="others to go on")
    print(f"200 messages behind 10,000 parked ones: {time.monotonic() - began:.2f} s")
    holds_for(lambda: not own_lane.log("T0"), description="the parked one stands still", duration_s=0.2)
    restart(own_lane, master)
    done = own_lane.count("done")
    assert order(own_lane, "release", ticket="T0")["messages"] == 5000
    order(own_lane, "release", ticket="T1")
    own_lane.wait_done(10_201)
    assert done < 10_201
    assert own_lane.log("T0") == list(range(5000))
    assert own_lane.log("T1") == list(range(5001))
    own_lane.assert_at_rest()
