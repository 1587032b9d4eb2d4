"""Tickets that await a retry: they do not fill the window, and go on in order when the retry is due."""

from __future__ import annotations

import pytest

from bridge.leader.picture.ready import OUTDATED
from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld

#: Breakers are off, because every message fails here.
OFF = {"share": 0.0}


def failed(world: LaneWorld, delay_ms: int) -> None:
    """Lets all running messages fail."""
    world.step([world.outcome(*one, Kind.FAILED, delay_ms=delay_ms) for one in world.running()])


def finish_all(world: LaneWorld) -> None:
    """Handles all messages."""
    while running := world.running():
        world.step([world.outcome(*one, Kind.DONE) for one in running])


def in_backoff(world: LaneWorld, tickets: int, each: int, delay_ms: int) -> None:
    """Pushes ``tickets`` tickets with ``each`` messages, and lets each first message fail."""
    for n in range(tickets):
        world.push(f"T{n}", count=each)
    world.join("w1@h", slots=8)
    for _ in range(10 * tickets):
        if not world.store.unread() and not world.running():
            return
        world.read(50)
        failed(world, delay_ms)


@pytest.mark.parametrize("each", [1, 3, 20])
def test_tickets_in_backoff_leave_the_window_to_others(each: int) -> None:
    # Given more tickets in backoff than the window has room for
    world = LaneWorld(window=100, page=10, breaker=OFF)
    in_backoff(world, 120, each, delay_ms=60_000)
    world.check()
    assert len(world.store.retries) == 120
    # Then none of their messages is in memory, and others are read and done
    assert (world.lane.held, world.lane.full) == (0, False)
    healthy = world.push("healthy", count=5)
    world.read()
    finish_all(world)
    assert world.store.done == healthy
    # When their retries are due, they are done too, each in order
    world.now += 60_000
    while world.lane.tickets:
        world.step()
        finish_all(world)
    world.check()
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)
    assert world.lane.tickets == {}


def test_a_new_leader_leaves_them_where_they_are() -> None:
    world = LaneWorld(window=100, page=10, breaker=OFF)
    in_backoff(world, 120, 3, delay_ms=60_000)
    world.rebuild()
    world.check()
    assert (world.lane.held, len(world.lane.backoffs)) == (0, 120)
    world.now += 60_000
    while world.lane.tickets:
        world.step()
        finish_all(world)
    world.check()
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)


def test_a_message_that_was_deleted_meanwhile_is_dead_and_its_ticket_goes_on() -> None:
    world = LaneWorld(window=100)
    in_backoff(world, 1, 3, delay_ms=60_000)
    first, *rest = world.store.entries
    world.store.entries[first] = []
    world.now += 60_000
    world.step()
    for _ in rest:
        world.step([world.outcome(*one, Kind.DONE) for one in world.running()])
    assert (world.store.dead, world.store.done) == ([first], rest)


def test_a_ticket_that_is_parked_meanwhile_keeps_its_place() -> None:
    world = LaneWorld(window=100)
    in_backoff(world, 1, 3, delay_ms=60_000)
    world.order(do="park", ticket="T0")
    world.check()
    world.now += 60_000
    world.step()
    assert not world.running()
    world.order(do="release", ticket="T0")
    world.now += 1
    world.step()
    finish_all(world)
    assert world.store.done == list(world.store.entries)


def test_a_short_backoff_stays_in_memory() -> None:
    world = LaneWorld(window=100)
    in_backoff(world, 1, 3, delay_ms=200)
    assert world.lane.held == 3


def test_backoffs_that_were_ended_early_use_no_memory() -> None:
    # Given tickets that wait, and one whose long backoff is ended by an operator again and again
    world = LaneWorld(clocked=True)
    world.join("w1@h")
    waits = {world.push(f"T{number}")[0] for number in range(50)}
    world.push("hot")
    world.read()
    running = world.running()
    world.step([world.outcome(*found, Kind.NACKED, delay_ms=100_000_000) for found in running])
    for _ in range(3 * OUTDATED):
        world.order(do="park", ticket="hot")
        world.order(do="release", ticket="hot")
        world.step()
        for parcel, ticket in world.running():
            world.step([world.outcome(parcel, ticket, Kind.NACKED, delay_ms=100_000_000)])
        world.old_outcomes.clear()
    world.check()
    assert len(world.lane.backoffs) <= 2 * 51 + OUTDATED
    # Then all are woken in the end
    world.now += 200_000_000
    world.step()
    while running := world.running():
        world.step([world.outcome(*found, Kind.DONE) for found in running])
    assert waits < set(world.store.done)
    assert not world.store.pending
