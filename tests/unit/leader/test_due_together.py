"""Many delayed messages that are due at one moment: other tickets do not wait for all of them, and nobody starves."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.leader.picture import ready as ready_of
from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import LaneWorld

#: Messages that are due at one moment, each of a ticket of its own.
FLOOD = 80


def flooded(window: int = 1000, **settings: Any) -> tuple[LaneWorld, list[str]]:
    """A lane of one slot, in which ``FLOOD`` messages are due and were moved, and their ids in the order of their
    places.
    """
    world = LaneWorld(clocked=True, bundle_ms=0.0, window=window, **settings)
    world.join("w1@h", slots=1)
    due_ms = world.now + 1000
    flood = [world.push_delayed(f"F{n}", due_ms, task="long") for n in range(FLOOD)]
    world.read()
    world.now = due_ms + 1
    world.step()
    return world, flood


def next_ones(world: LaneWorld) -> list[str]:
    """Ends the messages that run. Returns their ids in the order of their fences."""
    running = sorted(world.running(), key=lambda one: one[0].runs[one[1]][0])
    outcomes = [world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running]
    world.step(outcomes)
    world.check()
    return [outcome.message_id for outcome in outcomes]


def all_of_them(world: LaneWorld) -> list[str]:
    found: list[str] = []
    while some := next_ones(world):
        found += some
    return found


@pytest.mark.parametrize("policy", list(PolicyName))
def test_a_message_that_comes_meanwhile_waits_for_one_of_them(policy: PolicyName) -> None:
    world, flood = flooded(policy=policy)
    for _ in range(20):
        next_ones(world)
    ahead = len(world.running())
    [comes] = world.push("comes", "long")
    world.read()
    order = all_of_them(world)
    assert order.index(comes) <= ahead + 1
    assert [id_ for id_ in order if id_ != comes] == flood[-len(order) + 1 :]
    assert not world.lane.late_ready


def test_both_kinds_take_turns_and_each_is_in_its_own_order() -> None:
    world, flood = flooded()
    others = [id_ for n in range(FLOOD) for id_ in world.push(f"O{n}", "long")]
    world.read()
    order = all_of_them(world)
    assert sorted(order, key=id_key) == [*flood, *others]
    assert [id_ for id_ in order if id_ in set(flood)] == flood
    assert [id_ for id_ in order if id_ in set(others)] == others
    # One of each, from the first of those that came to the end.
    mixed = order[order.index(others[0]) :]
    for at in range(0, len(mixed) - 20, 10):
        assert 4 <= sum(id_ in set(flood) for id_ in mixed[at : at + 10]) <= 6 or set(mixed[at:]) <= set(others)


def test_those_that_are_due_do_not_wait_for_what_comes_after_them() -> None:
    # Given a lane with more work than it can do, which was never delayed
    world = LaneWorld(clocked=True, bundle_ms=0.0)
    world.join("w1@h", slots=1)
    due_ms = world.now + 1000
    late = world.push_delayed("late", due_ms, task="long")
    before = [id_ for n in range(50) for id_ in world.push(f"B{n}", "long")]
    world.read()
    world.now = due_ms + 1
    world.step()
    # When as much comes all the time
    after: list[str] = []
    order: list[str] = []
    while late not in order:
        after += world.push(f"A{len(after)}", "long")
        world.read()
        order += next_ones(world)
        assert len(order) < 100
    # Then it goes behind what was there, and one of the others may go between
    assert set(before) <= set(order) - {late} <= {*before, after[0]}


@pytest.mark.parametrize("priority", [1, 9])
def test_priorities_hold_between_both_kinds(priority: int) -> None:
    world, _ = flooded()
    world.push("low", "long")
    [high] = world.push("high", "long", priority=priority)
    low_later = world.push("later", "long")
    world.read()
    ahead = len(world.running())
    order = all_of_them(world)
    assert order.index(high) <= ahead
    assert order.index(high) < order.index(low_later[0])


def test_the_leader_reads_on_while_many_are_due_and_moves_them_as_they_are_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for consumers in ({}, {"w2@h": frozenset({"long"})}):
        monkeypatch.setattr(ready_of, "ENOUGH_MESSAGES", 20)
        monkeypatch.setattr(ready_of, "READY_PER_SLOT", 10)
        monkeypatch.setattr("bridge.leader.stream.delayed.ENOUGH_MESSAGES", 20)
        monkeypatch.setattr("bridge.leader.stream.delayed.SLICE", 5)
        world = LaneWorld(clocked=True, bundle_ms=0.0, window=1000)
        world.join("w1@h", slots=1)
        for name, tasks in consumers.items():
            world.join(name, 1, tasks)
        due_ms = world.now + 1000
        flood = [world.push_delayed(f"F{n}", due_ms, task="long") for n in range(FLOOD)]
        world.read()
        world.now = due_ms + 1
        order: list[str] = []
        most = 0
        while len(order) < FLOOD:
            world.step()
            most = max(most, len(world.store.late))
            assert not world.lane.has_enough_work, "it does not read"
            order += next_ones(world)
        # One consumer after the other: two that run at once end in any order.
        assert sorted(order) == sorted(flood)
        assert consumers or order == flood
        # Never more than are enough for the consumers: so others find room in memory.
        assert 20 <= most < 60
        assert not world.store.late


def test_a_lane_that_is_full_of_both_reads_on_when_some_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_of, "ENOUGH_MESSAGES", 20)
    monkeypatch.setattr(ready_of, "READY_PER_SLOT", 10)
    monkeypatch.setattr("bridge.leader.stream.delayed.ENOUGH_MESSAGES", 20)
    world, _ = flooded(window=100)
    for n in range(200):
        world.push(f"O{n}", "long")
    while world.lane.has_enough_work is False and world.store.unread():
        world.read(10)
    assert world.lane.held <= 110
    while world.store.unread() or world.running():
        if not world.lane.has_enough_work:
            world.read(10)
        next_ones(world)
    assert len(world.store.done) == FLOOD + 200


def test_a_suspect_that_was_delayed_does_not_count_when_it_has_gone_out() -> None:
    # Given messages that were delayed, and running in two consumers that ended
    world = LaneWorld(clocked=True, bundle_ms=0.0)
    world.join("w1@h", slots=3)
    tickets = [f"T{n}" for n in range(3)]
    for ticket in tickets:
        world.push_delayed(ticket, world.now + 1, task="long")
    world.read()
    world.now += 50
    world.step()
    for _ in range(2):
        world.leave(*world.registered)
        world.join("w1@h", slots=3)
    world.leave(*world.registered)
    # When they are queued again as any others, since an operator parked and released their tickets
    for do in ("park", "release"):
        for ticket in tickets:
            world.order(do=do, ticket=ticket)
    for _ in tickets:
        world.step()
    assert len(world.lane.suspects) == len(world.lane.late_ready) == 3
    # Then the first one goes out alone, and counts no more
    world.join("w1@h", slots=3)
    assert len(world.running()) == 1
    assert len(world.lane.suspects) == len(world.lane.late_ready) == 2
    world.check()
