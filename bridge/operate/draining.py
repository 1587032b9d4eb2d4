"""Waits until a consumer that takes nothing new has nothing in flight any more. Only looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from bridge.inspect.roster import draining
from bridge.link.connections import UNAVAILABLE
from bridge.routing.errors import OrderFailed
from bridge.routing.text import count, duration

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Seconds between two looks.
DRAIN_CHECK_S = 0.2


def wait_empty(redis: Redis, keys: LaneKeys, name: str, timeout_s: float | None, tell: Callable[[int], None]) -> None:
    """Returns when nothing is in flight on consumer ``name``; calls ``tell`` with each new number of messages that are.

    Since its order was answered the leader sends it nothing, so the number only falls; what a consumer had that died
    meanwhile is moved by the leader, and falls away as well. A server that is away is waited out.

    Raises `OrderFailed` when it is not empty after ``timeout_s`` (None: for ever), or the order holds no longer.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    told: int | None = None
    left: int | None
    while True:
        try:
            left, holds = _look(redis, keys, name)
        except UNAVAILABLE:
            left, holds = told, True
        if left == 0:
            return
        if not holds:
            raise OrderFailed(f"{name} takes work again: it was resumed, or started anew, with {_messages(left)}")
        if left is not None and left != told:
            told = left
            tell(left)
        if until is not None and time.monotonic() >= until:
            raise OrderFailed(
                f"{name} has {_messages(left)} after {duration((timeout_s or 0) * 1000)}; it goes on draining, and "
                f"`bridge consumer resume {name}` ends that"
            )
        time.sleep(DRAIN_CHECK_S)


def _look(redis: Redis, keys: LaneKeys, name: str) -> tuple[int, bool]:
    """(messages in flight on the consumer, whether the order holds or the consumer is gone)."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        pipe.hget(keys.drains, name)
        pipe.hget(keys.consumers, name)
        summary, order, registration = pipe.execute()
    left = next((int(number) for of, number in summary[3] or () if of == name.encode()), 0)
    told: Any = orjson.loads(registration) if registration else None
    return left, told is None or draining(told, order)


def _messages(left: int | None) -> str:
    return "an unknown number of messages in flight" if left is None else f"{count(left, 'message')} in flight"
