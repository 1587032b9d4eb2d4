"""Which streams are versions of each other: one stream follows older ones, oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import orjson
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from bridge.routing.errors import ConfigurationError
from bridge.routing.groups import group_in
from bridge.routing.ids import id_before, id_key
from bridge.routing.keys import LaneKeys, follows_key, newer_key
from bridge.routing.layouts import retired_among
from bridge.routing.return_codes import ReturnCode, code_for_leader, text_of
from bridge.routing.scripts import Argument, Script
from bridge.routing.transitions import Leadership

#: Notes which older versions a stream follows.
FOLLOW = Script("follow")


def follow(
    client: Redis, lead: Leadership, older: Sequence[str], states: tuple[LaneKeys, LaneKeys] | None = None
) -> None:
    """Notes that the stream of the lane follows ``older``, oldest first. What was noted before stays noted until it is
    retired. Raises `NotLeading`, and `ConfigurationError` when one of them follows the stream, itself or over others.

    ``states``: the keys of the whole stream, and of its oldest version, which names where states of tickets are kept.
    That is noted for the stream, too, unless it was noted before: the key of the oldest version goes when that is
    retired. None: ``older`` are partitions of the same stream.
    """
    stream = lead.keys.stream
    older = [*(name for name in older_versions(client, stream) if name not in older), *older]
    own, oldest = states or (lead.keys, lead.keys)
    names: list[Argument] = [lead.keys.leader, follows_key(stream), newer_key(stream)]
    names += [own.state_home, oldest.state_home, *map(newer_key, older)]
    home = "" if states is None else oldest.stream
    arguments: list[Argument] = [lead.token, stream, orjson.dumps(older), home, follows_key("%s"), *older]
    try:
        reply = FOLLOW.run(client, names, arguments)
    except ResponseError:
        # The script may have found what cannot be read. Its error names no key, and this one does.
        check_versions(client, stream, older)
        raise
    if code_for_leader(reply[0], lead.keys) is ReturnCode.CIRCLE:
        raise ConfigurationError(_circle(stream, text_of(reply[1])))


def check_versions(client: Redis, stream: str, older: Sequence[str]) -> None:
    """Raises `ConfigurationError` when ``stream`` cannot follow ``older``: one of them follows it, itself or over
    others, or follows one that is named after it.
    """
    for name in set(older) & newer_versions(client, stream):
        raise ConfigurationError(_circle(stream, name))
    for place, name in enumerate(older):
        theirs = followed_by(client, name)
        if stream in theirs:
            raise ConfigurationError(_circle(stream, name))
        for late in older[place + 1 :]:
            if late in theirs:
                raise ConfigurationError(f"bridge_follows names {name!r}, which follows {late!r}: name that before it")


def dropped_versions(
    client: Redis,
    stream: str,
    group: str,
    older: Sequence[str],
    partitions: Collection[str] = (),
    hidden: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """The versions older than ``stream`` that ``older`` does not name, and that are not retired. Without those where
    this user has no permission for the lane of ``group``: ``hidden`` is called with each. ``partitions``: streams
    beside this one that follow the same older partitions.
    """
    known = {stream, *older, *partitions}
    found = set(older_versions(client, stream))
    with suppress(NoPermissionError):
        for name in older:
            found.update(older_versions(client, name))
            # One that follows this stream is newer.
            others = newer_versions(client, name) - known - found
            found.update(one for one in others if stream not in older_versions(client, one))
    may_look = []
    for name in sorted(found - known):
        if _may_look(client, LaneKeys(name, group)):
            may_look.append(name)
        else:
            hidden(name)
    return may_look


def _may_look(client: Redis, keys: LaneKeys) -> bool:
    try:
        client.exists(keys.stream, keys.leader, keys.tickets, keys.fence)
    except NoPermissionError:
        return False
    return True


def refuse_left_behind(
    client: Redis, stream: str, group: str, older: Sequence[str], partitions: Collection[str] = ()
) -> None:
    """Raises `ConfigurationError` when a dropped version has messages of ``group`` that are not done: newer ones of
    their tickets would start before them.
    """
    for name in dropped_versions(client, stream, group, older, partitions):
        if undone_in(client, name, group)[0]:
            raise ConfigurationError(left_behind(client, name, stream, group))


def refuse_unaware_leader(client: Redis, keys: LaneKeys, older: Sequence[str], wait_s: float) -> None:
    """Raises `ConfigurationError` when another master leads the lane, and has not noted ``older`` for ``wait_s``: it
    would not compare them. A leader notes them when its term begins.
    """
    end = time.monotonic() + wait_s
    while client.exists(keys.leader) and (missing := [one for one in older if one not in _noted(client, keys, older)]):
        if time.monotonic() >= end:
            raise ConfigurationError(
                f"another master leads {keys.stream!r}, and its app does not name {missing[0]!r} in bridge_follows: "
                "stop such masters first, then start this one"
            )
        time.sleep(0.1)


def _noted(client: Redis, keys: LaneKeys, older: Sequence[str]) -> set[str]:
    return set().union(*(older_versions(client, stream) for stream in (keys.stream, *older)))


def left_behind(client: Redis, dropped: str, stream: str, group: str) -> str:
    """That a dropped version has undone messages, and what to do. Raises redis errors."""
    is_retired = False
    with suppress(NoPermissionError):
        # A message came by XADD while it was retired, and that was not finished.
        is_retired = bool(retired_among(client, [dropped]))
    undo = "it was retired, so run `bridge stream retire --undo` for it, then " if is_retired else ""
    return (
        f"{dropped!r}, an older version of {stream!r}, has messages of {group!r} that are not done: {undo}name it in "
        "bridge_follows until they are"
    )


def not_led(holder: str, older: str) -> str:
    """Why nobody leads a version, although ``holder`` leads the older one."""
    return (
        f"no master leads this version, and {holder} leads the older version {older}: if its app does not name both, "
        "stop it; messages of this version wait until one master leads both"
    )


def undone_in(client: Redis, stream: str, group: str) -> tuple[bool, str]:
    """(whether ``stream`` has messages that ``group`` is not done with, an id: nothing up to it is undone).

    Without the group nothing of it is: its subscription is younger than that version was in use.
    """
    try:
        reply: Any = client.execute_command("XINFO", "GROUPS", stream)
    except NoPermissionError:
        raise
    except ResponseError as exc:
        reply = exc
    found = group_in(reply, group)
    last: Any = client.execute_command("XREVRANGE", stream, "+", "-", "COUNT", 1)
    newest = text_of(last[0][0]) if last else "0-0"
    if found is None:
        return False, newest
    if found.pending:
        pending: Any = client.xpending_range(stream, group, "-", "+", 1)
        if pending:
            # A row, also where the client returns replies as they are.
            first = pending[0]["message_id"] if isinstance(pending[0], dict) else pending[0][0]
            return True, id_before(id_key(text_of(first)))
    return id_key(newest) > id_key(found.read_to), found.read_to


def older_versions(client: Redis, stream: str) -> tuple[str, ...]:
    """The streams that ``stream`` follows, oldest first. Raises `ConfigurationError` when that cannot be read."""
    text = client.get(follows_key(stream))
    try:
        found: Any = [] if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if type(found) is list and all(type(name) is str for name in found):
        return tuple(found)
    raise ConfigurationError(
        f"the key {follows_key(stream)} cannot be read: {text!r:.80} is no list of streams; delete it: a master of the "
        "stream writes it again, with those that bridge_follows names"
    )


def followed_by(client: Redis, stream: str) -> set[str]:
    """The streams that ``stream`` follows, itself or over others."""
    found: set[str] = set()
    ahead = [stream]
    while ahead:
        # Of a version that the app does not name, this user may know nothing.
        with suppress(NoPermissionError):
            fresh = set(older_versions(client, ahead.pop())) - found
            found |= fresh
            ahead += fresh
    return found


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
    return (
        f"bridge_follows names {older!r}, which follows {stream!r}, itself or over others: streams cannot follow each "
        "other"
    )
