"""How a task handles a message: what comes before and behind its body, and what an exception becomes.

`bridge.app.adoption` makes these functions the outermost methods of each task.
"""

from __future__ import annotations

import inspect
import math
import time
from datetime import UTC, date, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

from bridge.app import forked_children
from bridge.app.eager import ticket_of_call
from bridge.app.refusing import Dead, Drop, Nack
from bridge.app.signature import mismatch, was_not_run, would_not_run
from bridge.app.task import roll_back, ticket_of
from bridge.producer.options import LONGEST_DELAY_MS
from bridge.routing.errors import ConfigurationError
from bridge.routing.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bridge.app.context import TicketContext


def entry_of(cls: Any) -> Callable[..., Any]:
    """The ``__call__`` of the outermost class of a task. It runs before the ``__call__`` of the user's classes.

    For a message it checks the lease again, and handles the message (`handled`). A message whose body has run already
    (`bridge.worker.pool.light_tracer`) ends as its body did. A user's class may derive from ``cls``: then the call goes
    through, since the entry of that class came first.
    """

    def enter(self: Any, *args: Any, **kwargs: Any) -> Any:
        ticket = ticket_of(self)
        if ticket is None and self.request.is_eager:
            ticket = self.request.bridge_ticket = ticket_of_call(self, args, kwargs)
        if ticket is None or ticket.entered:
            if ticket is not None and ticket.body_end is not None:
                (exc, result), ticket.body_end = ticket.body_end, None
                if exc is not None:
                    raise exc
                return result
            return super(cls, self).__call__(*args, **kwargs)
        return handled(self, ticket, self.request, args, kwargs)

    return enter


def handled(self: Any, ticket: TicketContext, request: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Handles a message by the task ``self``. Returns the result of the body.

    It checks the lease, calls the rollback, and writes the success early if there is a result. It turns an exception
    into the bridge's retry. For Celery, a message that its task dropped is a success without result.
    """
    ticket.entered = True
    if not ticket.lease_holds():
        # Since the lease was checked, signal handlers may have taken long, and with `task_track_started` a write to the
        # result backend too. Another worker may have the ticket by now.
        ticket.lease_was_over = True
        raise Ignore("the lease ended before the task began")
    if ticket.dropped is not None:
        return None
    fork_depth = forked_children.fork_depth
    try:
        try:
            if ticket.owes_rollback and not self._bridge_rolls_back_in_run:
                roll_back(self, ticket, args, kwargs)
            # If no base class has a `__call__`, the body is called directly, as Celery does: that is faster. Tests, and
            # Celery's autoretry, may have set another `run` on the task itself.
            body = self.__dict__.get("run") or self._bridge_body
            call = body if self._bridge_calls_run else super(self._bridge_outermost, self).__call__
            result = call(*args, **kwargs)
            if ticket.deadline is not None:
                _require_in_time(ticket.deadline)
            if was_not_run(result) and ticket.pushed:
                # A decorator or a base class does not run what it calls. No further attempt can help.
                ticket.gave_up = True
                raise ConfigurationError(would_not_run(self))
            if ticket.asked_retry is not None:
                raise ticket.asked_retry
        except (Ignore, Reject) as exc:
            if ticket.asked_retry is not None:
                # In Celery it would be on its way by now.
                raise ticket.asked_retry from None
            if isinstance(exc, Ignore):
                # Done, without a result.
                ticket.close_state()
            raise
        finally:
            if forked_children.fork_depth != fork_depth and not request.is_eager:
                forked_children.exit_forked_child(self.name)
        ticket.close_state()
        if not self.ignore_result and ticket.has_changes:
            # A caller that waits for the result must find the effects applied.
            ticket.write_success()
        return result
    except (Ignore, Reject, Retry) as exc:
        if _cannot_come_again(ticket, exc):
            raise_or_retry(self, ticket, _cause_of(self, ticket, exc))
        ticket.decided = exc
        ticket.end_state()
        raise
    except Drop as exc:
        ticket.dropped = exc
        ticket.end_state()
        return None
    except Exception as exc:
        raise_or_retry(self, ticket, exc)


def _require_in_time(deadline: float) -> None:
    """Raises `TimeLimitExceeded` if the task has run for longer than its message allows.

    Only a pool of processes or greenlets can stop a task then. Elsewhere it runs to its end, and fails all the same.
    """
    late_s = time.monotonic() - deadline
    if late_s > 0:
        raise TimeLimitExceeded(f"the task ended {late_s:.3g} s after the time that its message allows")


def roll_back_in_run(task: Any) -> None:
    """Moves the rollback of ``task`` into its ``run``. So it runs within the contexts that its base classes open."""
    run = task.run

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ticket = ticket_of(task)
        if ticket is not None:
            roll_back(task, ticket, args, kwargs)

    @wraps(run)
    def roll_back_and_run(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        return run(*args, **kwargs)

    @wraps(run)
    async def roll_back_and_await(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        return await run(*args, **kwargs)

    @wraps(run)
    def roll_back_and_yield(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        return (yield from run(*args, **kwargs))

    # A base class that runs such bodies may ask what this one is.
    if inspect.iscoroutinefunction(run):
        task.run = roll_back_and_await
    else:
        task.run = roll_back_and_yield if inspect.isgeneratorfunction(run) else roll_back_and_run
    task._bridge_rolls_back_in_run = True


def before_start_of(cls: Any) -> Callable[..., None]:
    """The ``before_start`` of the outermost class of a task that has one. An exception in it fails the attempt, as in
    the body. A user's class may derive from ``cls``: then the call goes through, as in `entry_of`.
    """

    def before_start(self: Any, *args: Any) -> None:
        if self._bridge_outermost is not cls:
            super(cls, self).before_start(*args)
            return
        ticket = ticket_of(self)
        if ticket is None and self.request.is_eager:
            _, given, named = args
            ticket = self.request.bridge_ticket = ticket_of_call(self, given, named)
        try:
            super(cls, self).before_start(*args)
        except (Ignore, Reject, Retry) as exc:
            if ticket is not None and _cannot_come_again(ticket, exc):
                raise_or_retry(self, ticket, _cause_of(self, ticket, exc))
            if ticket is not None:
                ticket.decided = ticket.asked_retry or exc
                ticket.end_state()
                if ticket.asked_retry is not None:
                    raise ticket.asked_retry from None
            raise
        except Exception as exc:
            if ticket is None or not ticket.pushed:
                raise
            if isinstance(exc, Drop):
                # The body is not run (`handled`).
                ticket.dropped = exc
                ticket.end_state()
                return
            raise_or_retry(self, ticket, exc)

    return before_start


def _cannot_come_again(ticket: TicketContext, exc: Exception) -> bool:
    """Whether the task asked for a retry by Celery's own exception, and this was its last attempt."""
    return isinstance(exc, Retry) and ticket.pushed and (ticket.gave_up or ticket.is_last_attempt)


def _cause_of(task: Any, ticket: TicketContext, retry: Any) -> Exception:
    if isinstance(retry.exc, Exception):
        return retry.exc
    made: Exception = task.MaxRetriesExceededError(f"gave up after {ticket.attempt} attempts")
    return made


def raise_or_retry(task: Any, ticket: TicketContext, exc: Exception) -> NoReturn:
    """Raises Celery's `Retry` if the message comes again, and ``exc`` if this was its last attempt.

    After the lease it raises `Ignore`, whichever attempt this is: what came of it is void, and the message runs again
    under another fence. A failure would be stored as its result, and a caller would not wait for that run.
    """
    if ticket.taken_over or not ticket.lease_holds():
        ticket.taken_over = True
        ticket.end_state()
        raise Ignore(f"the lease ended while the task ran: {error_text(exc)}") from exc
    ticket.decided = decided = _decision(task, ticket, exc)
    ticket.end_state()
    if decided is exc:
        raise exc
    raise decided from (exc if isinstance(decided, Retry) else None)


def _decision(task: Any, ticket: TicketContext, exc: Exception) -> Exception:
    """The exception by which the attempt ends, for Celery. ``exc``: what the task raised."""
    if isinstance(exc, TypeError) and mismatch(task):
        # No further attempt can help.
        ticket.gave_up = True
        return ConfigurationError(mismatch(task))
    lane = ticket.lane or task.app.bridge.settings.lane
    if isinstance(exc, Dead):
        ticket.gave_up = True
        return exc
    delay_s = exc.delay if isinstance(exc, Nack) else None
    if isinstance(exc, Nack) and not exc.charge:
        ticket.nacked = exc
        return _retry(exc, lane.backoff.delay_ms(1) / 1000 if delay_s is None else delay_s)
    if ticket.gave_up or ticket.is_last_attempt:
        return exc
    return _retry(exc, lane.backoff.delay_ms(ticket.attempt) / 1000 if delay_s is None else delay_s)


def _retry(exc: Exception, delay_s: float) -> Exception:
    made: Exception = Retry(exc=exc, when=delay_s)
    return made


def retry_delay_ms(retry: Retry) -> int | None:
    """How long a `Retry` waits, in ms from now; None if it does not say."""
    when = retry.when
    if isinstance(when, datetime):
        when = maybe_make_aware(when, UTC).timestamp() - time.time()
    if isinstance(when, int | float) and not math.isnan(when):
        return int(max(0, min(when * 1000, LONGEST_DELAY_MS)))
    return None


def has_expired(expires: float | date | str, message_id: str, now_ms: float) -> bool:
    """Whether a message has expired. ``expires``: a time, also as ISO 8601 text, or seconds since the message was added
    to the stream. ``now_ms``: the server's time.
    """
    if isinstance(expires, date | str):
        at = expires if isinstance(expires, datetime) else maybe_iso8601(str(expires))
        return bool(now_ms >= maybe_make_aware(at, UTC).timestamp() * 1000)
    return now_ms >= int(message_id.partition("-")[0]) + expires * 1000
