"""Delayed messages in the leader's picture: what costs memory, and what does not."""

from __future__ import annotations

import pytest

from bridge.protocol.outcomes import Kind
from tests.unit.leader.lane_world import LaneWorld


def finish(world: LaneWorld) -> None:
    for _ in range(200):
        running = world.running()
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        world.check()
        if not (world.running() or world.store.delayed):
            return


def test_a_message_that_is_not_due_has_no_memory() -> None:
    world = LaneWorld(clocked=True)
    world.join("w1@h")
    for n in range(300):
        world.push_delayed(f"T{n}", world.now + 1000 + n)
    world.read()
    assert (world.lane.held, world.lane.tickets) == (0, {})
    assert len(world.store.delayed) == 300
    assert world.lane.next_due_ms == world.now + 1000


def test_more_than_the_window_holds_is_moved_as_there_is_room() -> None:
    world = LaneWorld(clocked=True, window=20)
    world.join("w1@h")
    ids = [world.push_delayed(f"T{n % 7}", world.now + 1000) for n in range(150)]
    world.read()
    world.now += 5000
    world.step()
    assert 0 < world.lane.held <= 20
    assert world.store.delayed
    finish(world)
    assert sorted(world.store.done) == sorted(ids)
    assert not world.store.pending
    assert not world.store.late


@pytest.mark.parametrize("taken_in", [True, False])
@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_new_leader_takes_what_is_due_before_what_was_added_later_and_read(taken_in: bool, page: int) -> None:
    """The leader ended between a read and the move of what was due. ``taken_in``: the delayed message was before."""
    world = LaneWorld(clocked=True, page=page, sliced=True)
    world.join("w1@h")
    early = world.push_delayed("T", world.now + 10)
    (world.read if taken_in else world.hand_out)()
    world.now += 5
    before = world.push("T", count=2)
    world.now += 10
    after = world.push("T", count=2)
    world.reply = []
    world.hand_out()
    world.rebuild()
    finish(world)
    assert world.store.done == [*before, early, *after]


def test_an_undelayed_message_has_no_options_and_asks_for_nothing() -> None:
    world = LaneWorld(clocked=True)
    world.join("w1@h")
    world.push("T", count=5)
    world.read()
    assert not world.lane.has_late
    assert world.lane.next_due_ms is None
    assert all(message.options is None for ticket in world.lane.tickets.values() for message in ticket.run)
