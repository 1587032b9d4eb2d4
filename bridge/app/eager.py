"""Messages without a server: for eager mode (``task_always_eager``), and for tasks that are called as functions.

In eager mode a push runs its task at once, in this process. Its effects are recorded, and applied nowhere. The promise
of a lane holds: the messages of a ticket succeed in the order of their pushes, one at a time. So a message that a
task pushes is handled after that task. A message that fails comes again at once, without backoff, until its last
attempt. One that its task refuses without a charge (`bridge.Nack`) comes again `UNCHARGED_MAX` times at most: nothing
would end it here. A delayed message is not waited for: when no other message is left, the one that is due first is
handled, as though its time had come.

``task.apply(…)`` and ``task.run(…)`` also get a ticket, if their first argument can be a ticket id. These are plain
calls: errors and retries are Celery's own.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import orjson
from celery import states
from celery._state import _task_stack
from celery.utils.log import get_logger

from bridge.app.context import TicketContext
from bridge.app.effects import Effects
from bridge.app.signature import is_async_or_generator
from bridge.app.state import StateDict, stored_form
from bridge.producer.options import Values, due_ms_of, must_not_be_past
from bridge.routing.errors import KeyUsed, OptionError, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.routing.records import LostAttempt
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: The message that will be handled next: the name of its task, and its ticket. It is set by the push, and taken by the
#: task's call. Another eager call may come before, from a handler or a receiver of a signal.
_next_message: ContextVar[tuple[str, TicketContext] | None] = ContextVar("bridge_next_message", default=None)


#: How often a message may be refused without a charge.
UNCHARGED_MAX = 100

#: The error of an effect that is recorded by a call in a worker.
NO_EFFECTS_IN_CALLS = (
    "this task was called by apply or run, and is no message: its effects would be applied nowhere; push a message, or "
    "record them in the calling task"
)


class CalledTicket(TicketContext):
    """The ticket of ``apply`` and ``run``. There is no message, so a retry is Celery's own."""

    pushed = False

    def refuse_effects(self) -> None:
        """From now on an effect raises `PayloadError`."""
        self._effects = Effects(NO_EFFECTS_IN_CALLS)


@dataclass(frozen=True)
class Handled:
    """The end of one attempt of one message.

    ``state``: ``done``, ``retried`` (it comes again), ``nacked`` (the same, and this attempt was not charged),
    ``dropped``, or ``dead`` (given up). ``effects``: the commands that a worker would apply, such as
    ``("HSET", "account:T42", "amount", "3")``; empty unless the state is ``done``. ``error``: what the task raised,
    also to refuse the message. ``saved``: the ticket's state after the success, of a task that has one.
    """

    task: str
    ticket_id: str
    message_id: str
    payload: Any
    attempt: int
    state: str
    result: Any = None
    error: BaseException | None = None
    effects: tuple[tuple[str, ...], ...] = ()
    saved: dict[str, Any] | None = None


@dataclass
class _Message:
    task: Any
    ticket_id: str
    payload: bytes
    id: str
    #: None: those of its task.
    max_attempts: int | None = None


class Eager:
    """The eager messages of an app. Thread-safe: one thread at a time handles messages.

    The lock is held for the queue only, and never while a task runs: a task may wait for another thread that pushes.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._lock = threading.RLock()
        self._queue: deque[_Message] = deque()
        #: (when it is due, a number that keeps equal ones apart, the message) of each delayed message, as a heap.
        self._delayed: list[tuple[int, int, _Message]] = []
        self._handling = False
        self._last = 0
        self._pushed = 0
        self._keys: dict[str, tuple[bytes, list[str]]] = {}
        #: (Subscription, ticket) of those that stand still.
        self._parked: set[tuple[str, str]] = set()
        #: (Subscription, ticket) -> its state, as Redis would have it.
        self._states: dict[tuple[str, str], Mapping[bytes, bytes]] = {}
        #: Called after each attempt.
        self.listeners: list[Callable[[Handled], None]] = []

    def push(self, task: str, messages: list[tuple[str, bytes, Values]], key: str | None) -> list[str]:
        """Handles the messages, or queues them while any thread handles another one. Returns their ids.

        If ``task_eager_propagates`` is set, raises the error of the first message that was given up.
        """
        content = repr((task, messages)).encode()
        found = self._app.tasks[task]
        with self._lock:
            if key is not None and key in self._keys:
                known, ids = self._keys[key]
                if known != content:
                    raise KeyUsed(f"other messages were pushed under the idempotency key {key!r}")
                return list(ids)
            now_ms = time.time_ns() // 1_000_000
            dues = [due_ms_of(values, now_ms) for _, _, values in messages]
            if any(at < now_ms for *_, values in messages for at in must_not_be_past(values)):
                raise OptionError("eta or expires is past, and no such push was made under this idempotency key")
            new = [
                _Message(found, ticket, payload, self.next_id(), int(values.get("max_attempts", 0)) or None)
                for ticket, payload, values in messages
            ]
            if key is not None:
                self._keys[key] = (content, [message.id for message in new])
            for due, message, (*_, values) in zip(dues, new, messages, strict=True):
                if due is None or "hold" in values:
                    # A held message is handled in the place of its push: its ticket waits for it, and nobody else.
                    self._queue.append(message)
                else:
                    self._pushed += 1
                    heappush(self._delayed, (due, self._pushed, message))
            handles = not self._handling
            self._handling = True
        if handles:
            self._drain()
        return [message.id for message in new]

    def state(self, subscription: str, ticket_id: str) -> dict[str, Any]:
        """The state that eager messages of a ticket left."""
        return dict(StateDict(self._states.get((subscription, ticket_id))))

    def begin_again(self) -> None:
        """Releases the tickets that are parked, and forgets the idempotency keys."""
        with self._lock:
            self._parked.clear()
            self._keys.clear()

    def next_id(self) -> str:
        """The next message id."""
        # In the form of stream ids: milliseconds since 1970, and a number. That is drawn, and by the system, because
        # tests seed Python's generator: processes whose tests run in parallel may keep ids in one database.
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        return f"{self._last}-{secrets.randbits(48)}"

    def _next(self) -> _Message | None:
        """The message that is handled next. None: there is none, and the next push handles its own."""
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            if self._delayed:
                return heappop(self._delayed)[2]
            self._handling = False
            return None

    def _drain(self) -> None:
        first: BaseException | None = None
        try:
            while (message := self._next()) is not None:
                if self._parked and (_lane_of(message.task).group, message.ticket_id) in self._parked:
                    logger.warning("ticket %r is parked: message %s is not handled", message.ticket_id, message.id)
                    continue
                handled = self._handle_all_attempts(message)
                if handled.state == "dead":
                    logger.error("message %s of ticket %r is dead: %r", message.id, message.ticket_id, handled.error)
                    first = first or handled.error
        except BaseException:
            with self._lock:
                self._queue.clear()
                self._delayed.clear()
                self._handling = False
            raise
        if first is not None and self._app.conf.task_eager_propagates:
            raise first

    def _handle_all_attempts(self, message: _Message) -> Handled:
        attempt = 1
        uncharged = 0
        while True:
            details = (message.ticket_id, message.payload, message.id, attempt)
            handled = self.handle(message.task, *details, max_attempts=message.max_attempts)
            if handled.state == "retried":
                attempt += 1
            elif handled.state != "nacked":
                break
            elif (uncharged := uncharged + 1) == UNCHARGED_MAX:
                handled = replace(handled, state="dead")
                break
        lane = _lane_of(message.task)
        if handled.state == "dead" and (message.task.bridge_on_dead or lane.on_dead) == "park":
            self._parked.add((lane.group, message.ticket_id))
        return handled

    def handle(
        self,
        task: Any,
        ticket_id: str,
        payload: bytes,
        message_id: str,
        attempt: int,
        lost: LostAttempt | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        max_attempts: int | None = None,
    ) -> Handled:
        """Makes one attempt of one message. ``payload``: JSON. ``state``: the ticket's state before it; None: the one
        that its last message left.
        """
        lane = _lane_of(task)
        most = max_attempts or task.bridge_max_attempts or lane.max_attempts
        ticket = TicketContext(ticket_id, message_id, attempt, _fence(), most, _write_success, lambda: True, lost, lane)
        content = orjson.loads(payload)
        if task.bridge_state:
            place = (lane.group, ticket_id)
            if state is not None:
                self._states[place] = stored_form(state)
            ticket.give_state("", self._states.get(place, {}))
        token = _next_message.set((task.name, ticket))
        try:
            # As in a worker, a task may read its headers: a push has none.
            result = task.apply((ticket_id, content), task_id=message_id, retries=attempt - 1, throw=False, headers={})
        finally:
            _next_message.reset(token)
        fields: dict[str, Any]
        if ticket.dropped is not None and result.state == states.SUCCESS:
            fields = {"state": "dropped", "error": ticket.dropped}
        elif ticket.nacked is not None and result.state == states.RETRY:
            fields = {"state": "nacked", "error": ticket.nacked}
        elif result.state in (states.SUCCESS, states.IGNORED):
            value = result.result if result.state == states.SUCCESS else None
            fields = {"state": "done", "result": value, "effects": commands_of(ticket)}
            if ticket.saved_state is not None:
                self._states[lane.group, ticket_id] = ticket.saved_state
                fields["saved"] = self.state(lane.group, ticket_id)
        else:
            again = result.state == states.RETRY or getattr(result.result, "requeue", False)
            error = getattr(result.result, "exc", None) or result.result
            fields = {"state": "retried" if again and attempt < most else "dead", "error": error}
        handled = Handled(task.name, ticket_id, message_id, content, attempt, **fields)
        for listener in list(self.listeners):
            listener(handled)
        return handled


def _lane_of(task: Any) -> LaneSettings:
    found: LaneSettings = task.app.bridge.settings.lane_of(task.name, task.bridge_subscription)
    return found


def commands_of(ticket: TicketContext) -> tuple[tuple[str, ...], ...]:
    """The recorded effects of ``ticket``, as text. Bytes that are not UTF-8 are escaped."""
    return tuple(
        tuple(
            argument.decode(errors="backslashreplace") if isinstance(argument, bytes) else str(argument)
            for argument in effect.arguments
        )
        for effect in ticket.effects.recorded()
    )


def ticket_of_call(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TicketContext | None:
    """The ticket of a call that no worker made: of the eager message that the call handles, or else a new one.

    None when the first argument of the call cannot be a ticket id.
    """
    coming = _next_message.get()
    if coming is not None and (task.name, task.request.id) == (coming[0], coming[1].message_id):
        _next_message.set(None)
        return coming[1]
    first = args[0] if args else kwargs.get("ticket_id")
    if isinstance(first, bool) or not isinstance(first, str | int):
        return None
    lane = None
    try:
        lane = _lane_of(task)
        most = task.bridge_max_attempts or lane.max_attempts
    except TicketBridgeError:
        # The settings are wrong, for example without an address of a server. A plain call needs none.
        most = task.bridge_max_attempts or 1
    id_ = f"{time.time_ns() // 1_000_000}-0"
    ticket = CalledTicket(
        str(first), id_, task.request.retries + 1, _fence(), most, _write_success, lambda: True, None, lane
    )
    ticket.entered = True
    if task.bridge_state:
        # A plain call: its own state, which is saved nowhere.
        ticket.give_state("", {})
    if _is_in_worker():
        ticket.refuse_effects()
    return ticket


def _is_in_worker() -> bool:
    """Whether a task that a worker runs made this call. Else a test or another program made it."""
    return any(
        not (request.is_eager or request.called_directly)
        for task in _task_stack.stack
        for request in task.request_stack.stack
    )


def with_ticket_when_called(cls: Any) -> None:
    """Wraps ``run`` of a task's class: if it is called as a function, as tests do, the call gets a ticket."""
    body = inspect.getattr_static(cls, "run")
    # A class of the user's is asked for its body again: a test may patch it there.
    cls._bridge_body = body if "run" in cls.__dict__ else property(lambda self: super(cls, self).run)
    written = body.__func__ if isinstance(body, staticmethod | classmethod) else body
    if is_async_or_generator(written):
        # The call only makes a coroutine or a generator, which runs later. And the user's own code may ask what it is.
        return

    @functools.wraps(written)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        # If a request is on the stack, Celery called it, or it was called as ``task(…)``.
        ticket = None if self.request_stack.top is not None else ticket_of_call(self, args, kwargs)
        # A user's class may derive from this one.
        body = self._bridge_body if type(self) is cls else cls.__dict__["_bridge_body"].__get__(self)
        if ticket is None:
            return body(*args, **kwargs)
        self.push_request(bridge_ticket=ticket, called_directly=True, headers={})
        try:
            return body(*args, **kwargs)
        finally:
            self.pop_request()

    if written is not body:
        # A static method has no ``self``. The signature gets one, since `inspect` reads it through an instance.
        signature = inspect.signature(written)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        run.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
    cls.run = run


def _fence() -> int:
    return time.time_ns() // 1000


def _write_success(ticket: TicketContext) -> None:
    # As in a worker: effects that a handler records after the task are too late.
    ticket.seal()
    ticket.written = True
