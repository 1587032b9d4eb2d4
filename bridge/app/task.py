"""The task class of an app with the bridge: ``push``, ``self.ticket``, ``retry``.

`bridge.app.handling` has what comes before and behind the body of a task.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import orjson
from celery import Task
from celery.exceptions import Retry

from bridge.app.belonging import require_subscription
from bridge.app.refusing import RefusedByTask
from bridge.app.signature import require_match, rollback_would_not_run, was_not_run
from bridge.producer.message_bytes import checked_key, payload_bytes, ticket_bytes
from bridge.producer.options import Past, checked_options
from bridge.producer.push import apush_many, push, push_many
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime, timedelta

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
    #: off half way; ``lost`` is the `bridge.routing.records.LostAttempt`. It is owed until it has returned: in an
    #: attempt that fails before that, it is called before the next one.
    bridge_rollback: Callable[..., Any] | None = None

    #: Whether ``self.ticket.state`` is there: what the ticket's tasks keep between messages (`bridge.app.state`).
    bridge_state: bool | None = None

    #: The subscription that the task belongs to; None: the one whose default task it is, or the app's only one.
    bridge_subscription: str | None = None

    _bridge_rolls_back_in_run = False
    #: Whether no base class has a ``__call__``.
    _bridge_calls_run = True

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
        key = None if idempotency_key is None else checked_key(idempotency_key)
        # As a push with a key, this one may be a repeated one: its eta may be past.
        checked_options(options, Past.REFUSED if key is None else Past.ALLOWED)
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

        ``countdown`` and ``eta`` work. With ``throw=False`` the body goes on, and the message comes again when it has
        ended: its result, effects and state are not kept. ``max_retries`` may end the attempts sooner than
        `bridge_max_attempts`, and cannot add any. Raises `ConfigurationError` for options that would change the message
        or its route.
        """
        if isinstance(exc, RefusedByTask):
            # Celery's `autoretry_for` caught it. The task has said itself what becomes of the message.
            raise exc
        ticket = ticket_of(self)
        if ticket is None or not ticket.pushed:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        changed = [
            name for name, value in (("args", args), ("kwargs", kwargs)) if value and not _is_given(self, name, value)
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
        ticket.asked_retry = retry
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ticket = ticket_of(self)
        if ticket is None or not ticket.entered or ticket.body_reached:
            return super().__call__(*args, **kwargs)
        # The `__call__` of the base classes end here. Celery's own one would push a request without a ticket.
        ticket.body_reached = True
        return self.run(*args, **kwargs)


def ticket_of(task: Any) -> TicketContext | None:
    """The message that ``task`` handles. It does not use ``task.ticket``: a user's class may define its own."""
    found: TicketContext | None = task.request.__dict__.get("bridge_ticket")
    return found


def roll_back(task: Any, ticket: TicketContext, args: Any, kwargs: Any) -> None:
    """Calls the rollback of ``task``, if the message owes one."""
    if not ticket.owes_rollback or ticket.rolling_back:
        return
    # Read without binding: through the task, Python would bind a function, but no other callable.
    undo: Any = inspect.getattr_static(type(task), "bridge_rollback", None)
    if isinstance(undo, staticmethod):
        undo = undo.__func__
    if undo is not None:
        ticket.rolling_back = True
        try:
            if was_not_run(undo(task, ticket.lost, *args, **kwargs)):
                raise ConfigurationError(rollback_would_not_run(task.name))
        finally:
            ticket.rolling_back = False
    ticket.owes_rollback = False


def _is_given(task: Any, name: str, value: Any) -> bool:
    """Whether ``value`` equals the ``args`` or ``kwargs`` of the call that ``task`` handles."""
    given = getattr(task.request, name)
    return bool(dict(value) == given if name == "kwargs" else list(value) == list(given))
