"""The options of a message, checked, as the scripts of a push take them: when it is due and what its ticket does until
then, and how it is handled (attempts, time limit, expiry, priority).

A value in the form of the script's head (`routing/lua/push_many.lua`): ``+30000`` is a delay in milliseconds, which the
server adds to its own time; ``=1700000000000`` is a time that must not be past; digits alone are a time that may be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any

from bridge.routing.errors import OptionError, OptionTypeError, PayloadError
from bridge.routing.message_options import HIGHEST_PRIORITY, LONGEST_TIMEOUT_MS, MOST_ATTEMPTS

#: The names of the options, as ``push`` takes them.
NAMES = ("delay", "eta", "hold", "max_attempts", "timeout", "expires", "priority")
#: The fields that they become, in their order in an entry.
FIELDS = ("due", "hold", "max_attempts", "timeout", "expires", "priority")
#: How far away a message may be due: 100 years.
LONGEST_DELAY_MS = 100 * 365 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Past(Enum):
    """What becomes of a message whose eta is past."""

    #: It is refused at once.
    REFUSED = "refused"
    #: The push script refuses it, unless it was pushed under its idempotency key before.
    JUDGED = "judged"
    #: It is due at once.
    ALLOWED = "allowed"


_NoneType = type(None)

#: Fields and their values.
Values = Mapping[str, bytes]
#: Of a message without options.
NONE: Values = MappingProxyType({})


def checked_options(given: Mapping[str, Any], past: Past = Past.REFUSED) -> Values:
    """The fields of the options in ``given``, by their names. An option that is None is not there.

    Raises `OptionError` and `OptionTypeError`.
    """
    due, rules = _due_values(given, past), _rule_values(given, past)
    if not rules:
        return due
    return checked_times({**due, **rules}, past)


def checked_times(values: Values, past: Past = Past.REFUSED) -> Values:
    """``values``, unless the message would expire before it is due. A span and a moment are compared by the time now.

    Raises `OptionError`.
    """
    when, until = values.get("due", b""), values.get("expires", b"")
    if not (when and until):
        return values
    if past is not Past.REFUSED and when.startswith(b"+") and not until.startswith(b"+"):
        # It may have been right when the same push was made first. `must_not_be_past` has the time until when it is.
        return values
    now_ms = time.time_ns() // 1_000_000 if when.startswith(b"+") != until.startswith(b"+") else 0
    if _moment_ms(until, now_ms) <= _moment_ms(when, now_ms):
        raise OptionError("expires is not after the time when the message is due: it would never begin")
    return values


def _moment_ms(value: bytes, now_ms: int) -> int:
    return int(value.lstrip(b"+=")) + (now_ms if value.startswith(b"+") else 0)


def must_not_be_past(values: Values) -> list[int]:
    """The times of a message (ms since 1970) that must not be past when a push with a key begins."""
    times = [int(value[1:]) for value in values.values() if value.startswith(b"=")]
    when, until = values.get("due", b""), values.get("expires", b"")
    if when.startswith(b"+") and until.startswith(b"="):
        # From then on the message would expire before it is due.
        times.append(max(1, int(until[1:]) - int(when) - 1))
    return times


def _rule_values(given: Mapping[str, Any], past: Past) -> Values:
    """The fields that say how the message is handled."""
    found: dict[str, bytes] = {}
    attempts, timeout, expires, priority = (
        given.get("max_attempts"), given.get("timeout"), given.get("expires"), given.get("priority"),
    )  # fmt: skip
    if attempts is None and timeout is None and expires is None and not priority and type(priority) in (_NoneType, int):
        return NONE
    if attempts is not None:
        found["max_attempts"] = _whole("max_attempts", attempts, 1, MOST_ATTEMPTS)
    if timeout is not None:
        seconds = _seconds("timeout", timeout)
        # First compared as it is: infinity has no milliseconds.
        if not 0 < seconds <= LONGEST_TIMEOUT_MS / 1000 or not (timeout_ms := _ms(seconds)):
            raise OptionError(f"timeout must be more than 0 and at most 366 days, it is {_shown(timeout)}")
        found["timeout"] = b"%d" % timeout_ms
    if isinstance(expires, datetime):
        found["expires"] = _absolute(expires, past, "expires")
    elif expires is not None:
        found["expires"] = b"+%d" % _span_ms("expires", expires)
    if priority is not None and (text := _whole("priority", priority, 0, HIGHEST_PRIORITY)) != b"0":
        found["priority"] = text
    return found


def _whole(name: str, value: Any, least: int, most: int) -> bytes:
    if type(value) is not int:
        raise OptionTypeError(f"{name} must be a whole number, not {value!r:.80}")
    if not least <= value <= most:
        raise OptionError(f"{name} must be from {least} to {most}, it is {_shown(value)}")
    return b"%d" % value


def _due_values(given: Mapping[str, Any], past: Past) -> Values:
    delay, eta, hold = given.get("delay"), given.get("eta"), given.get("hold")
    if delay is None and eta is None and (hold is None or hold is False):
        return NONE
    if delay is not None and eta is not None:
        raise OptionError("delay and eta both say when the message is due: give one of them")
    if hold is not None and not isinstance(hold, bool):
        raise OptionTypeError(f"hold must be True or False, not {hold!r:.80}")
    if delay is None and eta is None:
        raise OptionError("hold=True needs delay or eta: it says what the ticket does until the message is due")
    if eta is not None:
        due = _absolute(eta, past)
    elif (delay_ms := _span_ms("delay", delay)) == 0:
        return NONE
    else:
        due = b"+%d" % delay_ms
    return {"due": due, "hold": b"1"} if hold else {"due": due}


def eta_of_text(text: str) -> datetime:
    """An eta in the form of ISO 8601, with a time zone. Raises `OptionError`."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"eta must be a time such as 2030-01-31T12:00:00+01:00, not {text!r:.80}") from None


def due_ms_of(values: Values, now_ms: int) -> int | None:
    """When a message with ``values`` is due; None: at once. ``now_ms``: the time now, in milliseconds since 1970."""
    value = values.get("due", b"")
    due_ms = now_ms + int(value) if value.startswith(b"+") else int(value.removeprefix(b"=") or 0)
    return due_ms if due_ms > now_ms else None


def merged(common: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """The options of one message of many: its own go before those of the whole push. Raises `PayloadError`."""
    if not isinstance(own, Mapping):
        raise OptionTypeError(f'the options of a message must be a dict such as {{"delay": 30}}, not {own!r:.80}')
    unknown = [name for name in own if name not in NAMES]
    if unknown:
        raise PayloadError(f"there is no option {unknown[0]!r:.80} of a message; the options are {', '.join(NAMES)}")
    rest = dict(common)
    if "delay" in own or "eta" in own:
        rest.pop("delay", None)
        rest.pop("eta", None)
    return {**rest, **own}


def _span_ms(name: str, span: Any) -> int:
    seconds = _seconds(name, span)
    if seconds < 0:
        raise OptionError(f"{name} must not be below 0, it is {_shown(span)}")
    if seconds > LONGEST_DELAY_MS / 1000:
        raise OptionError(f"{name} must be at most 100 years ({LONGEST_DELAY_MS // 1000} s), it is {_shown(span)}")
    return _ms(seconds)


def _ms(seconds: float) -> int:
    # Rounded first: 1.1 * 1000 is a little more than 1100.
    return math.ceil(round(seconds * 1000, 3))


def _seconds(name: str, span: Any) -> float:
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, bool) or not isinstance(span, int | float):
        what = ", a timedelta or a datetime" if name == "expires" else " or a timedelta"
        raise OptionTypeError(f"{name} must be a number of seconds{what}, not {span!r:.80}")
    else:
        seconds = span
    # An integer may be too large for a float, and NaN is neither more nor less than anything.
    if isinstance(seconds, float) and math.isnan(seconds):
        raise OptionError(f"{name} must be a number of seconds, not NaN")
    return seconds


def _absolute(eta: Any, past: Past, name: str = "eta") -> bytes:
    if not isinstance(eta, datetime):
        raise OptionTypeError(f"{name} must be a datetime with a time zone, not {eta!r:.80}")
    if eta.utcoffset() is None:
        raise OptionError(f"{name} {eta} has no time zone: give it one, as in datetime.now(UTC) + timedelta(hours=1)")
    due_ms = ms_of(eta)
    now_ms = time.time_ns() // 1_000_000
    if due_ms > now_ms + LONGEST_DELAY_MS:
        raise OptionError(f"{name} {eta} is more than 100 years away")
    if past is Past.ALLOWED:
        return b"%d" % max(0, due_ms)
    if due_ms < now_ms and past is Past.REFUSED:
        raise OptionError(f"{name} {eta} is past")
    return b"=%d" % max(0, due_ms)


def ms_of(moment: datetime) -> int:
    """The first millisecond since 1970 that is not before ``moment``, which has a time zone."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _shown(delay: Any) -> str:
    try:
        return f"{delay!s:.40}"
    except ValueError:  # an integer of more digits than Python writes
        return "a number of many thousand digits"
