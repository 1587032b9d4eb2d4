"""Spilled tickets: what is not in memory is read again, in order, and nothing twice."""

from __future__ import annotations

import pytest

from bridge.lane import id_key
from bridge.outcomes import Kind
from tests.unit.lane_world import LaneWorld


def finish_all(world: LaneWorld) -> None:
    """Works off what is there, checking at each step."""
    for _ in range(5000):
        running = world.running()
        if not running:
            return
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        world.check()
    raise AssertionError("it does not end")


def test_a_ticket_keeps_its_oldest_messages_in_memory_and_the_rest_in_redis() -> None:
    world = LaneWorld(window=100)
    world.push("hot", count=300)
    world.read()
    assert world.lane.held <= 100
    assert world.lane.tickets["hot"].spilled_from is not None
    world.check()


def test_a_spilled_ticket_is_done_in_order_to_its_end() -> None:
    # Given far more messages of three tickets than fit, mixed
    world = LaneWorld(window=100)
    for _ in range(100):
        for ticket in ("a", "b", "c"):
            world.push(ticket, count=3)
    world.join("w1@h")
    for _ in range(20):
        world.read(50)
    # When all of it is worked off
    finish_all(world)
    # Then it was done in the order of the stream, and nothing is spilled any more
    for ticket in ("a", "b", "c"):
        mine = [id_ for id_ in world.store.done if world.ticket_of(id_) == ticket]
        assert len(mine) == 300
        assert mine == sorted(mine, key=id_key)
    assert not world.lane.spilled
    assert not world.lane.tickets


@pytest.mark.parametrize("answered", [1, 5, 40])
def test_entries_that_are_on_their_way_to_the_master_are_not_taken_twice(answered: int) -> None:
    # Given a spilled ticket, and new entries of it that the server handed out, whose reply was not read yet
    world = LaneWorld(window=100)
    world.join("w1@h")
    world.push("hot", count=120)
    world.read()
    assert world.lane.spilled
    world.push("hot", count=40)
    world.hand_out(answered)
    # When the ticket is refilled to the end of what is pending, and then the reply is read
    finish_all(world)
    world.read()
    world.check()
    world.read()
    finish_all(world)
    # Then each was done once
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)
    assert world.store.fence == 160


def test_a_new_leader_reads_a_spilled_lane_in_order() -> None:
    world = LaneWorld(window=100)
    world.join("w1@h")
    world.push("hot", count=250)
    world.push("cold", count=2)
    world.read(200)
    world.rebuild()
    world.check()
    world.read()
    finish_all(world)
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)


def test_what_fails_in_a_spilled_ticket_stays_before_the_rest() -> None:
    world = LaneWorld(window=100)
    world.join("w1@h")
    world.push("hot", count=200)
    world.read()
    [(parcel, ticket)] = world.running()
    world.step([world.outcome(parcel, ticket, Kind.FAILED, delay_ms=500)])
    world.check()
    assert not world.running()
    world.now += 500
    world.step()
    finish_all(world)
    assert world.store.done == list(world.store.entries)


def test_an_entry_that_was_deleted_while_it_was_spilled_is_a_dead_letter() -> None:
    # Given a spilled ticket, and two entries that somebody deletes: one in memory, one not
    world = LaneWorld(window=100)
    world.join("w1@h")
    ids = world.push("hot", count=200)
    world.read()
    here = world.lane.tickets["hot"].waiting[-1].id
    gone = ids[-3]
    assert id_key(gone) > (world.lane.tickets["hot"].spilled_from or (0, 0))
    for id_ in (here, gone):
        world.store.entries[id_] = []
    # When the rest is worked off
    for _ in range(1000):
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    # Then what was in memory was handled, and what was not is told, not forgotten
    assert world.store.dead == [gone]
    assert world.store.done == [id_ for id_ in ids if id_ != gone]
    assert world.store.pending == {}
