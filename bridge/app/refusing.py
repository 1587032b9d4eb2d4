"""Exceptions that a task raises to refuse its message: it comes again, is dropped, or is dead.

A message is refused in `bridge.app.handling`, on every path: alone, in a bundle, and without a server. A call that is
no message (``apply_async``, ``apply``, the function itself) cannot be refused: there these are exceptions like others.
Celery's ``autoretry_for`` does not catch them.
"""

from __future__ import annotations

import math
from datetime import timedelta

#: The longest wait before a message comes again: a hundred years.
LONGEST_DELAY_S = 100 * 365 * 86_400


class RefusedByTask(Exception):
    """The base class of the exceptions by which a task refuses its message. ``reason``: why, for people."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(str(reason))

    @property
    def reason(self) -> str:
        return str(self.args[0]) if self.args else ""


class Nack(RefusedByTask):
    """The message comes again, first of its ticket, after ``delay`` (seconds, or a timedelta; None: the backoff).

    ``charge``: whether this attempt counts. An attempt that does not count may be repeated without end.
    Raises ValueError for a delay that is negative, not finite, or longer than a hundred years, and for a ``charge``
    that is no bool.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None, charge: bool = True) -> None:
        super().__init__(reason)
        self.delay = _seconds(delay)
        if not isinstance(charge, bool):
            raise ValueError(f"Nack(charge={charge!r}): charge is True or False")  # noqa: TRY004  (as for a delay)
        self.charge = charge

    def __repr__(self) -> str:
        return f"Nack({self.reason!r}, delay={self.delay!r}, charge={self.charge!r})"


class Drop(RefusedByTask):
    """The message is done and was not handled: it is acknowledged, counted as dropped, and its effects are not
    applied.
    """


class Dead(RefusedByTask):
    """The message goes to the dead letters at once, whatever attempts it has left."""


class Rejected(Exception):
    """The error of a message's result, where its task gave it up by Celery's `Reject`.

    Not `Reject` itself: in a task that waits for the result it would reject that task's message, too.
    """


def _seconds(delay: float | timedelta | None) -> float | None:
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if delay is None:
        return None
    is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
    if not (is_number and math.isfinite(delay) and 0 <= delay <= LONGEST_DELAY_S):
        raise ValueError(f"Nack(delay={delay!r}): a delay is a number of seconds, or a timedelta, from 0 to 100 years")
    return float(delay)
