"""The columns of a row that are options of its message: ``due``, ``delay`` and ``hold`` say when it is due.

In a file with a column ``payload``, ``max_attempts``, ``timeout`` (seconds), ``expires`` (a time as in ``due``) and
``priority`` are options, too. In another file they belong to the payload, as such fields of an entry do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bridge.producer.options import LONGEST_DELAY_MS, NONE, Past, Values, checked_options, checked_times, ms_of
from bridge.routing.errors import OptionError, OptionTypeError

DUE = "due"
DELAY = "delay"
HOLD = "hold"
#: The columns that are no part of the payload.
COLUMNS = (DUE, DELAY, HOLD)
EXPIRES = "expires"
#: The same, in a file with a column for the payload.
RULE_COLUMNS = ("max_attempts", "timeout", EXPIRES, "priority")

#: What a column that says a time may have.
_FORMS = "milliseconds since 1970 or a time such as 2030-01-31T12:00:00Z"
_YES = {"1", "true", "yes"}
_NO = {"", "0", "false", "no"}


def row_values(cells: Mapping[str, Any], common: Mapping[str, Any]) -> Values:
    """The fields that the columns of a row stand for. ``cells``: of a CSV file text, and of JSON lines any value.

    ``common``: the options of rows that have none, as for `bridge.producer.options.checked_options`. A row with ``due``
    or ``delay`` has its own time. A time that is past is none. Raises `OptionError` and `OptionTypeError`.
    """
    due = _due_values(cells, {name: common[name] for name in ("delay", "eta", "hold") if name in common})
    rules = {name: common[name] for name in RULE_COLUMNS if name in common}
    until: Values = NONE
    for name in RULE_COLUMNS:
        cell = cells.get(name)
        if cell is None or cell == "":
            continue
        if name == EXPIRES:
            rules.pop(name, None)
            until = {name: _at(cell, name, held=False)[DUE]}
        else:
            rules[name] = _seconds(cell, name) if name == "timeout" else _whole(cell)
    found = {**due, **(checked_options(rules, Past.ALLOWED) if rules else NONE), **until}
    return checked_times(found) or NONE


def _whole(cell: Any) -> Any:
    return int(cell) if isinstance(cell, str) and cell.isascii() and cell.isdigit() and len(cell) < 10 else cell


def _due_values(cells: Mapping[str, Any], common: Mapping[str, Any]) -> Values:
    due, delay, hold = (None if cells.get(name) == "" else cells.get(name) for name in COLUMNS)
    held = common.get("hold", False) if hold is None else _flag(hold)
    if due is not None and delay is not None:
        raise OptionError(f"{DUE!r} and {DELAY!r} both say when the message is due: give one of them")
    if due is not None:
        return _at(due, DUE, held=held)
    if delay is not None:
        return checked_options({"delay": _seconds(delay, DELAY), "hold": held})
    if hold is None and "delay" not in common and "eta" not in common:
        return NONE
    return checked_options({**common, "hold": held}, Past.ALLOWED)


def _at(due: Any, name: str, *, held: bool) -> Values:
    """``due``: milliseconds since 1970, or a time in the form of ISO 8601, with its time zone."""
    if isinstance(due, bool) or not isinstance(due, int | str):
        raise OptionTypeError(f"column {name!r} must be {_FORMS}, not {due!r:.60}")
    text = str(due) if isinstance(due, str) or abs(due) < 10**18 else "9" * 18
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        due_ms, shown = int(text[:19]), f"{text:.40} milliseconds since 1970"
        if due_ms < 0:
            raise OptionError(f"column {name!r} must not be below 0, it is {text}")
    else:
        due_ms, shown = max(0, _ms_of_text(text, name)), text
    if due_ms > time.time_ns() // 1_000_000 + LONGEST_DELAY_MS:
        raise OptionError(f"column {name!r} is more than 100 years away: {shown}")
    return {"due": b"%d" % due_ms, "hold": b"1"} if held else {"due": b"%d" % due_ms}


def _ms_of_text(text: str, name: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"column {name!r} must be {_FORMS}, not {text!r:.60}") from None
    if found.utcoffset() is None:
        raise OptionError(f"column {name!r}: {text} has no time zone, as 2030-01-31T12:00:00Z has one")
    return ms_of(found)


def _seconds(delay: Any, name: str) -> Any:
    if not isinstance(delay, str):
        return delay
    try:
        return float(delay)
    except ValueError:
        raise OptionError(f"column {name!r} must be a number of seconds, not {delay!r:.60}") from None


def _flag(hold: Any) -> bool:
    text = str(hold).lower() if isinstance(hold, str | bool | int) else "?"
    if text in _YES or text in _NO:
        return text in _YES
    raise OptionError(f"column {HOLD!r} must be true or false, not {hold!r:.60}")
