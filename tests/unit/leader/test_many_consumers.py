"""Hundreds of consumers: the cost of a step depends on what it moves, and its choices equal those of a full search."""

from __future__ import annotations

import random
import time
from collections import Counter
from unittest.mock import patch

import pytest

from bridge.leader.picture.capacity import Room
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.policies import PolicyName, Ring
from tests.unit.leader.lane_checks import check_accounts, check_nobody_is_forgotten
from tests.unit.leader.lane_world import LaneWorld

MANY, FEW = 200, 4
SEED = 20_261_122


def crowd(count: int, policy: PolicyName = PolicyName.LEAST_LOADED) -> LaneWorld:
    world = LaneWorld(window=100_000, policy=policy)
    world.lane.service_ms["middle"] = 8.0
    for i in range(count):
        world.registered[f"life{i}"] = (f"w{i}@h", 4)
    world._find_consumers()
    world.step()
    return world


def step_us(world: LaneWorld, tickets: int) -> float:
    """Processor time of the step that dispatches so many new tickets, in µs: the least of several."""
    best = float("inf")
    for n in range(5):
        for i in range(tickets):
            world.push(f"T{n}.{i}", "middle")
        batch = Batch()
        for id_ in world.store.read(world.term.leadership, tickets):
            world.ingest([id_.encode(), world.store.entries[id_]], batch)
        began = time.process_time()
        dispatched = world.planner.plan(batch, world.now)
        best = min(best, time.process_time() - began)
        assert len(dispatched) == tickets
        world.lane.close(batch, set(dispatched))
        world.lane.written(dispatched, world.store.take(world.term.leadership, batch))
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    return best * 1e6


@pytest.mark.parametrize("policy", list(PolicyName))
def test_a_step_costs_the_same_with_few_consumers_and_with_many(policy: PolicyName) -> None:
    # A search of all consumers for each ticket would cost tens of times as much
    few, many = (step_us(crowd(count, policy), 12) for count in (FEW, MANY))
    print(f"{policy.value}: {few:.0f} µs with {FEW} consumers, {many:.0f} µs with {MANY}")
    assert many < 5 * few + 100


def test_a_step_with_nothing_to_do_asks_no_consumer() -> None:
    world = crowd(MANY)
    world.step()
    with patch.object(Room, "look", side_effect=AssertionError("it looked")):
        assert world.planner.plan(Batch(), world.now) == {}


@pytest.mark.parametrize("tasks", [None, frozenset({"middle"})])
def test_the_least_loaded_of_all_is_chosen_after_any_history(tasks: frozenset[str] | None) -> None:
    # Given consumers of different sizes that come, go and finish at random
    dice = random.Random(SEED)
    world = LaneWorld(window=100_000, bundle_ms=0.0)
    world.lane.service_ms.update(middle=8.0, long=50.0)
    chose = Room.for_ticket
    asked = 0

    def checked(room: Room, ticket: Ticket) -> Consumer | None:
        nonlocal asked
        asked += 1
        task = ticket.waiting[0].task
        roomy = [c for c in world.lane.consumers.values() if c.open and c.runs(task) and room.has(c)]
        found = chose(room, ticket)
        loads = [c.load + room._promised.get(c, 0.0) / c.slots for c in roomy]
        assert (found is None) == (not roomy)
        assert found is None or found.load + room._promised.get(found, 0.0) / found.slots == min(loads)
        return found

    with patch.object(Room, "for_ticket", checked):
        for turn in range(150):
            if turn < 20 or dice.random() < 0.1:
                world.join(f"w{turn}@h", dice.randint(1, 5), dice.choice([None, tasks]))
            elif dice.random() < 0.1:
                world.leave(dice.choice(sorted(world.registered)))
            for i in range(dice.randint(0, 6)):
                world.push(f"T{turn}.{i}", dice.choice(["middle", "long"]))
            world.read()
            running = world.running()
            some = dice.sample(running, min(len(running), dice.randint(0, 12)))
            world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in some])
            check_accounts(world)
            check_nobody_is_forgotten(world)
    assert asked > 300


# -- the ring --------------------------------------------------------------------------------------------------------

NAMES = [f"celery@worker-{i}" for i in range(MANY)]
TICKETS = [f"INC{i:07d}" for i in range(40_000)]


def ring(names: list[str]) -> Ring:
    made = Ring()
    made.update(names)
    return made


def test_tickets_are_spread_evenly_over_many() -> None:
    made, everybody = ring(NAMES), set(NAMES)
    owners = Counter(made.owner(ticket, everybody) for ticket in TICKETS)
    shares = [owners[name] for name in NAMES]
    fair = len(TICKETS) / MANY
    # The ring's own unevenness, 3 %, beside that of a fair choice, 7 %
    assert 0.65 * fair < min(shares)
    assert max(shares) < 1.4 * fair


def test_only_tickets_of_lost_consumers_move_and_new_consumers_take_their_share() -> None:
    kept = ring(NAMES)
    everybody = set(NAMES)
    before = {ticket: kept.owner(ticket, everybody) for ticket in TICKETS[:10_000]}
    # When some leave and others join, one after the other
    left, came = set(NAMES[10:15]), {"new@1", "new@2"}
    kept.update(everybody - left)
    kept.update((everybody - left) | came)
    there = (everybody - left) | came
    after = {ticket: kept.owner(ticket, there) for ticket in before}
    moved = {ticket for ticket in before if before[ticket] != after[ticket]}
    assert all(before[ticket] in left or after[ticket] in came for ticket in moved)
    assert {after[ticket] for ticket in moved} >= came
    # Then it equals a ring that never had the others
    fresh = ring(sorted(there))
    assert all(fresh.owner(ticket, there) == owner for ticket, owner in after.items())


def test_a_consumer_that_may_not_have_a_ticket_is_skipped() -> None:
    whole, half = ring(NAMES), ring(NAMES[::2])
    able = set(NAMES[::2])
    assert all(whole.owner(ticket, able) == half.owner(ticket, able) for ticket in TICKETS[:2000])
    with pytest.raises(ValueError, match="no consumer on the ring"):
        half.owner("T", {"nobody"})
