"""How long outcomes may gather, and whether memory holds enough work: equal to a check of all consumers each time."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from bridge.leader.picture import outcome_pause as under_test
from bridge.leader.picture import ready as picture_of
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.outcome_pause import GATHER_S, WORTH_S, OutcomePause
from bridge.leader.picture.ready import READY_PER_SLOT
from bridge.protocol.outcomes import Kind
from tests.unit.leader.lane_world import LaneWorld
from tests.unit.leader.test_many_consumers import MANY, crowd

SEED = 20_261_123


def pause_of_all(lane: Lane) -> float:
    """The same by a check of all consumers."""
    pause_s = GATHER_S
    for consumer in lane.consumers.values():
        if consumer.parcels >= 2 * consumer.slots:
            pause_s = min(pause_s, consumer.backlog_ms / consumer.slots / 4000)
            continue
        for ticket in consumer.tickets:
            assert ticket.parcel is not None
            pause_s = min(pause_s, (ticket.parcel.left - 1) * ticket.parcel.share_ms / 2000)
    return pause_s if pause_s >= WORTH_S else 0.0


def enough_of_all(lane: Lane) -> bool:
    """The same for memory: whether each kind of consumer has enough waiting messages."""
    together = not lane.stranded.mixed
    slots: dict[object, int] = {}
    ready: dict[object, int] = {}
    for consumer in lane.consumers.values():
        kind = None if together else consumer.tasks
        if consumer.open:
            slots[kind] = slots.get(kind, 0) + consumer.slots
        if consumer.open or together:
            ready[kind] = ready.get(kind, 0) + len(consumer.ready)
    if together:
        return len(lane.ready) + ready.get(None, 0) > READY_PER_SLOT * slots.get(None, 0)
    return all(ready[kind] > READY_PER_SLOT * slots[kind] for kind in slots)


@pytest.mark.parametrize("examples", [4, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("tasks", [None, frozenset({"middle"})])
def test_the_result_equals_that_of_asking_all_of_them(
    tasks: frozenset[str] | None, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given consumers of different sizes that come, go and finish at random, and bounds that a few tickets reach
    monkeypatch.setattr(picture_of, "ENOUGH_MESSAGES", 1)
    monkeypatch.setattr(picture_of, "READY_PER_SLOT", 1)
    monkeypatch.setitem(globals(), "READY_PER_SLOT", 1)
    monkeypatch.setattr(under_test, "WORTH_S", 1e-4)
    monkeypatch.setitem(globals(), "WORTH_S", 1e-4)
    found, enough = [], []
    for seed in range(SEED, SEED + examples):
        dice = random.Random(seed)
        world = LaneWorld(window=100_000, bundle_ms=dice.choice([2.0, 4.0, 10.0]))
        world.lane.service_ms.update(short=0.4, middle=2.0)
        pause = OutcomePause(world.lane)
        for turn in range(50):
            if turn < 2 or dice.random() < 0.05:
                world.join(f"w{turn}@h", dice.randint(1, 3), dice.choice([None, tasks]))
            elif dice.random() < 0.05 and len(world.registered) > 1:
                world.leave(dice.choice(sorted(world.registered)))
            elif dice.random() < 0.05:
                dice.choice(list(world.lane.consumers.values())).slots = dice.randint(1, 4)
            for i in range(dice.choice([0, 0, 60])):
                world.push(f"T{i}", dice.choice(["middle", "short"]), count=dice.randint(1, 3))
            world.read()
            running = world.running()
            some = dice.sample(running, min(len(running), dice.choice([0, 2, 60])))
            world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in some])
            if dice.random() < 0.8:
                found.append(pause.seconds())
                assert found[-1] == pytest.approx(pause_of_all(world.lane))
            enough.append(world.lane.has_enough_work)
            assert enough[-1] == (world.lane.held >= 1 and enough_of_all(world.lane))
    # Then every kind of answer has occurred
    assert {0.0, GATHER_S} <= set(found)
    assert any(0 < one < GATHER_S for one in found)
    assert set(enough) == {True, False}


def test_only_those_are_looked_at_of_which_something_landed_or_went_out() -> None:
    # Given many consumers with more than enough to do
    world = crowd(MANY)
    pause = OutcomePause(world.lane)
    for n in range(3000):
        world.push(f"T{n}", "middle", count=4)
    world.read(12_000)
    world.step()
    assert pause.seconds() > 0
    with patch.object(under_test, "_pause_s", wraps=under_test._pause_s) as looked:
        assert pause.seconds() > 0
        assert looked.call_count == 0
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()[:3]])
        pause.seconds()
    # Then those three are asked, and the consumer that is checked again first
    assert 1 <= looked.call_count <= 4


def test_a_pool_that_grows_wants_for_work_sooner() -> None:
    world = crowd(2)
    pause = OutcomePause(world.lane)
    for n in range(30):
        world.push(f"T{n}", "middle", count=4)
    world.read()
    world.step()
    assert pause.seconds() == pytest.approx(pause_of_all(world.lane))
    before = pause_of_all(world.lane)
    for consumer in world.lane.consumers.values():
        consumer.slots = 200
    assert pause.seconds() == pytest.approx(pause_of_all(world.lane))
    assert pause_of_all(world.lane) < before
