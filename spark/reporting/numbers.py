"""Numbers for people: three significant digits, a fitting unit, and a dash where there is no number."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

#: Shown where there is no number.
NONE = "\N{EN DASH}"
_DAY_S = 86_400


def count(number: int | None) -> str:
    """``141,712``."""
    return NONE if number is None else f"{number:,}"


def significant(number: float) -> str:
    """Three significant digits, never an exponent: ``0.0421``, ``4.21``, ``42.1``, ``421``, ``4,210``."""
    if number == 0:
        return "0"
    for limit, digits in ((0.01, 4), (0.1, 4), (0.9995, 3), (9.995, 2), (99.95, 1)):
        if abs(number) < limit:
            return f"{number:.{digits}f}"
    return f"{number:,.0f}"


def duration(ms: float | None) -> str:
    """``420 µs``, ``12.3 ms``, ``4.21 s``, ``3 min 20 s``, ``5 h 7 min``, ``12 d 3 h``."""
    if ms is None:
        return NONE
    if ms < 0.9995:
        return f"{round(ms * 1000)} µs" if ms else "0 ms"
    if ms < 999.5:
        return f"{significant(ms)} ms"
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{significant(seconds)} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return _two(minutes, "min", left, "s")
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return _two(hours, "h", minutes, "min")
    days, hours = divmod(round(seconds / 3600), 24)
    return _two(days, "d", hours, "h")


def rate(per_s: float | None) -> str:
    """``1,340/s``; slow ones by the minute, hour or day: ``2.5/min``."""
    if per_s is None:
        return NONE
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_s * seconds >= 0.9995 or per_s == 0:
            return f"{significant(per_s * seconds)}/{unit}"
    return f"{significant(per_s * _DAY_S)}/d"


def share(part: float | None) -> str:
    """``12.3 %``."""
    if part is None:
        return NONE
    percent = part * 100
    return "<0.01 %" if 0 < percent < 0.01 else f"{significant(percent)} %"


def ratio(number: float | None) -> str:
    """``1.18``."""
    return NONE if number is None else f"{number:.2f}"


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


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"
