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
from bridge.protocol.outcome_limits import ERROR_CHARS, MOST_DELAY_S
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
    #: ``{"attempt", "fence", "consumer", "cause", "first_fence"}`` of an attempt that was cut off; None: none was.
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
        return _refused(exc)
    except GiveUp as exc:
        return {"outcome": "dead", "error": text_of(exc)}
    except BaseException as exc:
        # As in a Celery worker, sys.exit() in a handler ends no more than the message. The signals of the process come
        # to its main thread, which runs no handler.
        logger.exception("message %s of ticket %r failed", message.message_id, message.ticket_id)
        return failed(exc)
    late_s = -message.left_s()
    if late_s > 0:
        logger.error("message %s of ticket %r took %.3g s too long", message.message_id, message.ticket_id, late_s)
        return {"outcome": "failed", "error": f"it ended {late_s:.3g} s after the time that its message allows"}
    return {"outcome": "done"}


def failed(exc: BaseException) -> dict[str, Any]:
    """The outcome of a message whose handler raised ``exc``."""
    text = text_of(exc)
    return {"outcome": "failed", "error": sendable(f"{type(exc).__name__}: {text}" if text else type(exc).__name__)}


def text_of(exc: BaseException) -> str:
    """The text of any exception, as it can be sent. Its class is the app's, and may raise."""
    try:
        return sendable(str(exc))
    except BaseException as second:
        return f"{type(exc).__name__}, whose text cannot be shown: its __str__ raised {type(second).__name__}"


def sendable(error: str) -> str:
    """An error that the port takes: no longer than what it keeps, and without what UTF-8 cannot say."""
    return error[:ERROR_CHARS].encode(errors="replace").decode()


def _refused(exc: Refuse) -> dict[str, Any]:
    """A delay that cannot be is an error of the handler. The port would refuse the outcome, and the message would come
    again at once, for ever.
    """
    reason, delay = text_of(exc), exc.delay
    if delay is None:
        return {"outcome": "refused", "error": reason}
    try:
        seconds = float(delay)
    except BaseException:
        wrong = f"a {type(delay).__name__}, and no number"
    else:
        if 0 <= seconds <= MOST_DELAY_S:
            return {"outcome": "refused", "error": reason, "delay": seconds}
        wrong = f"{seconds:g}"
    said = f"the delay of Refuse is {wrong}: it must be 0 to {MOST_DELAY_S:,} seconds; the reason was: {reason}"
    logger.error("%s", said)
    return {"outcome": "failed", "error": sendable(said)}


def _message(item: dict[str, Any], until_ns: float, holds: Callable[[], bool]) -> Message:
    """What the handler gets. ``until_ns``: when its time is over."""
    known: dict[str, Any] = {name: item.get(name) for name in Message._fields[:-2]}
    return Message(**known, holds=holds, left_s=lambda: (until_ns - now_ns()) / 1e9)
