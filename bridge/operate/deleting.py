"""Deletes a stream with all keys of its lanes, in one step, once nothing of it is undone and nobody uses it.

The lanes are those of all its consumer groups, whatever app they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import unquote

from redis.exceptions import ResponseError

from bridge.inspect.delayed import now_ms_of
from bridge.inspect.roster import registrations_of
from bridge.link.key_types import types_of
from bridge.protocol.agreement import refuse_newer
from bridge.protocol.unreadable import ADVICE, place
from bridge.routing.errors import InputError, OrderFailed
from bridge.routing.groups import groups_in, name_in_group
from bridge.routing.keys import LaneKeys
from bridge.routing.leadership import read_token
from bridge.routing.retiring import retire
from bridge.routing.return_codes import ReturnCode
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

#: How often a deletion is tried while groups and consumers of the stream change.
TRIES = 5
#: Characters that a pattern of SCAN would not take literally.
_SPECIAL = re.compile(r"([\\\[\]*?^-])")


class StillUsed(Exception):
    """The stream cannot be deleted. ``what`` uses it: a clause. ``advice``: what to do then; "": it follows from that.
    ``unread``: whether unread messages are the reason.
    """

    def __init__(self, what: str, advice: str = "", *, unread: bool = False) -> None:
        self.what = what
        #: Both, as one clause.
        self.why = f"{what}: {advice}" if advice else what
        super().__init__(self.why)
        self.unread = unread


class Use(NamedTuple):
    """What the existence of a key means, as `StillUsed` says it."""

    what: str
    advice: str = ""


class LanesOfStream:
    """The lanes of ``stream``, which is a whole stream or a partition. ``found``: keys of lanes that were found there.

    ``letters``: whether dead letters are deleted, too.
    """

    def __init__(self, redis: Redis, stream: str, found: Sequence[str] = (), *, letters: bool) -> None:
        self._redis, self._stream, self._found, self._letters = redis, stream, found, letters

    def delete(self, *, look: bool = False, keep: Collection[str] = ()) -> int:
        """Deletes the stream and all keys of its lanes, except the keys ``keep``. Returns how many keys.

        With ``look`` it only counts them.

        Raises `StillUsed` when something of it is undone or in use, `ConfigurationError` when a newer version keeps one
        of its lanes, `InputError` when a registration cannot be read, and `OrderFailed`. Nothing of it was changed
        then.
        """
        for _ in range(TRIES):
            lanes = lanes_on(self._redis, self._stream, self._found)
            free, doomed = self._keys(lanes)
            groups = [keys.group for keys in lanes]
            doomed = [key for key in doomed if key not in keep]
            code, detail = retire(self._redis, self._stream, groups, list(free), doomed, look=look)
            if code is ReturnCode.OK:
                return int(detail)
            if code is not ReturnCode.CHANGED:
                raise StillUsed(*self._use(code, detail, free), unread=code is ReturnCode.UNREAD)
        raise OrderFailed(f"groups of {self._stream} come and go: stop what uses it, then try again")

    def _keys(self, lanes: Sequence[LaneKeys]) -> tuple[dict[str, Use], list[str]]:
        """(keys that must not exist, each with what its existence means; the keys to delete)."""
        free: dict[str, Use] = {}
        doomed = dict.fromkeys(self._found)
        there = self._redis.exists(self._stream)
        for keys in lanes:
            refuse_newer(self._redis, keys)
            group = printable(keys.group)
            free[keys.leader] = Use(f"group {group} is led by", "stop it, or take the stream out of its app")
            registered: Any = self._redis.hgetall(keys.consumers)
            for name, one in registrations_of(keys, registered, refuse_unreadable).items():
                free[keys.lease(one.incarnation)] = Use(f"the worker {printable(name)} serves group {group}", "stop it")
                doomed |= dict.fromkeys((keys.queue(name), keys.held(one.incarnation)))
            if there:
                # When the stream is gone, the messages are gone, too.
                free[keys.tickets] = Use(f"group {group} has tickets that are in flight, await a retry, or are parked")
            if not self._letters:
                free[keys.dead] = Use(
                    f"group {group} has dead letters",
                    "replay or drop them with an app that names the stream, or add --drop-dead",
                )
            doomed |= dict.fromkeys(key for key in types_of(keys) if key != keys.stream)
        return free, list(doomed)

    def _use(self, code: ReturnCode, detail: str, free: dict[str, Use]) -> Use:
        group = printable(detail)
        if code is ReturnCode.UNREAD:
            return Use(f"group {group} has not read all its messages" if detail else "nobody has read its messages")
        if code is ReturnCode.UNDONE:
            delayed = delayed_among(self._redis, self._stream, detail)
            return Use(f"group {group} has messages that are not done{delayed}")
        use = free[detail]
        if not detail.endswith(":leader"):
            return use
        token: Any = self._redis.get(detail)
        master = "a master that has just gone" if token is None else f"the master {printable(read_token(token).holder)}"
        return use._replace(what=f"{use.what} {master}")


def refuse_unreadable(key: str, field: bytes, _value: bytes) -> NoReturn:
    """Raises `InputError`: a registration cannot be read, so its consumer may be alive."""
    raise InputError(f"{place(key, field)} cannot be read, so its consumer may be alive: {ADVICE}, then try again")


def delayed_among(redis: Redis, stream: str, group: str) -> str:
    """How many of a lane's undone messages are delayed, as the end of a clause; "": none is."""
    keys = LaneKeys(stream, group)
    # Those that are due stay in `holding` until they are done.
    number = int(redis.zcard(keys.delayed)) + int(redis.zcount(keys.holding, f"({now_ms_of(redis)}", "+inf"))
    return f", {number:,} of them delayed" if number else ""


def lanes_on(redis: Redis, stream: str, found: Sequence[str] = ()) -> list[LaneKeys]:
    """The lanes of the groups of ``stream``, and the lanes to which the keys ``found`` belong."""
    names = {unquote(key[len(stream) + 3 :].partition(":")[0], errors="surrogateescape") for key in found}
    try:
        groups = groups_in(redis.execute_command("XINFO", "GROUPS", stream))
        names |= {name_in_group(name) for name in groups}
    except ResponseError as exc:
        if "no such key" not in str(exc):
            raise
    return [LaneKeys(stream, name) for name in sorted(names)]


def literally(text: str) -> str:
    """``text`` as a pattern of SCAN that matches it alone."""
    return _SPECIAL.sub(r"\\\1", text)
