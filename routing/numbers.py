"""Numbers for people, by one rule, in commands, logs and reports.

- A whole number has commas.
- A measured number has three significant digits and never an exponent: ``0.0421``, ``4.21``, ``42.1``, ``4,210``.
- A duration has the unit that fits. From a minute on it has two units, and is rounded to the smaller one.
- A number of bytes has the unit that fits, by 1,024.
- A rate is per second. One that is below one per second is per minute, hour or day.
- A moment is in the zone of this machine. Not every id of a message is a time: one that is no date stays in ms.
- A dash stands where there is no number.

Python's own formatting rounds: to the nearest, and from exactly half to the even neighbour. Output for programs (JSON)
has plain numbers. It is in `routing` because `bridge` and `spark` both import this room, and no other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

#: Shown where there is no number.
NONE = "\N{EN DASH}"
_DAY_S = 86_400


def whole(number: int | None) -> str:
    """``141,712``."""
    return NONE if number is None else f"{number:,}"


def count(number: int, thing: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{whole(number)} {thing}{'' if number == 1 else 's'}"


def significant(number: float) -> str:
    """Three significant digits, never an exponent: ``0.0421``, ``4.21``, ``42.1``, ``421``, ``4,210``."""
    if number == 0:
        return "0"
    for limit, digits in ((0.01, 4), (0.1, 4), (0.9995, 3), (9.995, 2), (99.95, 1)):
        if abs(number) < limit:
            return f"{number:.{digits}f}"
    return f"{number:,.0f}"


def duration(ms: float | None) -> str:
    """``420 µs``, ``12.3 ms``, ``4.21 s``, ``3 min 20 s``, ``5 h 7 min``, ``12 d 3 h``; ``0 ms`` for less than none."""
    if ms is None:
        return NONE
    if ms < 0.9995:
        return f"{round(ms * 1000)} µs" if ms > 0 else "0 ms"
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


def moment(unix_ms: float, unit: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """``2026-11-27 08:30:00+01:00``; ``unit``: the smallest one that is shown."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000).astimezone().isoformat(sep=" ", timespec=unit)
    except (ValueError, OverflowError, OSError):
        # A whole number beyond 2**53 would be another one as a float.
        return f"{unix_ms} ms" if isinstance(unix_ms, int) else f"{unix_ms:.0f} ms"


def data_size(number: int | None) -> str:
    """Bytes: ``512 B``, ``1.50 KiB``, ``34.2 MiB``, ``2.00 GiB``."""
    if number is None:
        return NONE
    if number < 1024:
        return f"{number} B"
    scaled = float(number)
    for unit in ("KiB", "MiB"):
        scaled /= 1024
        if scaled < 999.5:
            return f"{significant(scaled)} {unit}"
    return f"{significant(scaled / 1024)} GiB"


def rate(per_s: float | None) -> str:
    """``1,340/s``; slow ones by the minute, hour or day: ``2.50/min``."""
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


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"
