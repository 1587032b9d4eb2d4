"""The options of a message, checked, as the scripts of a push take them: when it is due, and what its ticket does until
then.

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

#: The names of the options, as ``push`` takes them.
NAMES = ("delay", "eta", "hold")
#: The fields that they become, in their order in an entry.
FIELDS = ("due", "hold")
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


#: Fields and their values.
Values = Mapping[str, bytes]
#: Of a message without options.
NONE: Values = MappingProxyType({})


def checked_options(given: Mapping[str, Any], past: Past = Past.REFUSED) -> Values:
    """The fields of the options in ``given``, by their names. An option that is None is not there.

    Raises `OptionError` and `OptionTypeError`.
    """
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
    elif (delay_ms := _delay_ms(delay)) == 0:
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


def _delay_ms(delay: Any) -> int:
    if isinstance(delay, timedelta):
        seconds = delay.total_seconds()
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise OptionTypeError(f"delay must be a number of seconds or a timedelta, not {delay!r:.80}")
    else:
        seconds = delay
    # An integer may be too large for a float, and NaN is neither more nor less than anything.
    if isinstance(seconds, float) and math.isnan(seconds):
        raise OptionError("delay must be a number of seconds, not NaN")
    if seconds < 0:
        raise OptionError(f"delay must not be below 0, it is {_shown(delay)}")
    if seconds > LONGEST_DELAY_MS / 1000:
        raise OptionError(f"delay must be at most 100 years ({LONGEST_DELAY_MS // 1000} s), it is {_shown(delay)}")
    # Rounded first: 1.1 * 1000 is a little more than 1100.
    return math.ceil(round(seconds * 1000, 3))


def _absolute(eta: Any, past: Past) -> bytes:
    if not isinstance(eta, datetime):
        raise OptionTypeError(f"eta must be a datetime with a time zone, not {eta!r:.80}")
    if eta.utcoffset() is None:
        raise OptionError(f"eta {eta} has no time zone: give it one, as in datetime.now(UTC) + timedelta(hours=1)")
    due_ms = -((_EPOCH - eta) // timedelta(milliseconds=1))
    now_ms = time.time_ns() // 1_000_000
    if due_ms > now_ms + LONGEST_DELAY_MS:
        raise OptionError(f"eta {eta} is more than 100 years away")
    if past is Past.ALLOWED:
        return b"%d" % max(0, due_ms)
    if due_ms < now_ms and past is Past.REFUSED:
        raise OptionError(f"eta {eta} is past")
    return b"=%d" % max(0, due_ms)


def _shown(delay: Any) -> str:
    try:
        return f"{delay!s:.40}"
    except ValueError:  # an integer of more digits than Python writes
        return "a number of many thousand digits"
