"""Waits until a drained consumer has no messages in flight. Never writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.roster import draining
from bridge.link.connections import UNAVAILABLE
from bridge.protocol.registration import readable_or_none
from bridge.routing.errors import OrderFailed
from bridge.routing.groups import pending_summary
from bridge.routing.numbers import count, duration

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Seconds between two reads.
DRAIN_CHECK_S = 0.2


def wait_empty(
    redis: Redis, lanes: Sequence[LaneKeys], name: str, timeout_s: float | None, tell: Callable[[int], None]
) -> None:
    """Returns when consumer ``name`` has no messages in flight in ``lanes``. Calls ``tell`` with each new number of
    them.

    The leader has answered the order to drain, so it sends the consumer nothing, and the number only falls. When the
    consumer dies, the leader moves its messages, and the number falls too. An outage of the server does not end this.

    Raises `OrderFailed` when messages are left after ``timeout_s`` (None: no limit), or the order was revoked.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    last: int | None = None
    left: int | None
    while True:
        try:
            looks = [_look(redis, keys, name) for keys in lanes]
            left, holds = sum(number for number, _ in looks), all(held for _, held in looks)
        except UNAVAILABLE:
            left, holds = last, True
        if left == 0:
            return
        if not holds:
            raise OrderFailed(f"{name} takes work again: it was resumed, or restarted, with {_messages(left)}")
        if left is not None and left != last:
            last = left
            tell(left)
        if until is not None and time.monotonic() >= until:
            raise OrderFailed(
                f"{name} has {_messages(left)} after {duration((timeout_s or 0) * 1000)}; it goes on draining, and "
                f"{NOT_OF_AN_APP.bridge('consumer', 'resume', about=name)} ends that"
            )
        time.sleep(DRAIN_CHECK_S)


def _look(redis: Redis, keys: LaneKeys, name: str) -> tuple[int, bool]:
    """(messages in flight on the consumer, whether the order still holds). It holds when the consumer is gone, or its
    registration cannot be read: the leader sends it nothing then.
    """
    with redis.pipeline(transaction=True) as pipe:
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        pipe.hget(keys.drains, name)
        pipe.hget(keys.consumers, name)
        summary, order, registered = pipe.execute()
    left = pending_summary(summary).under.get(name.encode(), 0)
    registration = readable_or_none(registered)
    if registration is None:
        return left, True
    # An HTTP consumer that leaves ends the order, and the leader forgets it a moment later.
    return left, draining(registration, order) or not redis.exists(keys.lease(registration.incarnation))


def _messages(left: int | None) -> str:
    return "an unknown number of messages in flight" if left is None else f"{count(left, 'message')} in flight"
