"""The Lua scripts of a producer: they append messages of one task, in parts, and each message once if asked to.

The messages of a part are encoded once, as RESP, when they are checked. So this module also has the openings of the
calls. A producer sends an opening and then the encoded messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from redis import Redis

from bridge.routing.errors import PayloadError
from bridge.routing.keys import push_once as push_once_key
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_PUSH_MANY = Script("push_many")
_PUSH_ONCE = Script("push_once")

#: Scripts that must be loaded on a server before calls are sent there.
LOADING: tuple[tuple[str, str, str], ...] = (_PUSH_MANY.loading, _PUSH_ONCE.loading)
#: How long the ids of an idempotency key are kept, in seconds.
IDEMPOTENCY_S = 86_400


def push_many(client: Redis, stream: str, task: str, arguments: Sequence[bytes]) -> list[str]:
    """Appends messages, all or none. Returns their ids. ``arguments``: ticket and payload of each message in turn."""
    return ids_in(_PUSH_MANY.run(client, [stream], [task, *arguments]), "")


@lru_cache(maxsize=64)
def many_opening(stream: str, task: str, arguments: int) -> bytes:
    """The beginning of the same call, before ``arguments`` more arguments."""
    return _PUSH_MANY.opening([stream], [task], arguments)


def push_once(
    client: Redis, stream: str, task: str, arguments: Sequence[bytes], key: str, first: int, digest: str
) -> list[str]:
    """Appends messages, all or none, unless they were appended under ``key`` before. Returns their ids.

    ``first``: the number of the first of them among all messages of this key; ``digest``: hexadecimal, of the messages.
    Raises `PayloadError` when other messages were pushed under the key.
    """
    keys, args = _once(stream, task, key, first, digest)
    return ids_in(_PUSH_ONCE.run(client, keys, [*args, *arguments]), key)


def once_opening(stream: str, task: str, arguments: int, key: str, first: int, digest: str) -> bytes:
    """The beginning of the same call, before ``arguments`` more arguments."""
    keys, args = _once(stream, task, key, first, digest)
    return _PUSH_ONCE.opening(keys, args, arguments)


def ids_in(reply: Sequence[bytes], key: str) -> list[str]:
    """The ids in a script's reply. Raises `PayloadError` as `push_once` does."""
    if code_of(reply[0]) is ReturnCode.CHANGED:
        raise PayloadError(f"other messages were pushed under the idempotency key {key!r}: use a key for each push")
    return text_of(reply[1]).split(" ")


def _once(stream: str, task: str, key: str, first: int, digest: str) -> tuple[list[Argument], list[Argument]]:
    return [stream, push_once_key(stream, key)], [first, digest, IDEMPOTENCY_S, task]
