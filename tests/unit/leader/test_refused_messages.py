"""A task refuses its message (`bridge.Nack`, `bridge.Drop`): what the leader's picture and the records make of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bridge.protocol.outcomes import Kind
from bridge.routing import records
from tests.unit.leader.lane_world import LaneWorld
from tests.unit.leader.test_breaker import BROKEN, LIMITS, fail_for_all, world_of


def only_outcome(world: LaneWorld, kind: Kind, **more: Any) -> str:
    """Ends the only message that runs. Returns its id."""
    [(parcel, ticket)] = world.running()
    outcome = world.outcome(parcel, ticket, kind, **more)
    world.step([outcome])
    world.check()
    return outcome.message_id


def world_with(*tasks: str, **settings: Any) -> LaneWorld:
    world = LaneWorld(**settings)
    world.join("w1@h", slots=1)
    for task in tasks:
        world.push("T", task)
    world.read()
    return world


def record(world: LaneWorld) -> records.Record:
    return records.parse(world.store.tickets["T"])


def test_an_uncharged_refusal_keeps_the_attempt_however_often_it_comes() -> None:
    world = world_with("short", "short", max_attempts=2)
    first = world.running()[0][0].runs["T"][1][0]
    for times in range(1, 12):
        assert only_outcome(world, Kind.NACKED, error="bank closed", delay_ms=5000) == first
        assert record(world).attempt == 1
        assert record(world).cause.startswith(
            f"nacked {times} time{'s' if times > 1 else ''} since 1970-01-01T00:16:40"
        )
        assert record(world).cause.endswith(": bank closed")
        assert not world.running()
        world.now += 4999
        world.step()
        assert not world.running()
        world.now += 1
        world.step()
    assert only_outcome(world, Kind.DONE) == first
    assert world.store.counts["nacked"] == 11
    assert "retried" not in world.store.counts
    assert "dead" not in world.store.counts


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.FAILED_OWING, Kind.NACKED, Kind.NACKED_OWING])
def test_a_rollback_that_is_owed_is_known_until_it_has_returned_also_to_the_next_leader(
    kind: Kind, in_flight: bool
) -> None:
    world = world_with("short", max_attempts=5)
    cut_off = world.running()[0][0].runs["T"][0]
    only_outcome(world, Kind.LOST, delay_ms=0)
    for again in (1, 2):
        world.now += 1
        world.step()
        only_outcome(world, kind, delay_ms=0)
        if in_flight:
            world.now += 1
            world.step()
        world.rebuild()
        world.check()
        ticket = world.lane.tickets["T"]
        owed = kind in (Kind.FAILED_OWING, Kind.NACKED_OWING)
        assert (None if ticket.lost is None else ticket.lost.fence) == (cut_off if owed else None)
        assert ticket.attempt == (2 if kind in (Kind.NACKED, Kind.NACKED_OWING) else 2 + again)


@pytest.mark.parametrize("ways", list(itertools.product(["process", "asked", "worker"], repeat=3)), ids=" ".join)
def test_the_first_of_several_attempts_that_were_cut_off_is_not_forgotten(ways: tuple[str, ...]) -> None:
    # Given attempts in a row that were cut off, perhaps before their rollbacks had returned
    world = world_with("short", max_attempts=10)
    fences = []
    for i, way in enumerate(ways):
        [(parcel, _)] = world.running()
        fences.append(parcel.runs["T"][0])
        if way == "worker":
            world.leave(parcel.incarnation)
            world.join(f"w{i + 2}@h", slots=1)
        else:
            only_outcome(world, Kind.LOST if way == "process" else Kind.INTERRUPTED, delay_ms=0)
        world.now += 10_000
        world.step()
        world.rebuild()
        # Then the next one knows the last one, and from which fence on there may be something to undo
        lost = world.lane.tickets["T"].lost
        assert lost is not None
        assert (lost.first_fence, lost.fence) == (fences[0], fences[-1])
    # And one that ends by itself ends that
    only_outcome(world, Kind.FAILED, delay_ms=0)
    assert world.lane.tickets["T"].lost is None


def test_without_a_delay_each_refusal_waits_longer_than_the_one_before() -> None:
    world = world_with("short")
    for times in (1, 2, 3):
        only_outcome(world, Kind.NACKED)
        assert world.store.retries["T"] == world.now + 100 * times
        world.now += 100 * times
        world.step()


def test_charged_and_uncharged_refusals_are_counted_apart() -> None:
    world = world_with("short", max_attempts=3)
    for kind, attempt in ((Kind.NACKED, 1), (Kind.FAILED, 2), (Kind.NACKED, 2), (Kind.FAILED, 3), (Kind.NACKED, 3)):
        if kind is Kind.FAILED:
            [(_, ticket)] = world.running()
            world.failures[world.running()[0][0].runs[ticket][1][0]] = attempt - 2
        only_outcome(world, kind, delay_ms=0, error="not yet")
        assert world.lane.tickets["T"].attempt == attempt
        world.now += 1
        world.step()
    dead = only_outcome(world, Kind.FAILED, delay_ms=0)
    assert world.store.dead == [dead]


@pytest.mark.parametrize("in_flight", [False, True])
def test_how_often_and_since_when_it_was_refused_outlives_the_leader(in_flight: bool) -> None:
    world = world_with("short")
    only_outcome(world, Kind.NACKED, delay_ms=0, error="bank closed")
    since = world.lane.tickets["T"].nacked_since_ms
    world.now += 60_000
    world.step()
    only_outcome(world, Kind.NACKED, delay_ms=5000, error="bank closed")
    if in_flight:
        world.now += 5000
        world.step()
        assert record(world).in_flight
    world.rebuild()
    world.check()
    ticket = world.lane.tickets["T"]
    assert (ticket.nacked, ticket.nacked_since_ms, ticket.attempt) == (2, since, 1)
    world.now += 5000
    world.step()
    only_outcome(world, Kind.NACKED, delay_ms=0, error="still closed")
    assert record(world).cause.startswith("nacked 3 times")


@pytest.mark.parametrize("order", ["park and release", "cancel", "reschedule", "now", "park"])
def test_an_order_about_a_ticket_in_flight_forgets_no_refusal(order: str) -> None:
    # Given a message in flight that was refused before, and a delayed one behind it
    world = world_with("short")
    held = world.push_delayed("T", world.now + 600_000, hold=True)
    world.read()
    only_outcome(world, Kind.NACKED, delay_ms=1000, error="bank closed")
    since = world.lane.tickets["T"].nacked_since_ms
    world.now += 1000
    world.step()
    # When an operator gives an order
    if order.startswith("park"):
        world.order(do="park", ticket="T", reason="stop it")
        if order == "park and release":
            world.order(do="release", ticket="T")
    else:
        due_ms = world.now + 5000 if order == "reschedule" else None
        assert world.order(do="delayed", act=order, ids=[held], due_ms=due_ms)["changed"] == [held]
    world.check()
    # Then the next leader knows of it. The record of a ticket that is to be parked has the reason in its place
    assert record(world).in_flight
    world.rebuild()
    world.check()
    ticket = world.lane.tickets["T"]
    if order == "park":
        assert (ticket.park_reason, ticket.nacked) == ("stop it", 0)
    else:
        assert (ticket.park_reason, ticket.nacked, ticket.nacked_since_ms, ticket.begun) == (None, 1, since, True)


def test_a_dropped_message_is_acknowledged_and_the_run_goes_on() -> None:
    world = world_with("short")
    first = only_outcome(world, Kind.DONE)
    # A measured task travels in bundles, so these are one run.
    world.push("T", "short", count=3)
    world.read()
    [(parcel, ticket)] = world.running()
    ids = parcel.runs[ticket][1]
    assert len(ids) == 3
    for kind in (Kind.DONE, Kind.DROPPED, Kind.DONE):
        only_outcome(world, kind, error="the ticket is closed" if kind is Kind.DROPPED else "")
    assert world.store.done == [first, *ids]
    assert world.store.counts["dropped"] == 1
    assert world.store.counts["done"] == 3
    assert world.store.tickets == {}


def test_a_refusal_says_nothing_about_the_task_and_the_next_trial_is_another_message() -> None:
    world = world_of(max_attempts=5)
    for i in range(int(LIMITS["tickets"]) * 2):
        world.push(f"N{i}", BROKEN)
    world.read()
    for _ in range(8):
        running = world.running()
        world.step([world.outcome(parcel, ticket, Kind.NACKED, delay_ms=10**9) for parcel, ticket in running])
    assert not world.breakers.why(BROKEN)


def test_a_trial_that_is_refused_for_long_does_not_keep_the_circuit_open() -> None:
    world = world_of(max_attempts=5)
    fail_for_all(world)
    for parcel, ticket in world.running():
        world.step([world.outcome(parcel, ticket, Kind.FAILED, delay_ms=0, error="no database")])
    tried = set()
    for _ in range(6):
        world.now += 5000
        world.breakers.look()
        world.refill_now()
        world.step()
        for parcel, ticket in world.running():
            tried.add(ticket)
            world.step([world.outcome(parcel, ticket, Kind.NACKED, delay_ms=10**9)])
    assert len(tried) > 1
    assert world.breakers.why(BROKEN)
