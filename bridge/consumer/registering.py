"""Updates a consumer's registration: its slots, its tasks or its queues changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys


def update_registration(redis: Redis, keys: LaneKeys, name: str, incarnation: str, changed: dict[str, Any]) -> None:
    """Writes the fields ``changed`` into the registration, if it is still this incarnation's, and wakes the leader.

    Raises ``WatchError`` when another process changed a registration meanwhile: then try again.
    """
    with redis.pipeline(transaction=True) as pipe:
        pipe.watch(keys.consumers)
        found: Any = pipe.hget(keys.consumers, name)
        registration = orjson.loads(found) if found else {}
        if registration.get("incarnation") != incarnation:
            return
        pipe.multi()
        pipe.hset(keys.consumers, name, orjson.dumps({**registration, **changed}).decode())
        pipe.xadd(keys.outcomes, {"i": incarnation, "joined": name})
        pipe.execute()
