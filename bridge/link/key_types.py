"""Refuses a lane when one of its keys has the wrong Redis type, because another program uses the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.routing.errors import ConfigurationError
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys


#: Attributes of `LaneKeys` -> the type of the key, as TYPE says it.
TYPES = {
    "stream": "stream",
    "leader": "string",
    "term": "string",
    "fence": "string",
    "tickets": "hash",
    "applied": "hash",
    "retries": "zset",
    "delayed": "zset",
    "late": "zset",
    "holding": "zset",
    "outcomes": "stream",
    "consumers": "hash",
    "dead": "stream",
    "counts": "hash",
    "notices": "hash",
    "history": "stream",
    "drains": "hash",
    "floor": "string",
    "about": "hash",
    "known": "hash",
    "unserved": "hash",
    "state_home": "string",
}


def types_of(keys: LaneKeys) -> dict[str, str]:
    """Each key of the lane that has a fixed name -> its type."""
    return {getattr(keys, name): type_ for name, type_ in TYPES.items()}


def refuse_misplaced(redis: Redis, keys: LaneKeys, *, queues: bool = False) -> None:
    """Raises `ConfigurationError`, one line, when a key of the lane has another type than the lane's; redis errors.

    One round trip; with ``queues`` another two, for the queues of the consumers. A user who may not ask for types is
    not held up.
    """
    try:
        found = _misplaced(redis, types_of(keys))
        if queues and not found:
            names: Any = redis.hkeys(keys.consumers)
            found = _misplaced(redis, {keys.queue(name.decode()): "list" for name in names})
    except NoPermissionError:
        return
    if found:
        clash = ", ".join(
            f"the key {printable(key)} is a {actual}, not a {expected}" for key, actual, expected in found
        )
        what = "it" if len(found) == 1 else "them"
        raise ConfigurationError(
            f"{clash}; rename or delete {what}, or name another lane with bridge_stream or bridge_group"
        )


def _misplaced(redis: Redis, expected: dict[str, str]) -> list[tuple[str, str, str]]:
    """(key, its type, the type that it should have) for each existing key with a wrong type."""
    with redis.pipeline(transaction=False) as pipe:
        for key in expected:
            pipe.type(key)
        types = [reply.decode() for reply in pipe.execute()]
    return [
        (key, actual, type_)
        for (key, type_), actual in zip(expected.items(), types, strict=True)
        if actual not in ("none", type_)
    ]
