"""The server's clock is set while a master leads: what is due, what has expired, and how long a backoff lasts."""

from __future__ import annotations

import pytest

from bridge.leader.picture import ticket_records
from bridge.protocol.outcomes import Kind
from bridge.routing.message_options import EXPIRED
from tests.unit.leader.lane_world import LaneWorld
from tests.unit.leader.test_delayed_beside import begin, pass_ms
from tests.unit.leader.test_lane_parking import next_outcome

HOUR_MS = 3_600_000
STEPS = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 1500, -1500])


def start() -> LaneWorld:
    world = begin()
    # Far from 0, so that no time is below it.
    pass_ms(world, 10 * HOUR_MS)
    return world


def set_clock(world: LaneWorld, step_ms: int, *, settled: bool) -> None:
    """``settled``: a lease has passed since then."""
    world.times.steps_ms += step_ms
    if settled:
        settle(world)


def settle(world: LaneWorld) -> None:
    world.times.settled_steps = world.times.steps_ms
    world.step()


def take_over(world: LaneWorld) -> None:
    """Another master leads, which has never known the clock to be otherwise."""
    world.now = world.times.server_ms()
    world.rebuild()


def running(world: LaneWorld) -> list[str]:
    return [message.id for ticket in world.lane.tickets.values() for message in ticket.run]


@STEPS
@pytest.mark.parametrize("waits", [False, True], ids=["pushed later", "pushed before"])
def test_a_message_for_which_its_ticket_waits_is_due_by_the_clock_as_it_is(step_ms: int, *, waits: bool) -> None:
    world = start()
    if not waits:
        set_clock(world, step_ms, settled=True)
    due_ms = world.now + 2 * HOUR_MS
    id_ = world.push_delayed("T", due_ms, hold=True)
    world.read()
    assert running(world) == []
    if waits:
        set_clock(world, step_ms, settled=True)
    pass_ms(world, due_ms - world.times.server_ms() - 1)
    assert running(world) == []
    pass_ms(world, 1)
    assert running(world) == [id_]
    world.check()


@STEPS
def test_in_the_lease_after_a_step_a_message_is_due_by_both_clocks(step_ms: int) -> None:
    world = start()
    id_ = world.push_delayed("T", world.now + 3000, hold=True)
    world.read()
    set_clock(world, step_ms, settled=False)
    pass_ms(world, 2999)
    assert running(world) == []
    pass_ms(world, 1)
    assert running(world) == ([id_] if step_ms > 0 else [])
    pass_ms(world, max(0, -step_ms))
    # By a clock that was set back, it is due at last. The leader sees that when the clock has settled.
    settle(world)
    assert running(world) == [id_]
    world.check()


@STEPS
def test_a_message_that_waits_beside_backoffs_in_a_lease_after_a_step_keeps_no_turn_busy(step_ms: int) -> None:
    world = start()
    world.push_delayed("T", world.now + 1000, hold=True)
    world.read()
    set_clock(world, step_ms, settled=False)
    pass_ms(world, 1000)
    # What is first in the heap says when the leader wakes. It must not be over and stay there.
    assert all(due > world.times.settled_ms() for due, _, _ in world.lane.backoffs)


@STEPS
@pytest.mark.parametrize("settled", [False, True], ids=["in the lease", "settled"])
def test_a_message_expires_by_the_clock_as_it_is(step_ms: int, *, settled: bool) -> None:
    world = start()
    set_clock(world, step_ms, settled=settled)
    ends_ms = world.times.server_ms() + 3000
    in_time, late = world.push("T", count=2, expires=ends_ms)
    world.read()
    assert running(world) == [in_time]
    world.now += 3000 + (0 if settled else max(0, step_ms))
    next_outcome(world, Kind.DONE)
    world.step()
    assert world.store.dead == [late]
    assert [letter["reason"] for letter in world.store.letters.values()] == [EXPIRED]


@STEPS
@pytest.mark.parametrize("settles", [False, True], ids=["in the lease", "settles"])
@pytest.mark.parametrize("delay_ms", [400, 5000], ids=["in memory", "rests"])
@pytest.mark.parametrize("new_leader", [False, True])
def test_a_backoff_lasts_as_long_as_it_was_to(step_ms: int, delay_ms: int, *, settles: bool, new_leader: bool) -> None:
    world = start()
    [id_] = world.push("T")
    world.read()
    next_outcome(world, Kind.FAILED, delay_ms=delay_ms)
    pass_ms(world, delay_ms // 2)
    set_clock(world, step_ms, settled=settles)
    if new_leader and settles:
        take_over(world)
    pass_ms(world, delay_ms // 2 - 1)
    assert running(world) == []
    pass_ms(world, 1)
    assert running(world) == [id_]
    world.check()


def test_a_ticket_whose_backoff_is_over_waits_for_room_only_after_the_clock_was_set_back() -> None:
    world = start()
    [first] = world.push("T")
    world.read()
    next_outcome(world, Kind.FAILED, delay_ms=100)
    for n in range(10):
        world.push(f"U{n}")
    world.read()
    pass_ms(world, 100)
    assert first not in running(world)
    set_clock(world, -HOUR_MS, settled=True)
    take_over(world)
    while first not in running(world):
        [*_, (parcel, ticket)] = world.running()
        world.step([world.outcome(parcel, ticket, Kind.DONE)])


def test_the_backoffs_of_many_tickets_are_written_again_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket_records, "UNRECORDED_AT_ONCE", 3)
    world = start()
    for n in range(10):
        world.push(f"T{n}")
        world.read()
        next_outcome(world, Kind.FAILED, delay_ms=60_000)
    before = dict(world.store.retries)
    set_clock(world, HOUR_MS, settled=True)
    written = [sum(due != before[ticket] for ticket, due in world.store.retries.items())]
    for _ in range(3):
        world.step()
        written.append(sum(due != before[ticket] for ticket, due in world.store.retries.items()))
    assert written == [3, 6, 9, 10]
    assert all(due == before[ticket] + HOUR_MS for ticket, due in world.store.retries.items())
