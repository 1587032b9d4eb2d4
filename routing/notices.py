"""Notices about dead letters: what a lane keeps of them, and the script that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.return_codes import code_for_leader, text_of
from bridge.routing.scripts import Script

_NOTIFIED = Script("notified")
#: Digits of a number that is read.
_DIGITS = 18


@dataclass(frozen=True)
class Notices:
    """What a lane has told. ``error``: of the last request, since ``error_ms``; empty: it did not fail."""

    told_to: str = "0-0"
    told: int = 0
    failed: int = 0
    told_ms: int | None = None
    error: str = ""
    error_ms: int | None = None


def notices_in(found: Mapping[bytes | str, bytes | str]) -> Notices | None:
    """What is kept, from a reply of HGETALL. None: nothing is."""
    if not found:
        return None
    fields = {text_of(name, errors="replace"): text_of(value, errors="replace") for name, value in found.items()}

    def number(name: str) -> int | None:
        text = fields.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None

    return Notices(
        told_to=fields.get("told_to", "0-0"),
        told=number("told") or 0,
        failed=number("failed") or 0,
        told_ms=number("told_ms"),
        error=fields.get("error", ""),
        error_ms=number("error_ms"),
    )


def note_told(client: Redis, keys: LaneKeys, token: str, now_ms: int, *, to: str = "", letters: int = 0) -> str:
    """Notes that the letters up to ``to`` were told (empty: nothing new). Returns the last letter that was told.

    Raises `NotLeading`.
    """
    return notified(client, keys, token, now_ms, to=to, letters=letters)


def note_failed(client: Redis, keys: LaneKeys, token: str, now_ms: int, error: str) -> None:
    """Notes that a request failed. Raises `NotLeading`."""
    notified(client, keys, token, now_ms, failed=1, error=error)


def notified(
    client: Redis,
    keys: LaneKeys,
    token: str,
    now_ms: int,
    *,
    to: str = "",
    letters: int = 0,
    failed: int = 0,
    error: str = "",
) -> str:
    """Notes how a request went: it told ``letters`` up to ``to``, or it failed. Returns the last letter that was told.

    Raises `NotLeading`.
    """
    reply = _NOTIFIED.run(client, [keys.leader, keys.notices, keys.dead], [token, to, letters, failed, error, now_ms])
    code_for_leader(reply[0], keys)
    return text_of(reply[1])
