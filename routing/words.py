"""The words that scripts return."""

from __future__ import annotations

from enum import Enum


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
