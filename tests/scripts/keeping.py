"""A leader's retention over the lanes of a `World`, and what the stream has left."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from bridge.leader.stream.retention import Retention
from bridge.routing.keys import LaneKeys
from bridge.routing.transitions import Advanced
from tests.scripts.world import Client, World

#: What a batch came to: retention needs nothing of it.
WRITTEN = Advanced(0, 0, 0)
NEAR = "neighbour"


def left(world: World) -> list[str]:
    """Ids of the entries that are in the stream."""
    return [id_.decode() for id_, _ in world.client.xrange(world.keys.stream)]


def acknowledged(world: World, ids: list[str], group: str | None = None) -> list[str]:
    """``ids`` after they were acknowledged."""
    world.client.xack(world.keys.stream, group or world.keys.group, *ids)
    return ids


def letter(world: World, id_: str, group: str | None = None) -> str:
    """Makes an acknowledged message a dead one."""
    dead = LaneKeys(world.keys.stream, group or world.keys.group).dead
    return str(world.client.xadd(dead, {"message_id": id_, "reason": "gave up"}).decode())


class Clock:
    """Time that only moves when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


def keeper(
    world: World,
    seconds: float | None = 0.0,
    clock: Clock | None = None,
    agrees: Callable[[], bool] = lambda: True,
    client: Client | None = None,
) -> Retention:
    """The retention of a leader of this world. ``agrees``: whether its picture agrees with the pending list.
    ``client``: its own one, in place of the world's.
    """
    settings = SimpleNamespace(keys=world.keys, retention=seconds)
    servers = SimpleNamespace(server_ms=lambda: int((clock or time).time() * 1000))
    term = SimpleNamespace(
        redis=client or world.client, leadership=world.lead, keys=world.keys, settings=settings, clock=servers
    )
    steps = SimpleNamespace(after_write=[])
    return Retention(cast(Any, term), cast(Any, steps), agrees)
