"""note_tasks, introduce: what the leader writes about itself and about unserved tasks. Only the leader may write it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.routing.errors import NotLeading
from bridge.routing.transitions import introduce, note_tasks
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import World, changes

pytestmark = pytest.mark.scripts


def test_a_note_replaces_the_earlier_one(world: World) -> None:
    keys = world.keys
    note_tasks(world.client, world.lead, {"a": 1, "b": 2}, [], {"x": b"{}", "y": b"{}"})
    before = world.snapshot()
    note_tasks(world.client, world.lead, {"b": 3}, ["a"], {"y": b'{"n":1}'})
    after = world.snapshot()
    assert changes(before, after) == {keys.known, keys.unserved}
    assert after[keys.known]["value"] == {"b": "3"}
    assert after[keys.unserved]["value"] == {"y": '{"n":1}'}

    note_tasks(world.client, world.lead, {}, [], {})
    assert keys.unserved not in world.snapshot()


def test_thousands_of_tasks_are_noted_in_one_call(world: World) -> None:
    many = {f"task.{n}": n for n in range(10_000)}
    note_tasks(world.client, world.lead, many, [], {})
    assert len(world.snapshot()[world.keys.known]["value"]) == len(many)


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_that_does_not_lead_notes_nothing(how: Any, world: World) -> None:
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        note_tasks(world.client, world.lead, {"a": 1}, ["b"], {"x": b"{}"})
    with pytest.raises(NotLeading):
        introduce(world.client, world.lead, b"{}", 2)
    assert world.snapshot() == before


def test_the_leader_introduces_itself_in_the_place_of_the_last_one(world: World) -> None:
    keys = world.keys
    introduce(world.client, world.lead, b"1", 1)
    before = world.snapshot()
    introduce(world.client, world.lead, b"2", 2)
    after = world.snapshot()
    assert changes(before, after) == {keys.about}
    assert after[keys.about]["value"] == {"master": "2", "format": "2"}


def test_a_leader_without_a_history_deletes_an_old_one_while_it_leads(world: World) -> None:
    world.client.xadd(world.keys.history, {"d": "[]"})
    introduce(world.client, world.lead, b"1", 1)
    with pytest.raises(NotLeading):
        introduce(world.client, replace(world.lead, token="old"), b"1", 1, keeps_history=False)
    assert world.client.exists(world.keys.history)
    introduce(world.client, world.lead, b"1", 1, keeps_history=False)
    assert not world.client.exists(world.keys.history)
