"""When a task fails for all tickets, its circuit breaker opens. No message of it dies. Later they go on in order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.pieces import Ticket
from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld

BROKEN, FINE = "short", "middle"
TICKETS = 30
LIMITS = {"share": 0.9, "tickets": 20, "seconds": 60.0, "probe": 5.0}


def world_of(**settings: Any) -> LaneWorld:
    world = LaneWorld(window=10_000, bundle_ms=0.0, breaker=LIMITS, **settings)
    world.join("w1@h", slots=8)
    return world


def turn(world: LaneWorld, *, broken: bool, ms: int = 1000) -> list[str]:
    """Ends all running messages, advances the time, and lets the leader check. Returns the messages of the broken task
    that ran.
    """
    ran = []
    outcomes = []
    for parcel, ticket in world.running():
        id_ = parcel.runs[ticket][1][0]
        bad = world.task_of(id_) == BROKEN
        if bad:
            ran.append(id_)
        more = {"delay_ms": 0, "error": "no database"} if bad and broken else {}
        outcomes.append(world.outcome(parcel, ticket, Kind.FAILED if more else Kind.DONE, **more))
    world.step(outcomes)
    world.now += ms
    world.breakers.look()
    world.refill_now()
    world.step()
    return ran


def fail_for_all(world: LaneWorld) -> None:
    """Lets the task fail for all tickets, until its circuit breaker is open."""
    for i in range(TICKETS):
        world.push(f"B{i}", BROKEN, count=2)
    world.read()
    for _ in range(20):
        if world.breakers.why(BROKEN):
            return
        turn(world, broken=True)
    raise AssertionError("the circuit never opened")


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_task_that_fails_for_all_tickets_kills_none_and_runs_in_order_later(attempts: int) -> None:
    world = world_of(max_attempts=attempts)
    fail_for_all(world)
    dead = len(world.store.dead)
    assert dead < LIMITS["tickets"]
    # While it is open, one message is tried each five seconds
    for _ in range(3):
        turn(world, broken=True)
    tried = [ran for _ in range(60) for ran in turn(world, broken=True)]
    assert 9 <= len(tried) <= 13
    assert len(set(tried)) > 3
    assert len(world.store.dead) == dead
    # And its messages cost no memory
    assert sum(len(ticket.waiting) for ticket in world.lane.tickets.values()) <= 2
    # Another task flows
    fine = [id_ for i in range(9) for id_ in world.push(f"F{i}", FINE, count=2)]
    world.read()
    for _ in range(4):
        turn(world, broken=True)
    assert set(fine) <= set(world.store.done)
    # When the task works again
    for _ in range(30):
        turn(world, broken=False)
    # Then all its messages are done, each ticket in stream order
    assert not world.breakers.why(BROKEN)
    assert len(world.store.done) == 2 * TICKETS + len(fine) - dead
    for i in range(TICKETS):
        mine = [id_key(id_) for id_ in world.store.done if world.ticket_of(id_) == f"B{i}"]
        assert mine == sorted(mine)
    assert world.lane.tickets == {}


def test_one_bad_ticket_does_not_open_the_circuit_however_often_it_fails() -> None:
    world = world_of(max_attempts=1)
    world.push("bad", BROKEN, count=100)
    world.read()
    for _ in range(100):
        turn(world, broken=True)
    assert len(world.store.dead) == 100
    assert not world.breakers.why(BROKEN)


def test_a_task_that_mostly_succeeds_goes_on() -> None:
    world = world_of(max_attempts=1)
    for i in range(100):
        world.push(f"T{i}", BROKEN)
    world.read()
    while running := world.running():
        kinds = [Kind.FAILED if int(ticket[1:]) % 2 else Kind.DONE for _, ticket in running]
        world.step([world.outcome(*pair, kind) for pair, kind in zip(running, kinds, strict=True)])
    assert not world.breakers.why(BROKEN)
    assert (len(world.store.done), len(world.store.dead)) == (50, 50)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("succeeded", [1, 5, 40])
def test_the_share_is_of_all_outcomes_however_many(succeeded: int, share: float) -> None:
    # Given a task that worked for some messages, and then fails for all
    world = world_of()
    breakers = Breakers(world.lane)
    breakers._limits = world.lane.settings.breaker.model_copy(update={"share": share})
    breakers.failed(BROKEN, Ticket("first"), "no database")
    for _ in range(succeeded):
        breakers.succeeded(BROKEN)
    # When failures are that share
    failures = 1
    while breakers.failed(BROKEN, Ticket(f"T{failures}"), "no database"):
        failures += 1
        assert failures < 10_000
    # Then it opened with the first failure with which both limits are reached
    needed = math.ceil(share * succeeded / (1 - share) - 1e-9)
    assert failures + 1 == max(LIMITS["tickets"], needed)


def test_failures_long_ago_do_not_count() -> None:
    world = world_of(max_attempts=1)
    for n in range(6):
        for i in range(10):
            world.push(f"T{n}.{i}", BROKEN)
        world.read()
        turn(world, broken=True, ms=60_000)
    assert len(world.store.dead) == 60


def test_a_task_that_asks_for_a_retry_first_comes_to_its_second_attempt() -> None:
    world = world_of(max_attempts=3)
    fail_for_all(world)
    for _ in range(60):
        attempts = {ticket: world.lane.tickets[ticket].attempt for _, ticket in world.running()}
        world.step(
            [
                world.outcome(parcel, ticket, Kind.FAILED if attempts[ticket] == 1 else Kind.DONE, delay_ms=0)
                for parcel, ticket in world.running()
            ]
        )
        world.now += 1000
        world.breakers.look()
        world.refill_now()
        world.step()
    assert not world.breakers.why(BROKEN)


def test_the_next_leader_finds_it_open() -> None:
    world = world_of()
    fail_for_all(world)
    why = world.breakers.why(BROKEN)
    assert "20 attempts failed" in why
    assert world.lane.stranded.waiting[BROKEN].tickets or world.lane.backoffs
    # As `bridge.leader.duties.unknown_tasks` reads it from the last leader's note
    world.lead()
    world.breakers = Breakers(world.lane)
    world.breakers.restore(BROKEN, why)
    assert world.breakers.why(BROKEN) == why
    assert not world.lane.stranded.can_run(BROKEN)


def test_while_there_is_no_room_for_letters_a_message_keeps_its_last_attempt() -> None:
    world = world_of(max_attempts=1)
    full = True
    world.settling._letters_full = lambda: full
    [bad] = world.push("T", BROKEN)
    world.read()
    for _ in range(4):
        assert turn(world, broken=True) == [bad]
        assert world.lane.tickets["T"].attempt == 1
    assert world.store.dead == []
    full = False
    turn(world, broken=True)
    assert world.store.dead == [bad]
