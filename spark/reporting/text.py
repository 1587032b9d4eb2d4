"""Texts in a report: moments, names from outside, cuts."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

from bridge.routing.numbers import NONE


def moment(time: datetime | None) -> str:
    """``2026-03-14 09:24:47``, UTC."""
    return NONE if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def visible(text: str) -> str:
    """A name from outside, with escapes for characters that are invisible or control a terminal or the direction."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short(text: str, limit: int) -> str:
    """At most ``limit`` characters, with … at a cut. Combining marks stay with their letters."""
    if len(text) <= limit:
        return text
    cut = limit - 1
    while cut > 1 and unicodedata.combining(text[cut]):
        cut -= 1
    return text[:cut] + "…"
