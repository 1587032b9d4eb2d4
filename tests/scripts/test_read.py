"""read.lua: only the leader of the current term takes entries from the stream."""

from __future__ import annotations

from typing import Any

import pytest

from routing.errors import NotLeading
from routing.states import State
from routing.transitions import read
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import MASTER, World

pytestmark = pytest.mark.scripts


def test_new_entries_become_the_masters_in_stream_order(world: World) -> None:
    # Given unread entries
    keys = world.keys
    before = world.snapshot()
    assert [world.state(id_) for id_ in world.unread] == [State.UNREAD] * len(world.unread)
    # When the leader reads
    entries = read(world.client, world.lead, 100)
    # Then it has them in order, with their fields, and nothing else changed
    assert [id_.decode() for id_, _ in entries] == world.unread
    assert entries[0][1][:2] == [b"ticket_id", b"busy"]
    group = before[keys.stream]["value"]["groups"][keys.group]
    group["last"] = world.unread[-1]
    group["pending"].update(dict.fromkeys(world.unread, MASTER))
    assert world.snapshot() == before


def test_no_more_than_asked_for_is_read_and_nothing_twice(world: World) -> None:
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 1)] == world.unread[:1]
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 100)] == world.unread[1:]
    assert read(world.client, world.lead, 100) == []


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_who_does_not_lead_takes_nothing_from_the_next_leader(how: Any, world: World) -> None:
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        read(world.client, world.lead, 100)
    assert world.snapshot() == before
