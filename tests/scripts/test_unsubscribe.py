"""unsubscribe: deletes a lane that nobody serves, whole and in one step."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.link.key_types import types_of
from bridge.protocol.registration import read_registration
from bridge.routing.keys import LaneKeys
from bridge.routing.return_codes import ReturnCode
from bridge.routing.subscribing import make_group, unsubscribe
from tests.scripts.world import World

pytestmark = pytest.mark.scripts


def call(world: World, **registered: Any) -> tuple[ReturnCode, str]:
    keys = world.keys
    found: Any = registered or {
        name: (text, read_registration(text).incarnation) for name, text in world.client.hgetall(keys.consumers).items()
    }
    return unsubscribe(world.client, keys, found, [key for key in types_of(keys) if key != keys.stream])


def test_while_a_master_leads_nothing_is_deleted(world: World) -> None:
    before = world.snapshot()
    code, token = call(world)
    assert (code, token) == (ReturnCode.HELD, world.client.get(world.keys.leader).decode())
    assert world.snapshot() == before


def test_while_a_consumer_lives_nothing_is_deleted(world: World) -> None:
    world.client.delete(world.keys.leader)
    before = world.snapshot()
    code, name = call(world)
    assert code is ReturnCode.ALIVE
    assert name.encode() in world.client.hkeys(world.keys.consumers)
    assert world.snapshot() == before


@pytest.mark.parametrize("known", [{}, {"w1@a": ("another", "x")}], ids=["a new one", "another registration"])
def test_when_other_consumers_are_registered_than_thought_nothing_is_deleted(known: Any, world: World) -> None:
    world.client.delete(world.keys.leader)
    world.client.hset(world.keys.consumers, mapping={"w1@a": "{}"})
    before = world.snapshot()
    keys = world.keys
    assert unsubscribe(world.client, keys, known, [keys.floor]) == (ReturnCode.CHANGED, "")
    assert world.snapshot() == before


def test_a_lane_without_live_members_goes_and_its_neighbour_stays(world: World) -> None:
    keys, client = world.keys, world.client
    client.delete(keys.leader, *client.keys(f"{keys.prefix}:lease:*"))
    length = client.xlen(keys.stream)
    neighbour = LaneKeys(keys.stream, "another")
    make_group(client, neighbour, "0")
    client.set(neighbour.fence, 1)
    code, deleted = call(world)
    assert code is ReturnCode.OK
    assert int(deleted) >= 2
    assert not client.exists(*(key for key in types_of(keys) if key != keys.stream))
    names = {one["name"] for one in client.xinfo_groups(keys.stream)}
    assert keys.group.encode() not in names
    assert b"another" in names
    assert client.get(neighbour.fence) == b"1"
    assert client.xlen(keys.stream) == length
    client.delete(neighbour.fence)


def test_without_a_stream_the_keys_go(empty: World) -> None:
    empty.client.set(empty.keys.fence, 1)
    assert call(empty) == (ReturnCode.OK, "1")


def test_a_group_is_made_once(empty: World) -> None:
    keys = empty.keys
    assert make_group(empty.client, keys, "5-0") is True
    assert make_group(empty.client, keys, "0") is False
    assert empty.client.xinfo_groups(keys.stream)[0]["last-delivered-id"] == b"5-0"
