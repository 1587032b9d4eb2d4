"""Calls of scripts of which the product asks for several at once, or sends the encoded call by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from bridge.routing import leadership, producing
from bridge.routing.errors import LaneGone
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import in_layout
from bridge.routing.leadership import Answered, Candidate
from bridge.routing.producing import Places


class LayoutChanged(Exception):
    """A push was refused: another layout is stored, whose text this is."""


def lead(client: Redis, keys: LaneKeys, holder: str, lease_ms: int) -> Answered:
    """Tries to lead a lane of a whole stream. Raises redis errors, and `LaneGone` when the stream was retired."""
    [found] = leadership.lead(client, holder, [Candidate(keys, in_layout(keys.stream), lease_ms)])
    if isinstance(found, RedisError):
        raise found
    if found is None:
        raise LaneGone(f"the stream {keys.stream} was retired or repartitioned")
    return found


def push_many(
    client: Redis, places: Places, task: str, arguments: Sequence[bytes], fields: Sequence[str] = ()
) -> list[str]:
    """Appends messages, all or none. Returns their ids. Raises `LayoutChanged`.

    ``arguments``: of each message in turn the ticket, the payload and the values of ``fields``.
    """
    return _pushed(client, producing.push_many(places, task, len(arguments), tuple(fields)), arguments, "")


def push_once(
    client: Redis,
    places: Places,
    task: str,
    arguments: Sequence[bytes],
    key: str,
    first: int,
    digest: str,
    fields: Sequence[str] = (),
    earliest_ms: int = 0,
) -> list[str]:
    """The same with an idempotency key. Raises `KeyUsed`, and `OptionError` for a time that is past."""
    opening = producing.push_once(places, task, len(arguments), key, first, digest, fields, earliest_ms)
    return _pushed(client, opening, arguments, key)


def _pushed(client: Redis, opening: bytes, arguments: Sequence[bytes], key: str) -> list[str]:
    words = _words(opening, len(arguments))
    try:
        reply: Any = client.execute_command(*words, *arguments)
    except NoScriptError:
        for loading in producing.LOADING:
            client.execute_command(*loading)
        reply = client.execute_command(*words, *arguments)
    stored = producing.stored_layout_in(reply)
    if stored is not None:
        raise LayoutChanged(stored.decode())
    return producing.ids_in(reply, key)


def _words(opening: bytes, more: int) -> list[bytes]:
    """The arguments in the beginning of an encoded call (RESP) that has ``more`` behind it."""
    head, _, rest = opening.partition(b"\r\n")
    found = []
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        size = int(length[1:])
        found.append(rest[:size])
        rest = rest[size + 2 :]
    assert head == b"*%d" % (len(found) + more)
    return found
