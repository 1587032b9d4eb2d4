"""A new leader reads the waiting messages page by page: events between two pages, and what other parts see of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.lane_world import LaneWorld

PAGE = 10


def behind(**settings: Any) -> LaneWorld:
    """A lane with 10 messages of a stuck ticket, then 20 of others. The new leader has read one page of them."""
    world = LaneWorld(page=PAGE, sliced=True, **settings)
    world.join("w1@h", slots=4)
    world.push("stuck", count=PAGE)
    for _ in range(10):
        world.push("a")
        world.push("b")
    world.read()
    world.rebuild()
    assert world.behind
    return world


def catch_up(world: LaneWorld) -> None:
    while world.behind:
        world.step()
        world.check()


def finish_all(world: LaneWorld) -> None:
    """Handles all messages, and checks the lane at each step."""
    for _ in range(1000):
        running = world.running()
        if not (running or world.behind or world.refill.waits):
            return
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        world.check()
    raise AssertionError("it does not end")


def done_of(world: LaneWorld, ticket: str) -> list[str]:
    return [id_ for id_ in world.store.done if world.ticket_of(id_) == ticket]


def test_the_first_tickets_go_on_while_the_rest_is_read() -> None:
    world = LaneWorld(page=PAGE, sliced=True)
    world.join("w1@h", slots=4)
    world.push("first")
    world.push("stuck", count=100)
    world.read()
    world.store.parcels.clear()
    world.leave(*world.registered)
    world.rebuild()
    # A worker joins, and gets the messages that are known so far
    world.join("w2@h", slots=4)
    assert world.behind
    assert "first" in {ticket for _, ticket in world.running()}
    finish_all(world)
    assert sorted(world.store.done, key=id_key) == list(world.store.entries)


def test_nothing_newer_is_read_before_all_is_taken_in() -> None:
    world = behind()
    world.push("a", count=3)
    while world.behind:
        assert len(world.store.unread()) == 3
        world.read()
        world.check()
    world.read()
    finish_all(world)
    assert done_of(world, "a") == sorted(done_of(world, "a"), key=id_key)
    assert len(done_of(world, "a")) == 13


@pytest.mark.parametrize("when", [0, 1])
def test_a_dead_message_that_is_put_back_takes_its_place(when: int) -> None:
    """Whether the leader has read its place already or not."""
    world = LaneWorld(page=PAGE, sliced=True, max_attempts=1)
    world.join("w1@h", slots=4)
    world.push("stuck", count=PAGE)
    dead = world.push("a")[0]
    world.read()
    [(parcel, ticket)] = [one for one in world.running() if one[1] == "a"]
    world.step([world.outcome(parcel, ticket, Kind.FAILED)])
    assert world.store.dead == [dead]
    world.push("a", count=PAGE)
    world.push("b", count=PAGE)
    world.leave(*world.registered)
    world.read()
    world.rebuild()
    for _ in range(when):
        world.step()
    assert world.behind
    assert world.order(do="replay", letters=[dead])["replayed"] == [dead]
    world.failures.pop(dead, None)
    world.check()
    catch_up(world)
    world.join("w2@h", slots=4)
    finish_all(world)
    assert done_of(world, "a") == sorted([dead, *done_of(world, "a")[1:]], key=id_key)
    assert len(done_of(world, "a")) == PAGE + 1


def test_a_spilled_ticket_is_read_again_no_further_than_the_leader_has_come() -> None:
    world = LaneWorld(page=PAGE, sliced=True, window=100)
    world.join("w1@h", slots=4)
    for _ in range(300):
        world.push("a")
        world.push("b")
    while world.store.unread():
        world.read()
    world.rebuild()
    finish_all(world)
    for ticket in ("a", "b"):
        assert done_of(world, ticket) == sorted(done_of(world, ticket), key=id_key)
        assert len(done_of(world, ticket)) == 300


def test_messages_given_back_from_a_run_are_not_taken_twice() -> None:
    # Given a run in flight that is later than a page of a stuck ticket
    world = LaneWorld(page=PAGE, sliced=True)
    world.join("w1@h", slots=4)
    world.push("stuck", count=2 * PAGE)
    run = world.push("a")
    world.read()
    world.rebuild()
    assert world.behind
    # When it is given back before the leader has read its place
    [(parcel, ticket)] = [one for one in world.running() if one[1] == "a"]
    world.lane.consumers[next(iter(world.registered))].draining = True
    world.step([world.outcome(parcel, ticket, Kind.RETURNED)])
    world.check()
    catch_up(world)
    assert [message.id for message in world.lane.tickets["a"].waiting] == run
    world.lane.consumers[next(iter(world.registered))].draining = False
    finish_all(world)
    assert done_of(world, "a") == run


def test_a_ticket_that_is_parked_while_the_leader_is_behind_is_parked_whole() -> None:
    world = behind()
    world.order(do="park", ticket="b")
    catch_up(world)
    finish_all(world)
    assert not done_of(world, "b") or world.lane.parked["b"].shelved == 10 - len(done_of(world, "b"))
    world.order(do="release", ticket="b")
    finish_all(world)
    assert done_of(world, "b") == sorted(done_of(world, "b"), key=id_key)
    assert len(done_of(world, "b")) == 10


def test_a_message_that_was_replayed_behind_one_that_was_begun_is_not_forgotten_when_no_consumer_can_run_it() -> None:
    # Given a message that was replayed while a later one of its ticket ran, and the loss of that one's consumer
    world = LaneWorld(page=3, sliced=True)
    world.join("other@h", tasks=frozenset({"short"}))
    able = world.join("able@h")
    world.push("stuck", "alone", count=3)
    first, *others = world.push("a", "alone", count=3)
    world.read()
    world.step([world.outcome(parcel, ticket, Kind.DEAD) for parcel, ticket in world.running() if ticket == "a"])
    world.order(do="replay", letters=[first])
    world.leave(able)
    # When another leader takes over, which reads the one that was begun by its id, and reads the replayed one later
    world.rebuild()
    world.check()
    catch_up(world)
    # Then all of them end, and the one that was begun comes first
    world.join("able@h")
    finish_all(world)
    assert done_of(world, "a") == [others[0], first, *others[1:]]


@given(
    pushes=st.lists(st.tuples(st.sampled_from("TU"), st.integers(0, 3) | st.integers(0, 30)), min_size=2, max_size=12),
    first=st.lists(st.booleans(), min_size=12, max_size=12),
    page=st.integers(1, 4),
    slices=st.integers(0, 4),
)
@settings(max_examples=150)
def test_messages_that_are_replayed_while_the_leader_is_behind_go_in_their_places(
    pushes: list[tuple[str, int]], first: list[bool], page: int, slices: int
) -> None:
    # Given dead messages, some of which were delayed. Some are replayed, and then a new leader reads the lane
    world = LaneWorld(clocked=True, page=page, sliced=True)
    world.join("w1@h", slots=4)
    ids = []
    for ticket, delay_ms in pushes:
        ids.append(world.push_delayed(ticket, world.now + delay_ms) if delay_ms else world.push(ticket)[0])
        world.now += 2
    world.read()
    world.now += 40
    world.step()
    while running := world.running():
        world.step([world.outcome(parcel, ticket, Kind.DEAD) for parcel, ticket in running])
    assert sorted(world.store.dead) == sorted(ids)
    world.leave(*world.registered)
    some = [id_ for id_, is_first in zip(ids, first, strict=False) if is_first]
    world.order(do="replay", letters=some)
    world.rebuild()
    for _ in range(slices):
        world.step()

    # When the others are replayed meanwhile: each goes out in its place, which `Store.take` checks
    world.join("w1@h", slots=4)
    world.order(do="replay", letters=[id_ for id_ in ids if id_ not in some])
    world.check()
    finish_all(world)
    assert sorted(world.store.done) == sorted(ids)
    assert (world.store.pending, world.store.late) == ({}, {})


@given(
    tasks=st.none() | st.just(frozenset({"short"})),
    count=st.integers(2, 5),
    gone=st.sets(st.integers(1, 4)),
    kind=st.sampled_from([Kind.RETURNED, Kind.FAILED, Kind.NACKED, Kind.LOST, Kind.INTERRUPTED]),
    last=st.sampled_from([Kind.DONE, Kind.DROPPED, Kind.DEAD]),
)
def test_messages_of_a_run_that_were_deleted_before_a_new_leader_read_them_are_dead_letters_in_their_turn(
    tasks: frozenset[str] | None, count: int, gone: set[int], kind: Kind, last: Kind
) -> None:
    # Given a run whose later entries are deleted. A new leader has no copy of them
    world = LaneWorld()
    world.lane.service_ms["short"] = 0.1
    world.join("w1@h", slots=1, tasks=tasks)
    ids = world.push("T", count=count)
    world.push("other", count=count)
    world.read()
    [(_, held)] = [parcel.runs["T"] for parcel, ticket in world.running() if ticket == "T"]
    assert held == ids
    trimmed = [id_ for at, id_ in enumerate(ids) if at in gone]
    for id_ in trimmed:
        world.store.entries[id_] = []
    world.rebuild()

    # When its first message comes again, and ends then
    for end in (kind, last):
        found = next((parcel, ticket) for parcel, ticket in world.running() if ticket == "T")
        world.step([world.outcome(*found, end)])
        world.now += 20_000
        world.step()

    # Then no worker gets one without its payload, and all others are handled
    while running := world.running():
        sent = {id_ for parcel, _ in running for _, held in parcel.runs.values() for id_ in held}
        assert sent.isdisjoint(trimmed)
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    assert [id_ for id_ in world.store.dead if id_ != ids[0]] == trimmed
    assert not world.store.pending
