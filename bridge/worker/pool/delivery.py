"""One message as a pool process sees it, and what Celery's pool is told of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, Retry

from bridge.protocol.outcomes import Kind, Outcome

if TYPE_CHECKING:
    from bridge.app.context import TicketContext
    from bridge.routing.records import LostAttempt

#: What Celery's pool expects of a traced task: (failed, result or ExceptionInfo, seconds).
Traced = tuple[int, Any, float]

#: What is said of a message whose process died before Celery's main process knew that it had it.
CUT_OFF = "WorkerLostError: the pool process died as it began"

#: The same, when Celery had asked the process to end.
ENDED = "Terminated: the pool process was asked to end as it began"

#: What is told of a message that an operator revoked before it began; and what its dead letter says.
REVOKED = "revoked"
REVOKED_ERROR = "Revoked: revoked"


class Delivery:
    """One delivery of one message. ``lost``: the attempt before it, when that was cut off half way."""

    __slots__ = (
        "args",
        "attempt",
        "context",
        "fence",
        "kwargs",
        "lost",
        "message_id",
        "service_ms",
        "started_us",
        "task",
        "ticket",
    )

    def __init__(
        self,
        ticket: str,
        message_id: str,
        fence: int,
        attempt: int,
        task: str,
        args: list[Any],
        kwargs: dict[str, Any],
        lost: LostAttempt | None = None,
    ) -> None:
        self.ticket = ticket
        self.message_id = message_id
        self.fence = fence
        self.attempt = attempt
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.lost = lost
        self.context: TicketContext | None = None
        self.service_ms = 0.0
        #: Unix time in us; 0: not begun.
        self.started_us = 0

    def outcome(self, kind: Kind, error: str = "", traceback: str = "", delay_ms: int | None = None) -> Outcome:
        """What became of it."""
        if kind is Kind.FAILED and self.context is not None and self.context.rollback_failed:
            kind = Kind.UNDO_FAILED
        return Outcome(self.message_id, self.fence, kind, self.service_ms, self.started_us, error, traceback, delay_ms)


def event_of(delivery: Delivery, traced: Traced) -> tuple[Any, ...] | None:
    """What the main process needs for the events of one message of a bundle; None: Celery tells nothing of its end."""
    failed, result, runtime = traced
    if not failed:
        return (delivery.message_id, "succeeded", result, runtime)
    exc = unwrapped(result) if result is not None else None
    if isinstance(exc, Ignore):
        return None
    kind = "retried" if isinstance(exc, Retry) else "failed"
    return (delivery.message_id, kind, repr(getattr(exc, "exc", None) or exc), str(getattr(result, "traceback", "")))


def unwrapped(einfo: ExceptionInfo) -> BaseException:
    """The exception itself."""
    exc: Any = einfo.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc  # type: ignore[no-any-return]


def ignored(why: str) -> Traced:
    """What tells Celery that nothing is to be done: neither a success nor a failure."""
    return failed(Ignore(why))


def failed(exc: Exception) -> Traced:
    """What tells Celery that a task ended with ``exc``."""
    try:
        raise exc
    except Exception:
        return (1, ExceptionInfo(), 0.0)


class RevokedHere(Ignore):
    """An operator revoked the message, and it had not begun: the main process is to say so."""


def revoked() -> Traced:
    """What tells the main process that the message was revoked."""
    try:
        raise RevokedHere
    except RevokedHere:
        return (1, ExceptionInfo(), 0.0)


def cut_off_outcome(asked: bool) -> tuple[Kind, str]:
    """What became of a message whose process ended before Celery knew that it had it. One that was asked to end (a pool
    that shrinks, and took it for idle) did not end of it.
    """
    return (Kind.INTERRUPTED, ENDED) if asked else (Kind.LOST, CUT_OFF)
