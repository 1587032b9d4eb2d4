"""reroute.lua and adopt.lua: tickets move only when the lease is over, and stray entries come back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict, NotLeading
from bridge.routing.return_codes import ReturnCode
from bridge.routing.states import State
from bridge.routing.transitions import adopt, advance, read, reroute
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import HOSTILE, MASTER, OPENING, World, incarnation

pytestmark = pytest.mark.scripts

GONE = incarnation("w1@a")


def waiting_record(world: World, ticket: str, id_: str) -> str:
    return records.record(0, records.tail("", "", 1, [id_], 5, f"lost with w1@a: {ticket}"))


def move(world: World, last_outcome: str = "2-0", expected: str | None = None) -> ReturnCode:
    """Takes "busy" back from w1@a."""
    new = waiting_record(world, "busy", world.busy[0])
    held = world.busy_record if expected is None else expected
    return reroute(world.client, world.lead, GONE, last_outcome, [("busy", held, new, 77)], world.busy[:2])


def end_lease(world: World) -> None:
    world.client.delete(world.keys.lease(GONE))


def test_the_tickets_of_an_ended_incarnation_move(world: World) -> None:
    keys = world.keys
    end_lease(world)
    before = world.snapshot()
    assert move(world) is ReturnCode.OK
    expected = deepcopy(before)
    expected[keys.tickets]["value"]["busy"] = waiting_record(world, "busy", world.busy[0])
    expected[keys.retries]["value"]["busy"] = 77.0
    expected[keys.counts]["value"]["rerouted"] = "1"
    for id_ in world.busy[:2]:
        expected[keys.stream]["value"]["groups"][keys.group]["pending"][id_] = MASTER
    assert world.snapshot() == expected
    assert [world.state(id_) for id_ in world.busy] == [State.AWAITING_RETRY] + [State.WAITING] * 3


def test_a_counter_that_holds_no_number_keeps_no_ticket(world: World) -> None:
    end_lease(world)
    world.client.hset(world.keys.counts, "rerouted", "garbage")
    assert move(world) is ReturnCode.OK
    assert world.snapshot()[world.keys.counts]["value"]["rerouted"] == "garbage"


def test_a_ticket_that_was_to_be_parked_is_parked_in_the_same_step(world: World) -> None:
    keys = world.keys
    end_lease(world)
    before = world.snapshot()
    parked = records.record(records.PARKED, records.tail("", "", 1, [], 5, "an order"))
    moves = [("busy", world.busy_record, parked, None)]
    assert reroute(world.client, world.lead, GONE, "2-0", moves, world.busy[:2]) is ReturnCode.OK
    expected = deepcopy(before)
    expected[keys.tickets]["value"]["busy"] = parked
    expected[keys.counts]["value"]["rerouted"] = "1"
    for id_ in world.busy[:2]:
        expected[keys.stream]["value"]["groups"][keys.group]["pending"][id_] = MASTER
    assert world.snapshot() == expected
    assert [world.state(id_) for id_ in world.busy] == [State.WAITING] * 4


def test_while_the_lease_holds_nothing_moves(world: World) -> None:
    before = world.snapshot()
    assert move(world) is ReturnCode.ALIVE
    assert world.snapshot() == before


def test_an_outcome_that_was_not_read_yet_comes_first(world: World) -> None:
    # Given a consumer that died after it wrote the outcome 2-0
    end_lease(world)
    before = world.snapshot()
    assert move(world, last_outcome="1-0") is ReturnCode.UNREAD
    assert world.snapshot() == before
    # When the leader has read it
    assert move(world, last_outcome="2-0") is ReturnCode.OK


def test_its_outcome_is_found_behind_thousands_of_others(world: World) -> None:
    # Given more unread outcomes than one look takes in, the last of them from the one that is gone
    end_lease(world)
    with world.client.pipeline(transaction=False) as pipe:
        for _ in range(10_000):
            pipe.xadd(world.keys.outcomes, {"i": "somebody else", "o": "[]"})
        pipe.xadd(world.keys.outcomes, {"i": GONE, "o": "[]"})
        pipe.execute()
    before = world.client.hgetall(world.keys.tickets)
    assert move(world, last_outcome="2-0") is ReturnCode.UNREAD
    assert world.client.hgetall(world.keys.tickets) == before


def test_a_record_that_is_not_as_expected_moves_nothing(world: World) -> None:
    # Given two tickets, the second of which is not where the leader thinks
    end_lease(world)
    new = waiting_record(world, "busy", world.busy[0])
    moves = [("busy", world.busy_record, new, 77), ("other", "[1,1]", new, 78)]
    before = world.snapshot()
    code = reroute(world.client, world.lead, GONE, "2-0", moves, world.busy[:2])
    assert code is ReturnCode.CONFLICT
    assert world.snapshot() == before
    assert move(world, expected="") is ReturnCode.CONFLICT
    assert world.snapshot() == before


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_that_does_not_lead_moves_nothing(how: Any, world: World) -> None:
    end_lease(world)
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        move(world)
    assert world.snapshot() == before


def test_a_message_that_was_acknowledged_by_hand_comes_again(world: World) -> None:
    # Only its outcome makes a message done: nothing is lost because somebody used XACK
    end_lease(world)
    world.client.xack(world.keys.stream, world.keys.group, world.busy[0])
    assert move(world) is ReturnCode.OK
    pending = world.snapshot()[world.keys.stream]["value"]["groups"][world.keys.group]["pending"]
    assert pending[world.busy[0]] == MASTER


def test_many_tickets_move_in_one_step(fresh: World) -> None:
    # Given 2,000 tickets of one incarnation, with names that hide nothing
    names = [f"{HOSTILE[i % len(HOSTILE)][:400]}/{i}" for i in range(2000)]
    with fresh.at_once():
        ids = [fresh.push(name)[0] for name in names]
    fresh.read()
    fresh.client.xclaim(fresh.keys.stream, fresh.keys.group, "w1@a", 0, ids, justid=True)
    held = [records.record(i + 1, records.tail("w1@a", GONE, 1, [ids[i]], 1)) for i in range(2000)]
    fresh.client.hset(fresh.keys.tickets, mapping=dict(zip(names, held, strict=True)))
    new = [waiting_record(fresh, "t", id_) for id_ in ids]
    moves = [(names[i], held[i], new[i], i) for i in range(2000)]
    assert reroute(fresh.client, fresh.lead, GONE, "0-0", moves, ids) is ReturnCode.OK
    after = fresh.snapshot()
    assert after[fresh.keys.tickets]["value"] == dict(zip(names, new, strict=True))
    assert after[fresh.keys.retries]["value"] == {name: float(i) for i, name in enumerate(names)}
    assert set(after[fresh.keys.stream]["value"]["groups"][fresh.keys.group]["pending"].values()) == {MASTER}


# -- adopt ---------------------------------------------------------------------------------------------------------


def test_entries_are_pending_where_they_belong_wherever_they_were(world: World) -> None:
    # Given entries that somebody claimed by hand, and one that somebody acknowledged by hand
    keys = world.keys
    world.client.xclaim(keys.stream, keys.group, "a stranger", 0, world.idle[:2], justid=True)
    world.client.xack(keys.stream, keys.group, world.late[1])
    before = world.snapshot()
    # When they are adopted
    assert adopt(world.client, world.lead, MASTER, [*world.idle[:2], world.late[1]]) == 3
    # Then they are the master's, and nothing else changed
    expected = deepcopy(before)
    for id_ in (*world.idle[:2], world.late[1]):
        expected[keys.stream]["value"]["groups"][keys.group]["pending"][id_] = MASTER
    assert world.snapshot() == expected
    assert world.state(world.idle[0]) is State.WAITING


def test_a_thousand_entries_are_adopted_at_once(fresh: World) -> None:
    ids = fresh.pushed("t", 1000)
    fresh.client.xclaim(fresh.keys.stream, fresh.keys.group, "a stranger", 0, ids, justid=True)
    assert adopt(fresh.client, fresh.lead, MASTER, ids) == 1000


def test_an_entry_that_was_deleted_from_the_stream_does_not_stop_the_others(world: World) -> None:
    keys = world.keys
    world.client.xclaim(keys.stream, keys.group, "a stranger", 0, world.idle[:2], justid=True)
    world.client.xdel(keys.stream, world.idle[0])
    adopt(world.client, world.lead, MASTER, world.idle[:2])
    assert world.state(world.idle[1]) is State.WAITING


def test_without_the_group_nothing_is_adopted_or_moved_or_read(world: World) -> None:
    world.client.xgroup_destroy(world.keys.stream, world.keys.group)
    before = world.snapshot()
    with pytest.raises(LaneConflict):
        adopt(world.client, world.lead, MASTER, world.idle[:2])
    with pytest.raises(LaneConflict):
        read(world.client, world.lead, 10)
    with pytest.raises(LaneConflict):
        advance(world.client, world.lead, OPENING, Batch(acknowledged=world.busy[:1], counts={"done": 1}))
    assert world.snapshot() == before
    world.client.delete(world.keys.lease(incarnation("w1@a")))
    before = world.snapshot()
    moves = [("busy", world.busy_record, "[0,whatever]", 1)]
    code = reroute(world.client, world.lead, incarnation("w1@a"), "2-0", moves, world.busy[:2])
    assert code is ReturnCode.NOGROUP
    assert world.snapshot() == before


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_that_does_not_lead_adopts_nothing(how: Any, world: World) -> None:
    world.client.xclaim(world.keys.stream, world.keys.group, "a stranger", 0, world.idle[:2], justid=True)
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        adopt(world.client, world.lead, MASTER, world.idle[:2])
    assert world.snapshot() == before
