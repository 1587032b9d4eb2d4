"""Replayed dead messages: each runs once, in its place, however much of its ticket is in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.ids import id_key
from bridge.routing.messages import Message
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import TASKS, LaneWorld
from tests.unit.leader.test_lane_spill import finish_all


def world_with_dead(count: int, dead: int, **settings: Any) -> tuple[LaneWorld, list[str]]:
    """A lane whose ticket ``hot`` has ``count`` messages that were read, the first ``dead`` of them dead; and their
    ids.
    """
    world = LaneWorld(window=100, **settings)
    ids = world.push("hot", count=count)
    world.store.read(world.term.leadership, count)
    for id_ in ids[:dead]:
        del world.store.pending[id_]
        world.store.letters[id_] = {"message_id": id_}
    world.lane.read_to = id_key(ids[-1])
    world.rebuild()
    return world, ids


def replay(world: LaneWorld, *ids: str) -> None:
    """The leader carries out an order."""
    batch = Batch()
    for id_ in ids:
        batch.given_back.append(id_)
        batch.replayed.append(id_)
        batch.count("replayed")
        world.lane.replay(Message(id_, "hot", "short", b"1"), batch)
    world.advance(batch)


def test_replayed_messages_come_before_those_that_wait_in_the_order_of_their_ids() -> None:
    world, ids = world_with_dead(20, 10)
    replay(world, ids[4], ids[7])
    replay(world, ids[2], ids[5])
    world.join("w1@h")
    finish_all(world)
    assert world.store.done == [ids[2], ids[4], ids[5], ids[7], *ids[10:]]


@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("place", [5, 120, 199])
def test_a_message_is_handled_once_and_in_its_place_whether_or_not_what_is_around_it_is_in_memory(
    rebuilt: bool, place: int
) -> None:
    # Given more replayed messages than a leader keeps in memory for one ticket
    world, ids = world_with_dead(300, 200)
    others = [id_ for id_ in ids[:200] if id_ != ids[place]]
    replay(world, *others)
    if rebuilt:
        world.rebuild()
        spilled_from = world.lane.tickets["hot"].spilled_from
        assert spilled_from is not None
        assert id_key(ids[5]) < spilled_from < id_key(ids[120])
    # When one more is replayed whose place is among them
    replay(world, ids[place])
    world.check()
    # Then each is done once, in the order of the ids
    world.join("w1@h")
    finish_all(world)
    assert world.store.done == ids
    assert not world.store.pending


SOME_TASKS = st.sampled_from(["short", "middle", "long"])
SETS = st.frozensets(SOME_TASKS, min_size=1)


@given(
    sets=st.lists(SETS, min_size=1, max_size=3),
    policy=st.sampled_from(list(PolicyName)),
    dead=SOME_TASKS,
    before=st.lists(SOME_TASKS, min_size=8, max_size=16),
    since=SOME_TASKS,
    behind=st.lists(SOME_TASKS, max_size=4),
    broken=st.none() | SOME_TASKS,
)
@settings(max_examples=200)
def test_a_replayed_message_that_comes_first_in_a_queued_ticket_is_checked_as_any_other(
    sets: list[frozenset[str]],
    policy: PolicyName,
    dead: str,
    before: list[str],
    since: str,
    behind: list[str],
    broken: str | None,
) -> None:
    # Given a dead message, a later one of its ticket behind others that wait for room, and perhaps an open circuit
    world = LaneWorld(policy=policy, bundle_ms=0.0)
    for number, tasks in enumerate(sets):
        world.join(f"w{number}@h", 1, tasks)
    [letter] = world.push("hot", dead)
    world.store.read(world.term.leadership, 1)
    del world.store.pending[letter]
    world.store.letters[letter] = {"message_id": letter}
    world.lane.read_to = id_key(letter)
    if broken is not None:
        world.lane.stranded.open_circuits.add(broken)
    for number, task in enumerate(before):
        world.push(f"before {number}", task)
    world.push("hot", since)
    for number, task in enumerate(behind):
        world.push(f"behind {number}", task)
    world.read()
    hot = world.lane.tickets["hot"]
    assume(hot.queued)
    turn = hot.turn

    # When the dead one is replayed: it goes to no consumer that cannot run it, and nothing stands still behind it
    world.order(do="replay", letters=[letter])
    world.check()
    assert not hot.queued or hot.turn <= turn, "it lost its turn"
    while running := world.running():
        world.step([world.outcome(*running[0], Kind.DONE)])
        world.check()
    able = frozenset().union(*sets) - {broken}
    firsts = [world.store.waiting(ticket)[:1] for ticket in world.store.ids_of]
    assert not {world.task_of(id_) for [id_] in filter(None, firsts)} & able

    # Then all end, in their order, when nothing is in the way
    if broken is not None:
        world.lane.stranded.open_circuits.discard(broken)
        world.lane.stranded.release(broken)
    world.join("all@h", 2, frozenset(TASKS))
    while running := world.running():
        world.step([world.outcome(*running[0], Kind.DONE)])
        world.check()
    assert not world.store.pending
    assert [id_ for id_ in world.store.done if world.ticket_of(id_) == "hot"] == world.store.ids_of["hot"]
