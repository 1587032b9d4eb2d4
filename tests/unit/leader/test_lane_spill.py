"""Spilled tickets: messages outside memory are read again, in order, and none twice."""

from __future__ import annotations

import pytest

from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld


def finish_all(world: LaneWorld) -> None:
    """Handles all messages, and checks the lane at each step."""
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


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_spilled_tickets_are_done_in_order_to_their_end(page: int) -> None:
    # Given far more messages of three tickets than fit, mixed, and read again in pages of any size
    world = LaneWorld(page=page, window=100)
    for _ in range(100):
        for ticket in ("a", "b", "c"):
            world.push(ticket, count=3)
    world.join("w1@h")
    for _ in range(20):
        world.read(50)
    # When all are handled
    finish_all(world)
    # Then they were done in stream order, and none is spilled any more
    for ticket in ("a", "b", "c"):
        mine = [id_ for id_ in world.store.done if world.ticket_of(id_) == ticket]
        assert len(mine) == 300
        assert mine == sorted(mine, key=id_key)
    assert not world.lane.spilled
    assert not world.lane.tickets


@pytest.mark.parametrize("answered", [1, 5, 40])
def test_entries_that_are_on_their_way_to_the_master_are_not_taken_twice(answered: int) -> None:
    # Given a spilled ticket with new entries that the server has sent, and whose reply was not read yet
    world = LaneWorld(window=100)
    world.join("w1@h")
    world.push("hot", count=120)
    world.read()
    assert world.lane.spilled
    world.push("hot", count=40)
    world.hand_out(answered)
    # When the ticket is refilled to the end of the pending list, and then the reply is read
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


def test_a_failed_message_of_a_spilled_ticket_stays_first() -> None:
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


@pytest.mark.parametrize("page", [1, 5, 16])
def test_tickets_of_different_speed_lose_nothing_when_one_of_them_is_refilled(
    page: int,
) -> None:
    # Given two spilled tickets, one running and the other in backoff
    world = LaneWorld(page=page, window=100)
    world.join("w1@h")
    for _ in range(100):
        world.push("fast")
        world.push("slow")
    world.read()
    slow = next((parcel, ticket) for parcel, ticket in world.running() if ticket == "slow")
    world.step([world.outcome(*slow, Kind.FAILED, delay_ms=1000)])
    # When the first is refilled several times, and then the other goes on
    finish_all(world)
    assert len(world.store.done) == 100
    world.now += 1000
    world.step()
    finish_all(world)
    # Then nothing is missing
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("offset", range(4))
def test_a_ticket_that_was_read_in_part_is_read_on_from_there(offset: int, page: int) -> None:
    # Given two spilled tickets, one with few messages between those of the other
    world = LaneWorld(page=page, window=100, bundle_ms=0.0)
    world.join("w1@h")
    for _ in range(35):
        world.push("many")
        world.push("few")
    world.push("many", count=offset)
    for _ in range(60):
        world.push("many", count=3)
        world.push("few")
    world.read()
    # When the first has room, and the other is refilled
    for ticket, count in (("few", 22), ("many", 40)):
        for _ in range(count):
            found = next((parcel, name) for parcel, name in world.running() if name == ticket)
            world.step([world.outcome(*found, Kind.DONE)])
            world.check()
    # Then nothing is missing in the end
    finish_all(world)
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)


def test_a_message_in_memory_is_handled_though_its_entry_was_deleted() -> None:
    # Given a ticket in backoff, whose entries are deleted by hand, behind the first spilled message of another ticket
    world = LaneWorld(window=100)
    world.join("w1@h")
    hot = world.push("hot", count=150)
    slow = world.push("slow", count=2)
    world.read()
    found = next((parcel, ticket) for parcel, ticket in world.running() if ticket == "slow")
    world.step([world.outcome(*found, Kind.FAILED, delay_ms=1000)])
    world.store.entries[slow[1]] = []
    # When the other ticket is refilled past them
    for _ in range(1000):
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    world.now += 1000
    for _ in range(3):
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    # Then they are done, once, and none is a dead letter
    assert world.store.done == [*hot, *slow]
    assert world.store.dead == []


def test_an_entry_that_was_deleted_while_it_was_spilled_is_a_dead_letter() -> None:
    # Given a spilled ticket, and two entries that are deleted by hand: one in memory, one not
    world = LaneWorld(window=100)
    world.join("w1@h")
    ids = world.push("hot", count=200)
    world.read()
    here = world.lane.tickets["hot"].waiting[-1].id
    gone = ids[-3]
    assert id_key(gone) > (world.lane.tickets["hot"].spilled_from or (0, 0))
    for id_ in (here, gone):
        world.store.entries[id_] = []
    # When the rest is handled
    for _ in range(1000):
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    # Then the message in memory was handled, and the other one is a dead letter
    assert world.store.dead == [gone]
    assert world.store.done == [id_ for id_ in ids if id_ != gone]
    assert world.store.pending == {}


@pytest.mark.parametrize("tickets", [1, 5, 40])
def test_the_bytes_in_memory_are_bounded(tickets: int) -> None:
    # Given far more bytes than may be in memory, of payloads of any size
    world = LaneWorld(page=10, max_payload=200_000, window=50_000, window_bytes=1024 * 1024)
    for n in range(400):
        world.push(f"T{n % tickets}", payload=b'"%b"' % (b"x" * (7919 * n % 60_000)))
    world.join("w1@h")
    # When they are read, as long as the lane has room, and handled
    for _ in range(1000):
        while not world.lane.has_enough_work and world.store.unread():
            world.read(10)
            assert world.lane.bytes <= 1024 * 1024 + 10 * 61_000
        finish_some(world)
        if not world.store.unread() and not world.running():
            break
    # Then no message is missing, and each ticket was done in order
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)
    assert (world.lane.bytes, world.lane.bytes_in_flight) == (0, 0)


def finish_some(world: LaneWorld) -> None:
    world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    while world.planner.left_some:
        world.step()
    world.check()
