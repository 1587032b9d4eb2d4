"""The task class of an app with the bridge: ``push``, ``self.ticket``, and how the failure of a message is retried."""

from __future__ import annotations

import inspect
import math
import time
from datetime import UTC, date, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import orjson
from celery import Task
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

from bridge.app import forked_children
from bridge.app.belonging import require_subscription
from bridge.app.eager import ticket_of_call
from bridge.app.refusing import Dead, Drop, Nack, RefusedByTask
from bridge.app.signature import mismatch, require_match
from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.producer.options import LONGEST_DELAY_MS, Past, checked_options
from bridge.producer.push import apush_many, push, push_many
from bridge.routing.errors import ConfigurationError, StaleFence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bridge.app.context import TicketContext
    from bridge.producer.parts import Row


class TicketTask(Task):  # type: ignore[misc, unused-ignore]
    """A base class of every task of the app, before Celery's ``Task`` (see `bridge.app.adoption`).

    A task that is called without the bridge behaves as before.
    """

    #: The attempts of this task's messages before they are given up; None: the setting `bridge_max_attempts`.
    bridge_max_attempts: int | None = None
    #: False: messages of this task always travel as Celery messages of their own.
    bridge_bundle: bool | None = None
    #: ``skip`` or ``park``: what becomes of the ticket of a dead message; None: the setting `bridge_on_dead`.
    bridge_on_dead: str | None = None
    #: ``undo(self, lost, ticket_id, payload)``: called before the task when the last attempt of this message was cut
    #: off half way; ``lost`` is the `bridge.routing.records.LostAttempt`. When it raises, the attempt fails, and it is
    #: called again before the next one.
    bridge_rollback: Callable[..., Any] | None = None

    #: Whether ``self.ticket.state`` is there: what the ticket's tasks keep between messages (`bridge.app.state`).
    bridge_state: bool | None = None

    #: The subscription that the task belongs to; None: the one whose default task it is, or the app's only one.
    bridge_subscription: str | None = None

    _rolls_back_in_run = False

    @property
    def ticket(self) -> TicketContext | Any:
        """The message that this call handles, a `TicketContext`; None when the task was called without the bridge.

        For type checkers it is also ``Any``, so that a task that is only pushed need not check for None.
        """
        return ticket_of(self)

    def push(
        self,
        ticket_id: str | int,
        payload: Any = None,
        *,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        hold: bool = False,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> str:
        """Adds a message for this task to the stream; returns its id, which is also its Celery task id.

        ``idempotency_key``: a second push with the same key, ticket and payload within a day adds nothing, and returns
        the id of the first one. So a push without an answer can be tried again.

        ``delay`` (seconds) or ``eta`` (a datetime with a time zone) says when the message is due. The server's clock
        decides. Later messages of the ticket overtake it until then; with ``hold=True`` they wait for it.

        ``max_attempts`` and ``timeout`` (seconds) go before those of the task; of two time limits the smaller one
        holds. A message that has not begun when it ``expires`` (seconds from now, or a datetime with a time zone) is
        dead. A ticket whose oldest message has a higher ``priority`` (0 to 9) is handled sooner.

        Raises `PayloadError` when ticket or payload cannot be sent, its kinds `OptionError` (also a ValueError) and
        `OptionTypeError` (also a TypeError) when the message cannot be due then, `ServerUnavailable` when Redis refuses
        or cannot be reached (the message is not in), and its kind `Unanswered` when no answer came (it may be in).
        """
        require_match(self)
        require_subscription(self)
        rules = {"max_attempts": max_attempts, "timeout": timeout, "expires": expires, "priority": priority}
        options = {"delay": delay, "eta": eta, "hold": hold, **rules}
        return push(self.app, self.name, ticket_id, payload, idempotency_key=idempotency_key, options=options)

    def push_many(
        self,
        messages: Iterable[Row],
        *,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        hold: bool = False,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """Adds a message for each ``(ticket_id, payload)``, in their order; returns their ids.

        A message may have options of its own, as in ``("T42", {}, {"delay": 30})``. They go before those of the call.
        All are checked before the first is sent. They go in parts of up to 500 messages or 1 MiB, each taken whole or
        not at all. ``idempotency_key`` stands for the whole call. Raises as `push` does; ``error.pushed`` has the ids
        of the messages that are in for certain, which are the first ones.
        """
        require_match(self)
        require_subscription(self)
        rules = {"max_attempts": max_attempts, "timeout": timeout, "expires": expires, "priority": priority}
        options = {"delay": delay, "eta": eta, "hold": hold, **rules}
        return push_many(self.app, self.name, messages, idempotency_key=idempotency_key, options=options)

    async def apush(
        self,
        ticket_id: str | int,
        payload: Any = None,
        *,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        hold: bool = False,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - of the task, not of the push
        expires: float | timedelta | datetime | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> str:
        """As `push`, for asyncio."""
        [id_] = await self.apush_many(
            [(ticket_id, payload)],
            delay=delay,
            eta=eta,
            hold=hold,
            max_attempts=max_attempts,
            timeout=timeout,
            expires=expires,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        return id_

    async def apush_many(
        self,
        messages: Iterable[Row],
        *,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        hold: bool = False,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - of the task, not of the push
        expires: float | timedelta | datetime | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """As `push_many`, for asyncio."""
        require_match(self)
        require_subscription(self)
        rules = {"max_attempts": max_attempts, "timeout": timeout, "expires": expires, "priority": priority}
        options = {"delay": delay, "eta": eta, "hold": hold, **rules}
        return await apush_many(self.app, self.name, messages, idempotency_key=idempotency_key, options=options)

    def push_on_commit(
        self,
        ticket_id: str | int,
        payload: Any = None,
        *,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        hold: bool = False,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
        using: str | None = None,
    ) -> None:
        """Pushes when Django's transaction (of the database ``using``) commits. Outside of one it pushes at once.

        A message that cannot be sent raises now, while the transaction can still be rolled back. ``delay`` counts from
        the commit. When ``eta`` is past by then, the message is due at once. Raises `ConfigurationError` without
        Django.
        """
        try:
            from django.db import transaction
        except ImportError:
            raise ConfigurationError("push_on_commit needs Django, which is not installed") from None
        rules = {"max_attempts": max_attempts, "timeout": timeout, "expires": expires, "priority": priority}
        options = {"delay": delay, "eta": eta, "hold": hold, **rules}
        require_match(self)
        require_subscription(self)
        checked_options(options)
        ticket_bytes(ticket_id)
        # A copy: the caller may change the payload before the transaction is committed.
        given = orjson.loads(payload_bytes(payload, self.app.bridge.settings.lane.max_payload))

        def send() -> None:
            push(
                self.app,
                self.name,
                ticket_id,
                given,
                idempotency_key=idempotency_key,
                options=options,
                past=Past.ALLOWED,
            )

        transaction.on_commit(send, using=using)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """As Celery's, but the message stays first of its ticket and waits in Redis. No new Celery message is sent.

        ``countdown`` and ``eta`` work. ``max_retries`` may end the attempts sooner than `bridge_max_attempts`, and
        cannot add any. Raises `ConfigurationError` for options that would change the message or its route.
        """
        if isinstance(exc, RefusedByTask):
            # Celery's `autoretry_for` caught it. The task has said itself what becomes of the message.
            raise exc
        ticket = ticket_of(self)
        if ticket is None or not ticket.pushed:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        changed = [
            name for name, value in (("args", args), ("kwargs", kwargs)) if value and not self._is_given(name, value)
        ]
        if changed or options:
            ticket.gave_up = True
            raise ConfigurationError(
                f"retry({', '.join([*changed, *options])}=…): a message comes again as it is, first of its ticket; "
                "push another one instead"
            )
        if max_retries is not None and ticket.attempt > max_retries:
            ticket.gave_up = True
        if ticket.gave_up or ticket.is_last_attempt:
            if exc is not None:
                raise exc
            raise self.MaxRetriesExceededError(f"gave up after {ticket.attempt} attempts")
        when: Any = eta if eta is not None else countdown
        if when is None:
            when = self.default_retry_delay
        retry = Retry(exc=exc, when=when)
        if throw:
            raise retry
        return retry

    def replace(self, sig: Any) -> Any:
        """As Celery's. In a message it raises `ConfigurationError`: the replacement would run without the order of its
        ticket.
        """
        ticket = ticket_of(self)
        if ticket is None or not ticket.pushed:
            return super().replace(sig)
        ticket.gave_up = True
        raise ConfigurationError(
            f"replace({sig}): the replacement of a message would run without the order of its ticket; push another "
            "message, or call apply_async for a task that needs no order"
        )

    def _is_given(self, name: str, value: Any) -> bool:
        """Whether ``value`` equals the ``args`` or ``kwargs`` of this call."""
        given = getattr(self.request, name)
        return bool(dict(value) == given if name == "kwargs" else list(value) == list(given))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ticket = ticket_of(self)
        if ticket is None or not ticket.entered or ticket.body_reached:
            return super().__call__(*args, **kwargs)
        # The `__call__` of the base classes end here. Celery's own one would push a request without a ticket.
        ticket.body_reached = True
        return self.run(*args, **kwargs)

    def _roll_back(self, ticket: TicketContext, args: Any, kwargs: Any) -> None:
        if ticket.lost is None or ticket.rolled_back:
            return
        ticket.rolled_back = True
        # Read without binding: through the task, Python would bind a function, but no other callable.
        undo: Any = inspect.getattr_static(type(self), "bridge_rollback", None)
        if isinstance(undo, staticmethod):
            undo = undo.__func__
        if undo is None:
            return
        ticket.rollback_failed = True
        undo(self, ticket.lost, *args, **kwargs)
        ticket.rollback_failed = False


def ticket_of(task: Any) -> TicketContext | None:
    """The message that ``task`` handles. It does not use ``task.ticket``: a user's class may define its own."""
    found: TicketContext | None = task.request.__dict__.get("bridge_ticket")
    return found


def enter(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The outermost ``__call__`` of every task. It runs before the ``__call__`` of the user's classes.

    For a message it checks the lease again, and handles the message (`handled`). A message whose body has run already
    (`bridge.worker.pool.light_tracer`) ends as its body did.
    """
    ticket = ticket_of(self)
    if ticket is None and self.request.is_eager:
        ticket = self.request.bridge_ticket = ticket_of_call(self, args, kwargs)
    if ticket is None or ticket.entered:
        if ticket is not None and ticket.came_of_body is not None:
            (exc, result), ticket.came_of_body = ticket.came_of_body, None
            if exc is not None:
                raise exc
            return result
        return super(self._outermost, self).__call__(*args, **kwargs)
    return handled(self, ticket, self.request, args, kwargs)


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
            if ticket.lost is not None and not self._rolls_back_in_run:
                self._roll_back(ticket, args, kwargs)
            # If no base class has a `__call__`, the body is called directly, as Celery does: that is faster. Tests, and
            # Celery's autoretry, may have set another `run` on the task itself.
            body = self.__dict__.get("run") or self._body
            call = body if self._calls_run else super(self._outermost, self).__call__
            result = call(*args, **kwargs)
            if ticket.deadline is not None:
                _require_in_time(ticket.deadline)
        except Ignore:
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
    except (Ignore, Reject, Retry, StaleFence):
        raise
    except Drop as exc:
        ticket.dropped = exc
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

    @wraps(run)
    def roll_back_and_run(*args: Any, **kwargs: Any) -> Any:
        ticket = ticket_of(task)
        if ticket is not None:
            task._roll_back(ticket, args, kwargs)
        return run(*args, **kwargs)

    task.run = roll_back_and_run
    task._rolls_back_in_run = True


def before_start(self: Any, *args: Any) -> None:
    """The outermost ``before_start`` of a task that has one. An exception in it fails the attempt, as in the body."""
    ticket = ticket_of(self)
    if ticket is None and self.request.is_eager:
        _, given, named = args
        ticket = self.request.bridge_ticket = ticket_of_call(self, given, named)
    try:
        super(self._outermost, self).before_start(*args)
    except (Ignore, Reject, Retry):
        raise
    except Exception as exc:
        if ticket is None or not ticket.pushed:
            raise
        if isinstance(exc, Drop):
            # The body is not run (`enter`).
            ticket.dropped = exc
            return
        raise_or_retry(self, ticket, exc)


def raise_or_retry(task: Any, ticket: TicketContext, exc: Exception) -> NoReturn:
    """Raises Celery's `Retry` if the message comes again, and ``exc`` if this was its last attempt."""
    if isinstance(exc, TypeError) and mismatch(task):
        # No further attempt can help.
        ticket.gave_up = True
        raise ConfigurationError(mismatch(task)) from None
    lane = ticket.lane or task.app.bridge.settings.lane
    if isinstance(exc, Dead):
        ticket.gave_up = True
        raise exc
    delay_s = exc.delay if isinstance(exc, Nack) else None
    if isinstance(exc, Nack) and not exc.charge and not ticket.rollback_failed:
        # A rollback that is still owed is charged: the leader would forget it otherwise.
        ticket.nacked = exc
        raise Retry(exc=exc, when=lane.backoff.delay_ms(1) / 1000 if delay_s is None else delay_s) from exc
    if ticket.gave_up or ticket.is_last_attempt:
        raise exc
    raise Retry(exc=exc, when=lane.backoff.delay_ms(ticket.attempt) / 1000 if delay_s is None else delay_s) from exc


def retry_delay_ms(retry: Retry) -> int | None:
    """How long a `Retry` waits, in ms from now; None if it does not say."""
    when = retry.when
    if isinstance(when, datetime):
        return max(0, int((maybe_make_aware(when, UTC).timestamp() - time.time()) * 1000))
    if isinstance(when, int | float) and not math.isnan(when):
        return int(max(0, min(when * 1000, LONGEST_DELAY_MS)))
    return None


def has_expired(expires: float | date | str, message_id: str) -> bool:
    """Whether a message has expired. ``expires``: a time, also as ISO 8601 text, or seconds since the message was added
    to the stream.
    """
    if isinstance(expires, date | str):
        at = expires if isinstance(expires, datetime) else maybe_iso8601(str(expires))
        return bool(time.time() >= maybe_make_aware(at, UTC).timestamp())
    return time.time() >= int(message_id.partition("-")[0]) / 1000 + expires
