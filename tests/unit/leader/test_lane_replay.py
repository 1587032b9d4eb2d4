"""Replayed dead messages: each runs once, in its place, however much of its ticket is in memory."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.routing.batch import Batch
from bridge.routing.ids import id_key
from bridge.routing.messages import Message
from tests.unit.leader.lane_world import LaneWorld
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
