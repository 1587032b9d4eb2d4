"""One delivery of a message in a pool process, and the results that Celery's pool gets for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, Retry

from bridge.protocol.headers import lost_of
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.text import safe_repr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.app.context import TicketContext
    from bridge.protocol.headers import OwnRules
    from bridge.routing.records import LostAttempt
    from bridge.worker.pool.results import Unstored
    from bridge.worker.pool.states import State

#: What Celery's pool expects of a traced task: (failed, result or ExceptionInfo, seconds).
Traced = tuple[int, Any, float]

#: Longest text of an exception that the main process gets, in characters.
SHOWN_CHARS = 10_000

#: The error of a message whose pool process died before Celery knew that it had accepted the message.
CUT_OFF = "WorkerLostError: the pool process died as it began"

#: The error when Celery had asked that process to end.
ENDED = "Terminated: the pool process was asked to end as it began"

#: The event of a message that an operator revoked before it started, and that of one that had expired.
REVOKED = "revoked"
EXPIRED = "expired"
#: The events that a bundle has first in its list.
NEVER_STARTED = (REVOKED, EXPIRED)
#: The error in the dead letter of the former.
REVOKED_ERROR = "Revoked: revoked"


#: The kind of a failure -> its kind while a rollback is owed.
OWING = {Kind.FAILED: Kind.FAILED_OWING, Kind.NACKED: Kind.NACKED_OWING}


class Delivery:
    """One delivery of one message. ``lost``: the attempt before it, if that was cut off half way."""

    __slots__ = (
        "args",
        "attempt",
        "context",
        "fence",
        "kwargs",
        "lost",
        "message_id",
        "own",
        "service_ms",
        "started_us",
        "state",
        "task",
        "ticket",
        "unstored",
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
        own: OwnRules | None = None,
    ) -> None:
        self.ticket = ticket
        self.message_id = message_id
        self.fence = fence
        self.attempt = attempt
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.lost = lost
        #: The message's own options; None: it has none that matter here.
        self.own = own
        self.context: TicketContext | None = None
        #: The ticket's state; None: it must be read, or the task has none.
        self.state: State | None = None
        #: Its result, if that is stored with the others of its round; None: it has none, or it is stored.
        self.unstored: Unstored | None = None
        self.service_ms = 0.0
        #: When it started, Unix time in us; 0: not started.
        self.started_us = 0

    def request(self, shared: dict[str, Any], task: Any) -> dict[str, Any]:
        """The fields of its request in a bundle. ``shared``: those of all messages; ``task``: None if it is unknown."""
        return {
            **shared,
            "id": self.message_id,
            "correlation_id": self.message_id,
            "root_id": self.message_id,
            "task": self.task,
            "retries": self.attempt - 1,
            "args": self.args,
            "kwargs": self.kwargs,
            "ignore_result": bool(task.ignore_result) if task is not None else True,
            # Else Celery would take the bridge's own fields for headers of the user's.
            "headers": {},
        }

    def outcome(self, kind: Kind, error: str = "", traceback: str = "", delay_ms: int | None = None) -> Outcome:
        """The outcome ``kind`` of this delivery."""
        if self.lost is not None and (self.context is None or self.context.owes_rollback):
            kind = OWING.get(kind, kind)
        return Outcome(self.message_id, self.fence, kind, self.service_ms, self.started_us, error, traceback, delay_ms)


def failure_of(headers: Mapping[str, Any]) -> Kind:
    """A failure of a message that travelled alone, if nobody knows whether a rollback that it owed had returned."""
    return Kind.FAILED if lost_of(headers) is None else Kind.FAILED_OWING


def event_of(delivery: Delivery, traced: Traced) -> tuple[Any, ...] | None:
    """What the main process needs to send the events of one message of a bundle; None: Celery sends no event."""
    failed, result, runtime = traced
    if not failed:
        return (delivery.message_id, "succeeded", result, runtime)
    exc = unwrapped(result) if result is not None else None
    if isinstance(exc, RevokedHere):
        return (delivery.message_id, exc.why, "", "")
    if isinstance(exc, Ignore):
        return None
    kind = "retried" if isinstance(exc, Retry) else "failed"
    if isinstance(exc, Retry) and exc.exc is not None:
        exc = exc.exc
    return (delivery.message_id, kind, safe_repr(exc, SHOWN_CHARS), str(getattr(result, "traceback", "")))


def unwrapped(einfo: ExceptionInfo) -> BaseException:
    """The exception in ``einfo``, without billiard's wrapper."""
    exc: Any = einfo.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc  # type: ignore[no-any-return]


def ignored(why: str) -> Traced:
    """The result by which Celery reports neither a success nor a failure."""
    return failed(Ignore(why))


def failed(exc: Exception) -> Traced:
    """The result by which Celery reports that a task failed with ``exc``."""
    try:
        raise exc
    except Exception:
        return (1, ExceptionInfo(), 0.0)


class RevokedHere(Ignore):
    """An operator revoked the message before it started, or it had expired. The main process must report that.

    ``why``: `REVOKED` or `EXPIRED`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def revoked(why: str = REVOKED) -> Traced:
    """The result that tells the main process that the message was revoked, or has expired."""
    return failed(RevokedHere(why))


def cut_off_outcome(asked: bool) -> tuple[Kind, str]:
    """The outcome of a message whose pool process ended before Celery knew that it had accepted the message.

    ``asked``: Celery asked the process to end, since the pool shrinks and the process seemed idle. Then the message is
    not to blame.
    """
    return (Kind.INTERRUPTED, ENDED) if asked else (Kind.LOST, CUT_OFF)
