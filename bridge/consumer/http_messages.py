"""The messages of an `HttpConsumer`: what a handler gets, and which outcome follows. Standard library only.

**Options of a message.** What has expired before its handler starts is dead, and the handler is not called. A handler
that takes longer than its message allows fails when it ends: Python cannot stop a thread. `Message.left_s` is for a
handler that stops by itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from bridge.consumer.deadline import now_ns
from bridge.routing.message_options import EXPIRED

logger = logging.getLogger(__name__)


class Refuse(Exception):
    """Raised by a handler: the message comes again, after ``delay`` seconds if given, and is not charged."""

    def __init__(self, reason: str = "", delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class GiveUp(Exception):
    """Raised by a handler: the message is dead, and never comes again."""


class Message(NamedTuple):
    """A message, as its handler gets it."""

    ticket_id: str
    message_id: str
    #: Grows with every delivery of the ticket. A store that keeps the largest one refuses older deliveries.
    fence: int
    attempt: int
    task: str
    payload: Any
    #: ``{"attempt", "fence", "consumer", "cause"}`` of an attempt that was cut off; None: there was none.
    lost: dict[str, Any] | None
    #: ``{"max_attempts", "timeout_ms", "expires_ms"}``, as far as the message has them; None: it has none.
    options: dict[str, Any] | None
    #: Whether the consumer still holds the lease under which it was given this message.
    holds: Callable[[], bool]
    #: For how many seconds more the handler may run, as the message's ``timeout`` says; infinite without one.
    left_s: Callable[[], float]


class Work(NamedTuple):
    """A message that was received, and not begun."""

    incarnation: str
    #: As the master wrote it.
    item: dict[str, Any]
    #: When it expires, by the clock of `now_ns`; None: it does not.
    expires_ns: int | None


def outcome_of(handler: Callable[[Message], object], work: Work, holds: Callable[[], bool]) -> dict[str, Any]:
    """Calls ``handler`` with the message. Returns the outcome, as it is acknowledged. ``holds``: as in `Message`."""
    began_ns = now_ns()
    if work.expires_ns is not None and began_ns >= work.expires_ns:
        return {"outcome": "dead", "error": EXPIRED}
    timeout_ms = (work.item.get("options") or {}).get("timeout_ms")
    message = _message(work.item, math.inf if timeout_ms is None else began_ns + timeout_ms * 1_000_000, holds)
    try:
        handler(message)
    except Refuse as exc:
        delay = {} if exc.delay is None else {"delay": float(exc.delay)}
        return {"outcome": "refused", "error": str(exc), **delay}
    except GiveUp as exc:
        return {"outcome": "dead", "error": str(exc)}
    except Exception as exc:
        logger.exception("message %s of ticket %s failed", message.message_id, message.ticket_id)
        return {"outcome": "failed", "error": f"{type(exc).__name__}: {exc}"}
    late_s = -message.left_s()
    if late_s > 0:
        logger.error("message %s of ticket %s took %.3g s too long", message.message_id, message.ticket_id, late_s)
        return {"outcome": "failed", "error": f"it ended {late_s:.3g} s after the time that its message allows"}
    return {"outcome": "done"}


def _message(item: dict[str, Any], until_ns: float, holds: Callable[[], bool]) -> Message:
    """What the handler gets. ``until_ns``: when its time is over."""
    known: dict[str, Any] = {name: item.get(name) for name in Message._fields[:-2]}
    return Message(**known, holds=holds, left_s=lambda: (until_ns - now_ns()) / 1e9)
