"""The words that scripts return."""

from __future__ import annotations

from enum import Enum

from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys


class ReturnWord(Enum):
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


def word_of(value: bytes | str) -> ReturnWord:
    """The word that a reply begins with."""
    return ReturnWord(text_of(value).split(" ", 1)[0])


def word_for_leader(value: bytes | str, keys: LaneKeys) -> ReturnWord:
    """The word of a script that only the leader of the lane may run. Raises `NotLeading` where another master leads."""
    word = word_of(value)
    if word is ReturnWord.DEPOSED:
        raise NotLeading(f"another master leads {keys.stream} as {keys.group}")
    return word
