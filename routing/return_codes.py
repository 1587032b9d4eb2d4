"""The words that scripts return."""

from __future__ import annotations

from enum import Enum

from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys


class ReturnCode(Enum):
    """Every word that a script returns."""

    OK = "OK"
    DEPOSED = "DEPOSED"
    CONFLICT = "CONFLICT"
    NOGROUP = "NOGROUP"
    ALIVE = "ALIVE"
    UNREAD = "UNREAD"
    CHANGED = "CHANGED"
    WITHDRAWN = "WITHDRAWN"
    ELECTED = "ELECTED"
    FOLLOW = "FOLLOW"
    HELD = "HELD"
    LATE = "LATE"
    NEWER = "NEWER"
    OTHER = "OTHER"
    AGAIN = "AGAIN"
    STALE = "STALE"
    WAIT = "WAIT"
    ERR = "ERR"


def text_of(value: bytes | str) -> str:
    """A reply as text."""
    return value.decode() if isinstance(value, bytes) else value


def code_of(value: bytes | str) -> ReturnCode:
    """The word that a reply begins with."""
    return ReturnCode(text_of(value).split(" ", 1)[0])


def code_for_leader(value: bytes | str, keys: LaneKeys) -> ReturnCode:
    """The word of a script that only the leader of the lane may run. Raises `NotLeading` where another master leads."""
    code = code_of(value)
    if code is ReturnCode.DEPOSED:
        raise NotLeading(f"another master leads {keys.stream} as {keys.group}")
    return code
