"""What the tests of `bridge subscription` share: two subscriptions, a full lane, and what is in the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line

SUBSCRIPTIONS = {"billing": {"task": "shop.update"}, "search": {"task": "shop.once"}}


@contextmanager
def shell_of(valkey: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """The command line of an app with these subscriptions."""
    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_app": "shop", "bridge_default_task": None}
    with command_line(folder, monkeypatch, valkey.url, **settings) as made:
        yield made


def pushed(redis: Any, number: int) -> list[str]:
    return [str(redis.xadd("ticket_stream", {"ticket_id": f"T{n}", "payload": "{}"})) for n in range(number)]


def raw(valkey: EmbeddedServer) -> dict[Any, Any]:
    """All keys with their contents."""
    with valkey.client() as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def full_lane(valkey: EmbeddedServer, redis: Any) -> Lane:
    """The lane of `billing` with a bit of everything, led, with a live consumer."""
    lane = Lane(valkey)
    lane.keys = LaneKeys("ticket_stream", "billing")
    lane.make_group()
    lane.lead()
    lane.join("w1@here")
    first, second, _ = lane.add("A", "B", "C")
    lane.read(2)
    lane.dispatch("w1@here", "A", [first])
    lane.hold_back("B", second, 1, 60_000, "why")
    redis.hset(lane.keys.about, mapping={"format": 1, "app": "shop"})
    redis.xadd(lane.keys.dead, {"message_id": first})
    redis.set(lane.keys.floor, "1-1")
    return lane
