"""Retires a stream: deletes it with all keys of its lanes, once nothing of it is undone and nobody uses it.

The lanes are those of all its consumer groups, whatever app they belong to. Each stream (one for each partition) is
checked and deleted in one step, so a message that is pushed meanwhile is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.inspect.roster import registrations_of
from bridge.link.key_types import types_of
from bridge.routing.errors import InputError, OrderFailed
from bridge.routing.groups import groups_in
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import claim_layout
from bridge.routing.leadership import read_token
from bridge.routing.retiring import retire
from bridge.routing.return_codes import ReturnCode
from bridge.routing.text import printable
from bridge.routing.versions import leave_chain, newer_versions, older_versions

if TYPE_CHECKING:
    from redis import Redis

#: Tries to delete a stream whose groups and consumers change meanwhile.
TRIES = 5


@dataclass(frozen=True)
class Contents:
    """What a stream has."""

    #: The stream itself, or its partitions.
    streams: tuple[str, ...]
    #: Names of the consumer groups.
    groups: tuple[str, ...]
    #: Entries that are in the stream, and dead letters of all groups.
    entries: int
    letters: int

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"streams": self.streams, "groups": self.groups, "entries": self.entries, "dead": self.letters}


def contents_of(redis: Redis, stream: str) -> Contents:
    """What ``stream`` has. Raises `InputError` when there is no such stream, and redis errors."""
    streams = claim_layout(redis, stream, 1).streams(stream)
    there = redis.exists(*streams, layout_key(stream))
    if not there and not newer_versions(redis, stream) and not older_versions(redis, stream):
        raise InputError(f"there is no stream {printable(stream)}")
    groups = {one: _groups(redis, one) for one in streams}
    letters = sum(redis.xlen(LaneKeys(one, group).dead) for one, names in groups.items() for group in names)
    found = sorted({name for names in groups.values() for name in names})
    return Contents(streams, tuple(found), sum(redis.xlen(one) for one in streams), letters)


def retire_stream(redis: Redis, stream: str, *, letters: bool) -> int:
    """Deletes ``stream`` and all keys of its lanes. Returns how many keys. ``letters``: also with dead letters.

    Raises `InputError`, one line, when something of it is undone or in use, and redis errors.
    """
    layout = claim_layout(redis, stream, 1)
    parts = layout.streams(stream)
    for part in parts:
        _check(redis, part, letters=letters)
    deleted = sum(_retire_part(redis, part, letters=letters) for part in parts)
    leave_chain(redis, stream)
    return deleted + redis.delete(layout_key(stream))


def _retire_part(redis: Redis, stream: str, *, letters: bool) -> int:
    for _ in range(TRIES):
        lanes = [LaneKeys(stream, name) for name in _groups(redis, stream)]
        free, doomed = _keys(redis, lanes, letters=letters)
        code, detail = retire(redis, stream, [keys.group for keys in lanes], list(free), doomed)
        if code is ReturnCode.OK:
            return int(detail)
        if code is not ReturnCode.CHANGED:
            _refuse(redis, stream, code, detail, free)
    raise OrderFailed(f"groups of {stream} come and go: stop what uses it, then try again; nothing was changed")


def _check(redis: Redis, stream: str, *, letters: bool) -> None:
    """Looks at all parts before any is deleted. Raises `InputError`."""
    lanes = [LaneKeys(stream, name) for name in _groups(redis, stream)]
    free, _ = _keys(redis, lanes, letters=letters)
    # A key that must not be there and is: the script would delete nothing.
    code, detail = retire(redis, stream, [keys.group for keys in lanes], [*free, stream], [])
    if code is ReturnCode.HELD and detail == stream:
        return
    if code not in (ReturnCode.OK, ReturnCode.CHANGED):
        _refuse(redis, stream, code, detail, free)


def _keys(redis: Redis, lanes: Sequence[LaneKeys], *, letters: bool) -> tuple[dict[str, str], list[str]]:
    """(keys that must not be there, each with what it would mean; the keys to delete)."""
    free: dict[str, str] = {}
    doomed: list[str] = []
    for keys in lanes:
        free[keys.leader] = f"group {keys.group} is led by the master {{}}: stop it, or take the stream out of its app"
        registered: Any = redis.hgetall(keys.consumers)
        for name, one in registrations_of(registered).items():
            free[keys.lease(one.incarnation)] = f"the worker {printable(name)} serves group {keys.group}: stop it"
            doomed += [keys.queue(name), keys.held(one.incarnation)]
        free[keys.tickets] = f"group {keys.group} has tickets that are in flight, await a retry, or are parked"
        if not letters:
            free[keys.dead] = (
                f"group {keys.group} has dead letters: replay or drop them (`bridge dead list`), or add --drop-dead"
            )
        doomed += [key for key in types_of(keys) if key != keys.stream]
    return free, doomed


def _refuse(redis: Redis, stream: str, code: ReturnCode, detail: str, free: dict[str, str]) -> None:
    group = printable(detail)
    if code is ReturnCode.UNREAD:
        why = f"group {group} has not read all its messages" if detail else "nobody has read its messages"
    elif code is ReturnCode.UNDONE:
        why = f"group {group} has messages that are not done"
    else:
        token: Any = redis.get(detail) if detail.endswith(":leader") else None
        holder = "that has just gone" if token is None else read_token(token).holder
        why = free[detail].format(holder)
    raise InputError(f"{stream} cannot be retired: {why}; nothing was changed")


def _groups(redis: Redis, stream: str) -> list[str]:
    if not redis.exists(stream):
        return []
    found = groups_in(redis.execute_command("XINFO", "GROUPS", stream))
    return [name.decode(errors="surrogateescape") for name in found]
