"""The oldest undone message of many tickets, without a search of all. `test_lane_machine` checks that it is right."""

from __future__ import annotations

import pytest

from bridge.leader.picture import oldest_undone as undone
from bridge.leader.picture.pieces import Ticket
from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld

TICKETS = 500


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Ticket]:
    """The tickets whose messages were examined."""
    seen: list[Ticket] = []
    oldest_of = undone.oldest_of

    def noting(ticket: Ticket) -> tuple[int, int] | None:
        seen.append(ticket)
        return oldest_of(ticket)

    monkeypatch.setattr(undone, "oldest_of", noting)
    return seen


def backlog() -> tuple[LaneWorld, list[str]]:
    """Many waiting tickets, and one consumer."""
    world = LaneWorld(window=10 * TICKETS)
    ids = [id_ for n in range(TICKETS) for id_ in world.push(f"T{n}")]
    world.join("w1@h")
    world.read(TICKETS)
    return world, ids


def test_only_few_tickets_of_a_backlog_are_examined(looked_at: list[Ticket]) -> None:
    world, ids = backlog()
    assert undone.oldest_undone(world.lane) == id_key(ids[0])
    # Also when the first messages are done, and the oldest message is always of another ticket
    world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    left = [id_ for id_ in ids if id_ in world.store.pending]
    assert 0 < len(left) < TICKETS
    assert undone.oldest_undone(world.lane) == id_key(left[0])
    assert len(looked_at) <= 4


def test_a_replayed_message_is_the_oldest_undone_one(looked_at: list[Ticket]) -> None:
    world, ids = backlog()
    parcel, ticket = world.running()[0]
    world.step([world.outcome(parcel, ticket, Kind.DEAD)])
    [dead] = world.store.dead
    assert dead == ids[0]
    assert undone.oldest_undone(world.lane) == id_key(ids[1])
    looked_at.clear()
    world.order(do="replay", letters=[dead])
    assert undone.oldest_undone(world.lane) == id_key(dead)
    # While it is parked, and when it is released, which puts its ticket behind all others
    for do in ("park", "release"):
        world.order(do=do, ticket="T0")
        assert undone.oldest_undone(world.lane) == id_key(dead)
    assert len(looked_at) <= 8


def test_a_ticket_that_always_has_work_does_not_hide_an_older_message(looked_at: list[Ticket]) -> None:
    # Given the first ticket with further messages, whose first message is done, and an older message of another ticket
    # behind it in the lane
    world = LaneWorld(window=1000)
    busy = world.push("busy")
    other = world.push("other", "long")
    late = world.push("busy")
    world.read()
    world.join("w1@h", slots=1)
    parcel, ticket = next((p, t) for p, t in world.running() if t == "busy")
    world.step([world.outcome(parcel, ticket, Kind.DONE)])
    assert world.store.done == busy[:1]
    assert set(world.store.pending) == {*other, *late}
    assert undone.oldest_undone(world.lane) == id_key(other[0])
