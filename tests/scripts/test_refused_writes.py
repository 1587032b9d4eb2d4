"""A server that refuses writes for now: the leader's scripts raise its error, and say nothing about the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from bridge.link.connections import error_code, is_outage
from bridge.routing.batch import Batch
from bridge.routing.delaying import move_due
from bridge.routing.errors import LaneConflict
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import adopt, advance, read
from tests.scripts.test_reroute import end_lease, move
from tests.scripts.world import MASTER, OPENING, World

pytestmark = pytest.mark.scripts


def _reroute(world: World) -> None:
    # The one script whose caller says itself what a group that is gone means.
    if move(world) is ReturnCode.NOGROUP:
        raise LaneConflict("the group is gone")


#: Name of a script -> a call of it that would change something.
CALLS: dict[str, Callable[[World], object]] = {
    "advance": lambda world: advance(world.client, world.lead, OPENING, Batch(acknowledged=world.busy[:1])),
    "reroute": _reroute,
    "move_due": lambda world: move_due(world.client, world.lead, 10, "9-0"),
    "adopt": lambda world: adopt(world.client, world.lead, MASTER, world.idle[:2]),
    "read": lambda world: read(world.client, world.lead, 10),
}


def too_few_replicas(world: World) -> str:
    world.client.config_set("min-replicas-to-write", "1")
    return "NOREPLICAS"


def a_replica(world: World) -> str:
    world.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    return "READONLY"


@pytest.fixture
def leaving(world: World) -> Iterator[World]:
    """A lane with everything in it, in which a worker's lease is over."""
    end_lease(world)
    yield world
    world.client.execute_command("REPLICAOF", "NO", "ONE")
    world.client.config_set("min-replicas-to-write", "0")


@pytest.mark.parametrize("refuse", [too_few_replicas, a_replica], ids=lambda refuse: refuse.__name__)
@pytest.mark.parametrize("script", CALLS)
def test_the_error_is_the_servers(script: str, refuse: Callable[[World], str], leaving: World) -> None:
    before = leaving.snapshot()
    code = refuse(leaving)
    with pytest.raises(redis.ResponseError) as found:
        CALLS[script](leaving)
    assert error_code(found.value) == code
    assert is_outage(found.value)
    assert leaving.snapshot() == before
    # And when it accepts writes again
    leaving.client.execute_command("REPLICAOF", "NO", "ONE")
    leaving.client.config_set("min-replicas-to-write", "0")
    CALLS[script](leaving)


def without_a_group(world: World) -> None:
    world.client.xgroup_destroy(world.keys.stream, world.keys.group)


def without_a_stream(world: World) -> None:
    world.client.delete(world.keys.stream)


def with_another_type(world: World) -> None:
    world.client.delete(world.keys.stream)
    world.client.set(world.keys.stream, "text")


@pytest.mark.parametrize("lose", [without_a_group, without_a_stream, with_another_type], ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("script", [name for name in CALLS if name != "read"])
def test_a_group_that_is_gone_is_said_to_be(script: str, lose: Callable[[World], None], leaving: World) -> None:
    lose(leaving)
    before = leaving.snapshot()
    with pytest.raises(LaneConflict, match="is gone"):
        CALLS[script](leaving)
    assert leaving.snapshot() == before
