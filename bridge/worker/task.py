"""The task class of an app with the bridge: ``push``, ``self.ticket``, and failures that end in the bridge's retry."""

from __future__ import annotations

import inspect
import math
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import maybe_make_aware

from bridge.producer import push
from routing.errors import StaleFence

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task as _Base

    from bridge.worker.context import TicketContext
else:
    _Base = object


class TicketTask(_Base):  # type: ignore[misc, unused-ignore]
    """Mixed into every task of the app. A task that was called without the bridge behaves as before."""

    #: Attempts of this task's messages before they are given up; None: the setting `bridge_max_attempts`.
    bridge_max_attempts: int | None = None
    #: False: messages of this task always travel as Celery messages of their own.
    bridge_bundle: bool | None = None
    #: ``skip`` or ``park``: what becomes of the ticket of a dead message; None: the setting `bridge_on_dead`.
    bridge_on_dead: str | None = None
    #: ``undo(self, lost, ticket_id, payload)``: called before the task when the last attempt of this message was cut
    #: off half way; ``lost`` is the `routing.records.LostAttempt`. When it raises, the attempt fails, and it is called
    #: again before the next one.
    bridge_rollback: Callable[..., Any] | None = None

    @property
    def ticket(self) -> TicketContext | None:
        """The message that this call handles; None when the task was called without the bridge."""
        found: TicketContext | None = self.request.__dict__.get("bridge_ticket")
        return found

    def push(self, ticket_id: str, payload: Any = None, *, delay: float | None = None) -> str:
        """Adds a message for this task to the stream; returns its id, which is also its Celery task id.

        Raises `PayloadError` when ticket or payload cannot be sent, `ServerUnavailable` when Redis cannot be reached.
        """
        return push(self.app, self.name, ticket_id, payload, delay=delay)

    def retry(self, *args: Any, exc: BaseException | None = None, throw: bool = True, **options: Any) -> Any:
        """As Celery's, but the message stays first of its ticket and waits in Redis: nothing is sent again.

        ``countdown`` and ``eta`` are kept; ``bridge_max_attempts`` decides how often, not ``max_retries``.
        """
        ticket = self.ticket
        if ticket is None:
            return super().retry(*args, exc=exc, throw=throw, **options)
        if ticket.is_last_attempt:
            if exc is not None:
                raise exc
            raise self.MaxRetriesExceededError(f"gave up after {ticket.attempt} attempts")
        when = options.get("eta")
        if when is None:
            when = options.get("countdown")
        if when is None:
            when = self.default_retry_delay
        retry = Retry(exc=exc, when=when)
        if throw:
            raise retry
        return retry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ticket = self.ticket
        if ticket is None or ticket.entered:
            return super().__call__(*args, **kwargs)
        ticket.entered = True
        if not ticket.may_begin():
            # Between the look at the lease and here, handlers of signals and, with `task_track_started`, a write to the
            # result backend may have waited for long. Somebody else may have the ticket by now.
            ticket.late = True
            raise Ignore("the lease ended before the task began")
        try:
            self._roll_back(ticket, args, kwargs)
            result = self.run(*args, **kwargs)
            if ticket.recorded is not None and not self.ignore_result:
                # Whoever waits for the result must find the effects applied.
                ticket.commit()
            return result
        except (Ignore, Reject, Retry, StaleFence):
            raise
        except Exception as exc:
            if ticket.is_last_attempt:
                raise
            settings = self.app.bridge.settings
            raise Retry(exc=exc, when=settings.backoff.delay_ms(ticket.attempt, random.random()) / 1000) from exc

    def _roll_back(self, ticket: TicketContext, args: Any, kwargs: Any) -> None:
        if ticket.lost is None:
            return
        # As it was given: of the class's attributes, Python would bind a function to the task, but no other callable.
        undo: Any = inspect.getattr_static(type(self), "bridge_rollback", None)
        if isinstance(undo, staticmethod):
            undo = undo.__func__
        if undo is None:
            return
        ticket.undo_failed = True
        undo(self, ticket.lost, *args, **kwargs)
        ticket.undo_failed = False


#: Longest wait that is kept as it was asked for: a hundred years. What is larger may fit no outcome, and be lost there.
LONGEST_DELAY_MS = 100 * 365 * 86_400_000


def retry_delay_ms(retry: Retry) -> int | None:
    """How long a `Retry` asks to wait, in ms from now; None when it does not say."""
    when = retry.when
    if isinstance(when, datetime):
        return max(0, int((maybe_make_aware(when, UTC).timestamp() - time.time()) * 1000))
    if isinstance(when, int | float) and not math.isnan(when):
        return int(max(0, min(when * 1000, LONGEST_DELAY_MS)))
    return None
