"""The place of a replayed message, and parked tickets, in a lane without a server: one case after the other."""

from __future__ import annotations

import json

import pytest

from bridge.leader.picture.oldest_undone import oldest_undone
from bridge.protocol.outcome_entries import GivenUp
from bridge.protocol.outcomes import Kind
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld


def next_outcome(world: LaneWorld, kind: Kind, **more: int) -> str:
    """Ends the running message with this outcome. Returns its id."""
    [(parcel, ticket)] = world.running()
    id_ = parcel.runs[ticket][1][0]
    world.step([world.outcome(parcel, ticket, kind, **more)])
    return id_


#: With room in memory for replayed messages, and without.
WITH_AND_WITHOUT_ROOM = pytest.mark.parametrize("window", [100, 1])


def work_off(world: LaneWorld) -> list[str]:
    """Lets all messages succeed. Returns their ids in the order of success."""
    done = []
    for _ in range(1000):
        world.now += 20_000
        world.step()
        if not world.running():
            break
        done.append(next_outcome(world, Kind.DONE))
        world.check()
    assert world.store.pending == {}
    return done


def begin(count: int, dead: int, window: int = 100) -> tuple[LaneWorld, list[str]]:
    """One ticket, whose first ``dead`` messages are dead and whose next one is in flight."""
    world = LaneWorld(bundle_ms=0.0, window=window)
    world.join("w1@h", 1)
    ids = world.push("T", count=count)
    world.read()
    for _ in range(dead):
        next_outcome(world, Kind.DEAD)
    assert world.store.dead == ids[:dead]
    return world, ids


@WITH_AND_WITHOUT_ROOM
def test_a_message_in_flight_stays_first_when_it_fails_later(window: int) -> None:
    world, ids = begin(3, dead=1, window=window)
    world.order(do="replay", letters=[ids[0]])
    world.check()
    next_outcome(world, Kind.FAILED, delay_ms=100)
    world.check()
    assert work_off(world) == [ids[1], ids[0], ids[2]]


@WITH_AND_WITHOUT_ROOM
def test_an_unstarted_message_lets_a_replayed_one_go_first(window: int) -> None:
    world, ids = begin(3, dead=1, window=window)
    world.order(do="replay", letters=[ids[0]])
    next_outcome(world, Kind.RETURNED)
    assert work_off(world) == ids


@WITH_AND_WITHOUT_ROOM
def test_messages_cut_off_with_their_consumer_stay_first_under_the_next_leader(window: int) -> None:
    for another in (False, True):
        world, ids = begin(3, dead=1, window=window)
        world.order(do="replay", letters=[ids[0]])
        world.leave("life1")
        world.check()
        if another:
            world.rebuild()
            world.check()
        world.join("w2@h", 1)
        assert work_off(world) == [ids[1], ids[0], ids[2]]


@WITH_AND_WITHOUT_ROOM
def test_an_unstarted_message_of_a_lost_consumer_lets_a_replayed_one_go_first(window: int) -> None:
    # Given two runs at a worker, one of which the death notice names
    world, ids = begin(3, dead=1, window=window)
    [consumer] = world.lane.consumers.values()
    world.lease_watch.gave_up("life1", GivenUp())
    world.order(do="replay", letters=[ids[0]])
    assert consumer.messages == 1
    # When it is lost, then the run that had not started waits for the replayed message
    world.leave("life1")
    world.check()
    world.join("w2@h", 1)
    assert work_off(world) == ids


@WITH_AND_WITHOUT_ROOM
def test_a_failure_that_is_not_charged_lets_a_replayed_message_go_first(window: int) -> None:
    world, ids = begin(3, dead=1, window=window)
    world.order(do="replay", letters=[ids[0]])
    # When the message that ran cannot be given up, since there is no room for its letter
    world.settling._letters_full = lambda: True
    next_outcome(world, Kind.DEAD)
    world.check()
    assert work_off(world) == ids


@WITH_AND_WITHOUT_ROOM
def test_several_replays_come_in_the_order_of_their_ids_behind_what_awaits_a_retry(window: int) -> None:
    world, ids = begin(4, dead=2, window=window)
    next_outcome(world, Kind.FAILED, delay_ms=10_000)
    world.order(do="replay", letters=[ids[1]])
    world.order(do="replay", letters=[ids[0]])
    world.check()
    world.rebuild()
    world.check()
    assert work_off(world) == [ids[2], ids[0], ids[1], ids[3]]


@WITH_AND_WITHOUT_ROOM
def test_a_replay_in_the_step_that_releases_its_ticket_is_not_handled_twice(window: int) -> None:
    # Given a parked ticket with a replayed message, and a younger dead one
    world, ids = begin(4, dead=1, window=window)
    world.order(do="park", ticket="T")
    next_outcome(world, Kind.DEAD)
    world.order(do="replay", letters=[ids[0]])
    # When it is released, and the younger one is replayed, before any message was read again
    batch = Batch(keep_outcomes_from="1-0")
    with world.patched():
        for order in ({"do": "release", "ticket": "T"}, {"do": "replay", "letters": [ids[1]]}):
            world.operator_orders.take("order", json.dumps(order).encode(), batch)
    world.operator_orders._emptied.clear()
    world.advance(batch)
    world.refill_now()
    world.check()
    assert work_off(world) == ids


def test_a_ticket_is_released_by_a_leader_that_has_read_nothing_new() -> None:
    world, ids = begin(4, dead=0)
    world.order(do="park", ticket="T")
    next_outcome(world, Kind.DONE)
    assert set(world.store.pending.values()) == {world.lane.parked_name("T")}
    world.rebuild()
    world.order(do="release", ticket="T")
    world.check()
    assert work_off(world) == ids[1:]


def test_begun_messages_come_first_though_more_were_put_back_than_memory_holds() -> None:
    # Given a parked ticket whose begun message is behind sixty replayed ones. Fifty may be in memory
    world, ids = begin(62, dead=60)
    next_outcome(world, Kind.FAILED, delay_ms=10_000)
    world.order(do="park", ticket="T")
    world.order(do="replay", letters=ids[:60])
    world.order(do="release", ticket="T")
    assert world.lane.cap == 50
    world.check()
    assert work_off(world) == [ids[60], *ids[:60], ids[61]]


@WITH_AND_WITHOUT_ROOM
def test_the_floor_is_below_the_oldest_message_that_was_put_back(window: int) -> None:
    world, ids = begin(3, dead=1, window=window)
    next_outcome(world, Kind.FAILED, delay_ms=10_000)
    assert oldest_undone(world.lane) == id_key(ids[1])
    world.order(do="replay", letters=[ids[0]])
    assert oldest_undone(world.lane) == id_key(ids[0])
    world.order(do="park", ticket="T")
    assert oldest_undone(world.lane) == id_key(ids[0])
    world.order(do="release", ticket="T")
    assert oldest_undone(world.lane) == id_key(ids[0])


@WITH_AND_WITHOUT_ROOM
@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("leader_ends", [False, True])
def test_an_order_to_park_outlives_the_consumer_and_the_leader(
    leader_ends: bool, ran: bool, failures: int, window: int
) -> None:
    # Given a ticket that is to be parked after its run
    world, ids = begin(3, dead=0, window=window)
    for _ in range(failures):
        next_outcome(world, Kind.FAILED, delay_ms=0)
        world.step()
    [life] = world.registered
    assert world.order(do="park", ticket="T", reason="an order")["in_flight"]
    # When its consumer ends, and perhaps the leader, too, as soon as it has moved the ticket
    if not ran:
        world.lease_watch.given_up[life] = GivenUp()
    world.leave(life, leader_ends=leader_ends)
    # Then it is parked, and its messages come again in their order after the release
    world.check()
    ticket = world.lane.parked["T"]
    assert records.parse(ticket.record).cause == "an order"
    assert (ticket.attempt, ticket.losses) == (1 + failures, int(ran))
    assert ticket.front_id == (ids[0] if ran or failures else "")
    world.join("w2@h")
    assert not world.running()
    world.order(do="release", ticket="T")
    world.check()
    assert work_off(world) == ids
