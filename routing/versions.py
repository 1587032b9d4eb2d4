"""Which streams are versions of each other: one stream follows older ones, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from bridge.routing.errors import ConfigurationError
from bridge.routing.groups import group_in
from bridge.routing.ids import id_key
from bridge.routing.keys import follows_key, newer_key
from bridge.routing.return_codes import ReturnCode, code_for_leader, text_of
from bridge.routing.scripts import Argument, Script
from bridge.routing.transitions import Leadership

#: Notes which older versions a stream follows.
FOLLOW = Script("follow")


def follow(client: Redis, lead: Leadership, older: Sequence[str]) -> None:
    """Notes that the stream of the lane follows ``older``, oldest first. Raises `NotLeading`, and `ConfigurationError`
    when one of them follows the stream.
    """
    stream = lead.keys.stream
    names: list[Argument] = [lead.keys.leader, follows_key(stream), newer_key(stream), *map(newer_key, older)]
    reply = FOLLOW.run(client, names, [lead.token, stream, orjson.dumps(list(older)), *older])
    if code_for_leader(reply[0], lead.keys) is ReturnCode.CIRCLE:
        raise ConfigurationError(_circle(stream, text_of(reply[1])))


def check_versions(client: Redis, stream: str, older: Sequence[str]) -> None:
    """Raises `ConfigurationError` when ``stream`` cannot follow ``older``: one of them follows it, or follows a stream
    that is not among those before it.
    """
    for name in set(older) & newer_versions(client, stream):
        raise ConfigurationError(_circle(stream, name))
    for place, name in enumerate(older):
        theirs = older_versions(client, name)
        if stream in theirs:
            raise ConfigurationError(_circle(stream, name))
        for missing in theirs:
            if missing not in older[:place]:
                raise ConfigurationError(
                    f"bridge_follows names {name!r}, which follows {missing!r}: name that too, before it"
                )


def refuse_left_behind(client: Redis, stream: str, group: str, older: Sequence[str]) -> None:
    """Raises `ConfigurationError` when a version that ``older`` does not name, and that is older than ``stream``, has
    messages of ``group`` that are not done: newer ones of their tickets would start before them.

    It cannot look at versions for which this user has no permission.
    """
    known = {stream, *older}
    found = set(older_versions(client, stream)) - known
    with suppress(NoPermissionError):
        for one in set().union(*(newer_versions(client, name) for name in older)) - known:
            # One that follows this stream is newer.
            if stream not in older_versions(client, one):
                found.add(one)
    for name in sorted(found):
        if _has_undone(client, name, group):
            raise ConfigurationError(
                f"{name!r}, an older version of {stream!r}, has messages of {group!r} that are not done: name it in "
                "bridge_follows until they are"
            )


def _has_undone(client: Redis, stream: str, group: str) -> bool:
    try:
        reply: Any = client.execute_command("XINFO", "GROUPS", stream)
    except NoPermissionError:
        return False
    except ResponseError as exc:
        reply = exc
    found = group_in(reply, group)
    if found is None:
        return False
    last: Any = client.execute_command("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return found.pending > 0 or (bool(last) and id_key(last[0][0].decode()) > id_key(found.read_to))


def older_versions(client: Redis, stream: str) -> tuple[str, ...]:
    """The streams that ``stream`` follows, oldest first."""
    text = client.get(follows_key(stream))
    return () if text is None else tuple(orjson.loads(text))


def newer_versions(client: Redis, stream: str) -> set[str]:
    """The streams that follow ``stream``."""
    return {text_of(name) for name in client.smembers(newer_key(stream))}


def leave_chain(client: Redis, stream: str) -> None:
    """Takes a retired stream out of what other streams follow."""
    for newer in newer_versions(client, stream):
        older = [name for name in older_versions(client, newer) if name != stream]
        client.set(follows_key(newer), orjson.dumps(older))
    for name in older_versions(client, stream):
        client.srem(newer_key(name), stream)
    client.delete(follows_key(stream), newer_key(stream))


def _circle(stream: str, older: str) -> str:
    return f"bridge_follows names {older!r}, which follows {stream!r} itself: streams cannot follow each other"
