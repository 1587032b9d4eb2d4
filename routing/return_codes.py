"""The return codes of the Lua scripts. The header of each script says what its codes mean."""

from __future__ import annotations

from enum import Enum

from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys


class ReturnCode(Enum):
    """Every code that a script returns. The value is the text that Lua returns."""

    OK = "OK"
    DEPOSED = "DEPOSED"
    CONFLICT = "CONFLICT"
    NOGROUP = "NOGROUP"
    ALIVE = "ALIVE"
    UNREAD = "UNREAD"
    CHANGED = "CHANGED"
    WITHDRAWN = "WITHDRAWN"
    OLDER = "OLDER"
    BEHIND = "BEHIND"
    DEFERRED = "DEFERRED"
    CIRCLE = "CIRCLE"
    UNDONE = "UNDONE"
    ELECTED = "ELECTED"
    FOLLOW = "FOLLOW"
    HELD = "HELD"
    LATE = "LATE"
    NEWER = "NEWER"
    OTHER = "OTHER"
    AGAIN = "AGAIN"
    FOREIGN = "FOREIGN"
    STALE = "STALE"
    UNKNOWN = "UNKNOWN"
    WAIT = "WAIT"
    ERR = "ERR"
    LAYOUT = "LAYOUT"
    PAST = "PAST"


def text_of(value: bytes | str, *, errors: str = "strict") -> str:
    """A reply as text. ``errors``: what becomes of bytes that are not UTF-8, as for `bytes.decode`."""
    return value.decode(errors=errors) if isinstance(value, bytes) else value


def code_of(value: bytes | str) -> ReturnCode:
    """The return code at the beginning of a reply."""
    return ReturnCode(text_of(value).split(" ", 1)[0])


def code_for_leader(value: bytes | str, keys: LaneKeys) -> ReturnCode:
    """The return code of a script that only the leader may run. Raises `NotLeading` when the term is over."""
    code = code_of(value)
    if code is ReturnCode.DEPOSED:
        raise NotLeading(f"the term is over, and another master leads {keys.stream} as {keys.group}, or may lead it")
    return code
