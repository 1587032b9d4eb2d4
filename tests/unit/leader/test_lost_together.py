"""Several consumers that are lost at once count as one loss: no ticket is charged twice."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.leader.picture.pieces import SUSPECT_AFTER, Consumer
from bridge.protocol.outcome_entries import GivenUp
from bridge.protocol.outcomes import Kind
from tests.unit.leader.lane_world import LaneWorld

#: What is left of a lease of 6 s: renewed lately, and not renewed since the others were lost.
FRESH_MS, MISSED_MS = 5000, 1500


def lane_of(consumers: int, **settings: Any) -> tuple[LaneWorld, list[str]]:
    """Consumers with eight slots and four tickets each, so there is room for more."""
    world = LaneWorld(window=10_000, bundle_ms=0.0, **settings)
    world.lane.service_ms["long"] = 50.0
    lives = [world.join(f"w{i}@h", slots=8) for i in range(consumers)]
    for i in range(4 * consumers):
        world.push(f"T{i}", "long")
    world.read()
    assert len(world.lane.in_flight) == 4 * consumers
    return world, lives


@pytest.mark.parametrize("dead", [2, 5, 9])
@pytest.mark.parametrize("left_ms", [0, MISSED_MS], ids=["one-look", "one-after-the-other"])
def test_a_ticket_that_loses_several_consumers_at_once_has_one_loss(dead: int, left_ms: int) -> None:
    # Given ten consumers, several of which are lost at once: their leases end together, or shortly after each other
    world, lives = lane_of(10)
    lost = lives[:dead]
    world.look({lost[0]: 0} | dict.fromkeys(lost[1:], left_ms))
    for i in range(1, dead if left_ms else 1):
        world.look({lost[i]: 0} | dict.fromkeys(lost[i + 1 :], left_ms))
    # Then the tickets in flight have one loss, none is a suspect, and all are at live consumers
    tickets = world.lane.tickets.values()
    assert sorted({ticket.losses for ticket in tickets}) == [0, 1]
    assert sum(ticket.losses for ticket in tickets) == 4 * dead
    assert "suspect" not in world.store.counts
    assert all(c.alive for c in world.lane.consumers.values())
    world.check()


def test_a_message_with_one_attempt_does_not_die_of_consumers_that_were_dead_before_it_came() -> None:
    # Given one message in flight, and three consumers that are lost at once
    world = LaneWorld(max_attempts=1, bundle_ms=0.0)
    lives = [world.join(f"w{i}@h", slots=1) for i in range(3)]
    [only] = world.push("T")
    world.read()
    world.look(dict.fromkeys(lives, 0))
    # Then it waits for a live consumer, and is done there
    assert (world.store.dead, world.lane.tickets["T"].losses) == ([], 1)
    world.join("alive@h")
    [(parcel, ticket)] = world.running()
    world.step([world.outcome(parcel, ticket, Kind.DONE)])
    assert world.store.done == [only]


@pytest.mark.parametrize(
    ("ended", "losses", "attempt"),
    [([True, True, True], 0, 1), ([False, True, True], 1, 1), ([False, False, False], 1, 3)],
)
def test_a_message_that_ran_under_a_lease_ended_by_hand_is_not_charged(
    monkeypatch: pytest.MonkeyPatch, ended: list[bool], losses: int, attempt: int
) -> None:
    """The server's clock was set forward, or the key was deleted. The message did not end its worker, however often
    that happens.
    """
    world = LaneWorld(max_attempts=4, bundle_ms=0.0)
    life = world.join("w@h", slots=1)
    world.push("T")
    world.read()
    for by_hand in ended:
        monkeypatch.setattr(world.leases, "was_ended", lambda _incarnation, by_hand=by_hand: by_hand)
        world.leave(life)
        life = world.join("w@h", slots=1)
    ticket = world.lane.tickets["T"]
    assert (ticket.losses, ticket.attempt) == (losses, attempt)
    # The next attempt still knows the last one, since there may be something to undo.
    assert ticket.lost is not None


def test_a_consumer_that_missed_one_renewal_gets_work_again_after_the_next() -> None:
    # Given two consumers, one lost, and the other one late with its renewal
    world, (lost, late) = lane_of(2)
    world.look({lost: 0, late: MISSED_MS})
    assert {ticket.losses for ticket in world.lane.tickets.values()} == {0, 1}
    assert len(world.lane.in_flight) == 4
    # When it renews, then it gets the tickets of the lost one
    world.look({late: FRESH_MS})
    assert len(world.lane.in_flight) == 8
    assert all(ticket.losses < SUSPECT_AFTER for ticket in world.lane.tickets.values())
    world.check()


def test_a_renewal_is_one_however_short_the_lease_of_the_worker_is() -> None:
    # Given a worker whose lease is set to less than half of the master's, beside one that was lost
    world, (lost, short) = lane_of(2)
    world.look({short: 2000})
    world.look({lost: 0, short: MISSED_MS})
    assert not world.lane.consumers[short].open
    # When it renews, then it gets work
    world.look({short: 2000})
    assert world.lane.consumers[short].open


def test_a_late_renewal_alone_stops_no_worker() -> None:
    # Given no lost consumer, and one that is late
    world, (_, late) = lane_of(2)
    world.look({late: MISSED_MS})
    # Then it still gets work
    assert world.lane.consumers[late].open


def test_tickets_of_a_lost_consumer_go_out_before_the_rest_of_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    world, (lost, alive) = lane_of(2)
    seen: list[dict[str, int]] = []

    def find(consumers: list[Consumer]) -> None:
        seen.append({consumer.incarnation: len(consumer.tickets) for consumer in consumers})

    monkeypatch.setattr(world.lease_watch._lost_runs, "find", find)
    world.look({lost: 0})
    assert seen == [{alive: 8}]


def test_a_notice_asks_for_a_look_at_the_leases_only_and_does_not_delay_the_check_of_all() -> None:
    world, (dead, _) = lane_of(2)
    watch = world.lease_watch
    watch.check_at = 100.0
    assert not watch.is_urgent(99.0)
    watch.gave_up(dead, GivenUp())
    assert watch.is_urgent(99.0)
    assert not watch.is_urgent(100.0)
    # Nor does it stay urgent when its tickets have moved
    world.look({dead: 0})
    assert not watch.is_urgent(99.0)


def test_a_consumer_gets_nothing_after_the_notice_of_its_end() -> None:
    # Given the death notice of one consumer, read together with other notices before the check
    world, (dead, lives) = lane_of(2)
    world.lease_watch.gave_up(dead, GivenUp())
    for parcel, ticket in [pair for pair in world.running() if pair[0].incarnation == lives]:
        world.push(f"next of {ticket}", "long")
        world.read()
        world.step([world.outcome(parcel, ticket, Kind.DONE)])
    # Then messages that came in the meantime are at live consumers
    assert {parcel.incarnation for parcel, ticket in world.running() if ticket.startswith("next")} == {lives}
    world.look({dead: 0})
    assert {ticket.losses for ticket in world.lane.tickets.values()} == {0}
    world.check()
