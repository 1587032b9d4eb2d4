"""Runs messages in a pool process: one that came alone, or a bundle. Both go through `Execution.run`.

The order of steps for one message, on either path:

1. The lease of the incarnation that it was dispatched to holds, and the worker is not going: else it is given back.
2. Its fence is noted in shared memory: if this process dies now, the main process knows whom to charge.
3. Celery's own tracer runs the task.
4. The outcome is written, with the effects in the same step; only then the next message of its ticket starts.

The lease is checked against memory, never against Redis: nothing stands between two messages but one write, and in a
bundle one for a whole round.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.process import current_process
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from bridge.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.outcomes import Kind, Outcome
from bridge.worker.context import TicketContext
from bridge.worker.task import retry_delay_ms
from routing.errors import PayloadError, StaleFence
from routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.worker.shared import Shared
    from bridge.worker.writer import OutcomeWriter

logger = get_logger(__name__)

#: What Celery's pool expects of a traced task: (failed, result or ExceptionInfo, seconds).
Traced = tuple[int, Any, float]

#: Nobody waits longer than this, in seconds, for the outcomes of bundle mates.
WRITE_AFTER_S = 0.005

#: A bundle that lasts this many times its share gives back what it has not started.
OVERTIME = 16


class Execution:
    """What a pool process needs to run messages; made before the pool forks."""

    def __init__(self, app: Any, settings: Settings, shared: Shared, writer: OutcomeWriter, hostname: str) -> None:
        self.app = app
        self.settings = settings
        self.shared = shared
        self.writer = writer
        self.hostname = hostname

    # -- one message ---------------------------------------------------------------------------------------------

    def trace(self, delivery: Delivery, request: dict[str, Any]) -> tuple[Outcome, Traced]:
        """Runs one message through Celery's tracer. The outcome is not written yet, unless it was committed early."""
        task = self.app.tasks.get(delivery.task)
        if task is None:
            return delivery.outcome(Kind.DEAD, error=f"unknown task {delivery.task}"), _ignored("unknown task")
        if task.__trace__ is None:
            # Pools that do not fork build tracers late.
            task.__trace__ = build_tracer(task.name, task, app=self.app, hostname=self.hostname)
        max_attempts = task.bridge_max_attempts or self.settings.max_attempts
        context = TicketContext(
            delivery.ticket, delivery.message_id, delivery.attempt, delivery.fence, max_attempts, self._commit_early
        )
        request["bridge_ticket"] = context
        delivery.context = context
        delivery.started_us = time.time_ns() // 1000
        started = time.perf_counter()
        result, info, runtime, shown = task.__trace__(delivery.message_id, delivery.args, delivery.kwargs, request)
        delivery.service_ms = (time.perf_counter() - started) * 1000
        if info is None:
            return delivery.outcome(Kind.DONE), (0, shown, runtime)
        return self._failure(delivery, result), (1, result, runtime)

    def _failure(self, delivery: Delivery, einfo: ExceptionInfo) -> Outcome:
        exc = _unwrapped(einfo)
        if isinstance(exc, Retry):
            cause = exc.exc
            error = f"{type(cause).__name__}: {cause}" if cause is not None else (exc.excs or str(exc))
            return delivery.outcome(Kind.FAILED, error, str(einfo.traceback), retry_delay_ms(exc))
        if isinstance(exc, Ignore):
            return delivery.outcome(Kind.DONE)
        if isinstance(exc, Reject):
            kind = Kind.FAILED if exc.requeue else Kind.DEAD
            return delivery.outcome(kind, f"Reject: {exc.reason!r}", str(einfo.traceback))
        return delivery.outcome(Kind.FAILED, f"{type(exc).__name__}: {exc}", str(einfo.traceback))

    def _commit_early(self, context: TicketContext) -> None:
        outcome = Outcome(context.message_id, context.fence, Kind.DONE)
        effects = context.effects.recorded()
        [(word, problem)] = self.writer.apply(self.shared.incarnation, [(context.id, outcome, effects)])
        if word is ReturnWord.STALE:
            raise StaleFence(f"ticket {context.id} was taken over while fence {context.fence} ran; nothing was applied")
        if word is ReturnWord.ERR:
            raise PayloadError(f"the effects cannot be applied: {problem}")
        context.committed = True

    def write(self, incarnation: str, done: list[tuple[Delivery, Outcome]]) -> None:
        """Writes the outcomes of ``done``; effects that cannot be applied turn a success into a failure."""
        plain = []
        with_effects = []
        for delivery, outcome in done:
            context = delivery.context
            if outcome.kind is Kind.DONE and context is not None:
                if context.committed:
                    continue
                recorded = context.recorded
                if recorded is not None:
                    with_effects.append((delivery.ticket, outcome, recorded.recorded()))
                    continue
            plain.append(outcome)
        if with_effects:
            words = self.writer.apply(incarnation, with_effects)
            for (ticket, outcome, _), (word, problem) in zip(with_effects, words, strict=True):
                if word is ReturnWord.STALE:
                    logger.warning("ticket %s: fence %d is stale, its effects were refused", ticket, outcome.fence)
                elif word is ReturnWord.ERR:
                    error = f"PayloadError: the effects cannot be applied: {problem}"
                    plain.append(
                        Outcome(
                            outcome.message_id,
                            outcome.fence,
                            Kind.FAILED,
                            outcome.service_ms,
                            outcome.started_us,
                            error,
                        )
                    )
        if plain:
            self.writer.write(incarnation, plain)

    # -- alone -----------------------------------------------------------------------------------------------------

    def run_alone(self, request: dict[str, Any], task: str, body: str) -> Traced:
        """A message that came as a Celery message of its own."""
        incarnation = request[HEADER_INCARNATION]
        ticket, offset, _, attempt, _ = request[HEADER_RUNS][0]
        fence = request[HEADER_BASE] + offset
        message_id = request["id"]
        if not self.shared.holds(incarnation):
            return _ignored("the lease that this was dispatched under is over")
        args, kwargs, embed = json.loads(body)
        delivery = Delivery(ticket, message_id, fence, attempt, task, args, kwargs)
        slot = _slot()
        # Noted before the look at `going`: see Member.give_back_unstarted.
        self.shared.running(slot, fence)
        if self.shared.going:
            self.shared.running(slot, 0)
            self.writer.write(incarnation, [delivery.outcome(Kind.RETURNED)])
            return _ignored("the worker is going; given back")
        request.update(embed, args=args, kwargs=kwargs, hostname=self.hostname, is_eager=False)
        outcome, traced = self.trace(delivery, request)
        self.write(incarnation, [(delivery, outcome)])
        self.shared.running(slot, 0)
        return traced

    # -- a bundle --------------------------------------------------------------------------------------------------

    def run_bundle(self, request: dict[str, Any], body: str) -> Traced:
        """A bundle: in rounds, one message of each ticket a round; the outcomes of a round before the next."""
        incarnation = request[HEADER_INCARNATION]
        base = request[HEADER_BASE]
        if not self.shared.holds(incarnation):
            return _ignored("the lease that this was dispatched under is over")
        runs = [
            [
                Delivery(ticket, id_, base + offset + i, attempt if i == 0 else 1, task, [ticket, payload], {})
                for i, (id_, task, payload) in enumerate(messages)
            ]
            for ticket, offset, attempt, messages in json.loads(body)
        ]
        template = _request_of_bundle(request, self.hostname)
        events: list[tuple[Any, ...]] = []
        slot = _slot()
        started = last_write = time.monotonic()
        give_up_at = started + max(OVERTIME * self.settings.bundle_ms / 1000, 2 * WRITE_AFTER_S)
        pending: list[tuple[Delivery, Outcome]] = []
        unstarted: list[Outcome] = []
        position = 0
        stopping = False
        while runs:
            going_on = []
            for run in runs:
                delivery = run[position]
                now = time.monotonic()
                # Noted before the look at `going`: see Member.give_back_unstarted.
                self.shared.running(slot, delivery.fence)
                if not stopping:
                    if not self.shared.holds(incarnation):
                        self.shared.running(slot, 0)
                        # Void: what is pending cannot be written under a lease that is over, either.
                        return _ignored("the lease ended in the middle of a bundle")
                    stopping = self.shared.going or now > give_up_at
                if stopping:
                    # The rest of the run goes back with its first message.
                    unstarted.append(delivery.outcome(Kind.RETURNED))
                    continue
                if pending and now - last_write > WRITE_AFTER_S:
                    self.write(incarnation, pending)
                    pending = []
                    last_write = now
                wanted = dict(template)
                wanted["id"] = wanted["correlation_id"] = wanted["root_id"] = delivery.message_id
                wanted["task"] = delivery.task
                wanted["retries"] = delivery.attempt - 1
                wanted["args"], wanted["kwargs"] = delivery.args, delivery.kwargs
                known = self.app.tasks.get(delivery.task)
                wanted["ignore_result"] = bool(known.ignore_result) if known is not None else True
                try:
                    outcome, traced = self.trace(delivery, wanted)
                except SoftTimeLimitExceeded as exc:
                    # It struck outside the task's body, in Celery's tracer or ours.
                    outcome = delivery.outcome(Kind.FAILED, f"{type(exc).__name__}: {exc}")
                    traced = (1, None, 0.0)
                events.append(_event(delivery, traced))
                pending.append((delivery, outcome))
                if outcome.kind is Kind.DONE and position + 1 < len(run):
                    going_on.append(run)
            if pending:
                self.write(incarnation, pending)
                pending = []
                last_write = time.monotonic()
            self.shared.running(slot, 0)
            runs = going_on
            position += 1
        if unstarted:
            self.writer.write(incarnation, unstarted)
        return (0, events, time.monotonic() - started)


class Delivery:
    """One message as a pool process sees it."""

    __slots__ = (
        "args",
        "attempt",
        "context",
        "fence",
        "kwargs",
        "message_id",
        "service_ms",
        "started_us",
        "task",
        "ticket",
    )

    def __init__(
        self, ticket: str, message_id: str, fence: int, attempt: int, task: str, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self.ticket = ticket
        self.message_id = message_id
        self.fence = fence
        self.attempt = attempt
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.context: TicketContext | None = None
        self.service_ms = 0.0
        #: Unix time in us; 0: not begun.
        self.started_us = 0

    def outcome(self, kind: Kind, error: str = "", traceback: str = "", delay_ms: int | None = None) -> Outcome:
        return Outcome(self.message_id, self.fence, kind, self.service_ms, self.started_us, error, traceback, delay_ms)


#: The execution of this process, set before the pool forks.
_current: Execution | None = None


def set_current(execution: Execution) -> None:
    """Makes ``execution`` the one that `run_ticket` and `run_bundle` use in this process and its children."""
    global _current
    _current = execution


def run_ticket(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """What the pool calls for a message that came alone; the signature is that of Celery's own trace function."""
    del uuid
    return _execution().run_alone(request, name, body)


def run_bundle(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """What the pool calls for a bundle."""
    del name, uuid
    return _execution().run_bundle(request, body)


def _execution() -> Execution:
    if _current is None:
        raise RuntimeError("the bridge was not set up in this process")
    return _current


def _slot() -> int:
    index = getattr(current_process(), "index", None)
    # The threads or greenlets of one process each need a slot, too.
    return int(index) if index is not None else threading.get_ident() // 64


def _request_of_bundle(request: dict[str, Any], hostname: str) -> dict[str, Any]:
    """The request fields that all messages of a bundle share, as an ordinary Celery message would have them."""
    return {
        "lang": "py",
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "timelimit": [None, None],
        "parent_id": None,
        "origin": request.get("origin"),
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "callbacks": None,
        "errbacks": None,
        "chain": None,
        "chord": None,
        "kwargsrepr": "{}",
        "properties": request.get("properties"),
        "reply_to": "",
        "delivery_info": request.get("delivery_info"),
        "hostname": hostname,
        "is_eager": False,
    }


def _event(delivery: Delivery, traced: Traced) -> tuple[Any, ...]:
    """What the main process needs for the events of one message of a bundle."""
    failed, result, runtime = traced
    if not failed:
        return (delivery.message_id, "succeeded", result, runtime)
    exc = _unwrapped(result) if result is not None else None
    kind = "retried" if isinstance(exc, Retry) else "failed"
    return (delivery.message_id, kind, repr(getattr(exc, "exc", None) or exc), str(getattr(result, "traceback", "")))


def _unwrapped(einfo: ExceptionInfo) -> BaseException:
    exc: Any = einfo.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc  # type: ignore[no-any-return]


def _ignored(why: str) -> Traced:
    """What tells Celery that nothing is to be done: neither a success nor a failure."""
    try:
        raise Ignore(why)
    except Ignore:
        return (1, ExceptionInfo(), 0.0)
