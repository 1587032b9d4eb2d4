"""Options of one message in the leader's picture: its attempts, its expiry, and its priority between tickets."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.leader.duties.delayed_orders import DelayedOrders
from bridge.leader.picture import ready
from bridge.protocol.orders import ChangeDelayed, DelayedAct
from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.ids import member_of
from bridge.routing.message_options import EXPIRED
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import LaneWorld


def world_of(**settings: Any) -> LaneWorld:
    world = LaneWorld(**settings)
    world.join("w1@h", slots=1)
    return world


def started(world: LaneWorld) -> list[str]:
    """Ends the messages that run. Returns their ids in the order of their fences."""
    running = sorted(world.running(), key=lambda one: one[0].runs[one[1]][0])
    outcomes = [world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running]
    world.step(outcomes)
    while world.planner.left_some:
        world.step()
    world.check()
    return [outcome.message_id for outcome in outcomes]


def all_started(world: LaneWorld) -> list[str]:
    found: list[str] = []
    while some := started(world):
        found += some
    return found


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_message_has_its_own_number_of_attempts(most: int) -> None:
    world = world_of(max_attempts=3)
    [own] = world.push("T", max_attempts=most)
    [other] = world.push("T")
    world.read()
    for attempt in range(1, most + 3 + 1):
        [(parcel, ticket)] = world.running()
        outcome = world.outcome(parcel, ticket, Kind.FAILED, delay_ms=0)
        assert outcome.message_id == (own if attempt <= most else other)
        world.step([outcome])
        world.now += 1
        world.step()
    assert world.store.dead == [own, other]


def test_a_message_that_has_not_begun_when_it_expires_is_dead_and_its_ticket_goes_on() -> None:
    world = world_of()
    [first] = world.push("T")
    [late] = world.push("T", expires=world.now + 100)
    [last] = world.push("T")
    world.read()
    world.now += 100
    assert started(world) == [first]
    assert world.store.dead == [late]
    assert world.store.counts["expired"] == 1
    [letter] = world.store.letters.values()
    assert (letter["reason"], letter["attempts"]) == (EXPIRED, "0")
    assert all_started(world) == [last]
    assert world.store.tickets == {}


def test_a_message_whose_consumer_finds_that_it_has_expired_has_no_attempt_either() -> None:
    world = world_of()
    [id_] = world.push("T", expires=world.now + 1)
    world.read()
    [(parcel, ticket)] = world.running()
    world.step([world.outcome(parcel, ticket, Kind.DEAD, error=EXPIRED)])
    assert world.store.dead == [id_]
    [letter] = world.store.letters.values()
    assert (letter["reason"], letter["attempts"]) == (EXPIRED, "0")


def test_a_message_that_expires_later_runs() -> None:
    world = world_of()
    [id_] = world.push("T", expires=world.now + 1)
    world.read()
    assert started(world) == [id_]


@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.NACKED])
def test_a_message_that_has_begun_does_not_expire(kind: Kind) -> None:
    world = world_of()
    [id_] = world.push("T", expires=world.now + 1)
    world.read()
    [(parcel, ticket)] = world.running()
    world.step([world.outcome(parcel, ticket, kind, delay_ms=5000)])
    world.now += 5000
    world.step()
    assert started(world) == [id_]


@pytest.mark.parametrize("hold", [{}, {"hold": 1}], ids=["overtake", "hold"])
@pytest.mark.parametrize("new_leader", [False, True])
def test_a_delayed_message_is_dead_when_it_expires_and_its_ticket_goes_on(
    hold: dict[str, Any], *, new_leader: bool
) -> None:
    world = world_of(clocked=True)
    [never] = world.push("T", due=world.now + 10**12, expires=world.now + 2000, **hold)
    [behind] = world.push("T")
    world.read()
    assert started(world) == ([] if hold else [behind])
    world.now += 1999
    world.step()
    assert world.store.dead == []
    if new_leader:
        world.rebuild()
    world.now += 2
    world.step()
    world.step()
    assert world.store.dead == [never]
    assert [letter["reason"] for letter in world.store.letters.values()] == [EXPIRED]
    assert started(world) == ([behind] if hold else [])
    assert (world.store.tickets, world.store.delayed, world.store.holding) == ({}, {}, {})


@pytest.mark.parametrize("hold", [{}, {"hold": 1}], ids=["overtake", "hold"])
def test_a_delayed_message_is_not_put_off_beyond_its_expiry(hold: dict[str, Any]) -> None:
    world = world_of(clocked=True)
    ends = world.now + 5000
    [expires] = world.push("A", due=world.now + 1000, expires=ends, **hold)
    [free] = world.push("B", due=world.now + 1000, **hold)
    world.read()
    orders = DelayedOrders(world.term, world.lane)
    for act, due_ms, refused in (
        (DelayedAct.RESCHEDULE, ends + 1, True),
        (DelayedAct.RESCHEDULE, ends, True),
        (DelayedAct.RESCHEDULE, ends - 1, False),
        (DelayedAct.NOW, None, False),
        (DelayedAct.CANCEL, None, False),
    ):
        batch = Batch()
        answer = orders.carry_out(ChangeDelayed(act, (expires, free), due_ms), batch)
        assert answer["changed"] == ([free] if refused else [expires, free])
        assert answer["refused"] == ([(expires, f"message {expires} would be due after it expires")] if refused else [])
        assert batch.rescheduled[1::2] == [member_of(id_) for id_ in answer["changed"] if act is not DelayedAct.CANCEL]


def test_an_expired_message_is_not_replayed() -> None:
    world = world_of()
    [id_] = world.push("T", expires=world.now)
    world.read()
    assert world.store.dead == [id_]
    # The order calls `OperatorOrders._dead_message`, of which this is the last check.
    message = world._dead_message(id_)
    assert not isinstance(message, str)
    assert message.options is not None
    assert message.options.has_expired(world.now)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_a_ticket_with_a_higher_priority_goes_first_and_the_order_within_a_ticket_stays(policy: PolicyName) -> None:
    world = world_of(policy=policy, bundle_ms=0.0)
    [first] = world.push("T0", "long")
    world.read()
    low = world.push("low", "long")
    # Its oldest message has no priority, so it has none: the priority of a later one changes nothing.
    mixed = [*world.push("mixed", "long"), *world.push("mixed", "long", priority=9)]
    middle = world.push("middle", "long", priority=4)
    high = world.push("high", "long", priority=9, count=2)
    world.read()
    order = all_started(world)
    assert order[0] == first
    rest = order[1:]
    assert rest.index(high[0]) < rest.index(middle[0]) < rest.index(low[0]) < rest.index(mixed[0])
    for ticket in (high, mixed):
        assert rest.index(ticket[0]) < rest.index(ticket[1])


def test_a_ticket_without_priority_is_passed_by_a_bounded_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 100
    monkeypatch.setattr(ready, "PASSED_PER_PRIORITY", bound)
    world = world_of(bundle_ms=0.0, window=bound * 4)
    world.push("T0", "long")
    world.read()
    [waits] = world.push("waits", "long")
    for n in range(bound + 50):
        world.push(f"urgent{n}", "long", priority=1)
    world.read()
    passed = 0
    while waits not in (ids := started(world)):
        passed += len(ids)
        assert passed <= bound + 1
    assert passed > bound - 10


def test_without_priorities_nothing_is_kept_in_the_order_of_turns() -> None:
    world = world_of()
    world.push("T", count=3)
    world.read()
    all_started(world)
    assert not world.lane.out_of_turn
