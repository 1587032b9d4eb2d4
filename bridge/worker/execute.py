"""Runs messages in a pool process: one that came alone, or a bundle. Both go through `Execution.run`.

The order of steps for one message, on either path:

1. Its fence is noted in shared memory: if this process dies now, whoever is left knows whom to charge.
2. The lease of the incarnation that it was dispatched to holds, and it is not wanted back: else it is given back.
3. Celery's own tracer runs the task, whose body looks at the lease once more: signals and results come before it.
4. The outcome is written, with the effects in the same step; only then the next message of its ticket starts.

The lease is checked against memory, never against Redis: nothing stands between two messages but one write, and in a
bundle one for a whole round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from bridge.names import HEADER_BASE, HEADER_INCARNATION, HEADER_LOST, HEADER_RUNS
from bridge.outcomes import Kind, Outcome
from bridge.worker.bundles import CUT_OFF, run
from bridge.worker.context import TicketContext
from bridge.worker.delivery import Delivery, Traced, ignored, unwrapped
from bridge.worker.task import retry_delay_ms
from routing.errors import PayloadError, StaleFence
from routing.records import LostAttempt
from routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.worker.shared import Shared
    from bridge.worker.writer import OutcomeWriter

logger = get_logger(__name__)


class Execution:
    """What a pool process needs to run messages; made before the pool forks."""

    def __init__(self, app: Any, settings: Settings, shared: Shared, writer: OutcomeWriter, hostname: str) -> None:
        self.app = app
        self.settings = settings
        self.shared = shared
        self.writer = writer
        self.hostname = hostname
        #: First fence of a Celery message -> fence that ran in it when it was cut off; for pools within this process.
        self.cut_off: dict[int, int] = {}

    @contextmanager
    def row(self, first_fence: int) -> Iterator[int]:
        """A row of the shared page, for as long as one Celery message runs."""
        row = self.shared.take_row()
        try:
            yield row
        except BaseException:
            # Cut off. The main process asks what ran: it finds that in the row of a pool child, which has no other line
            # of execution; within the main process the row is needed by others.
            if self.shared.in_main:
                self.cut_off[first_fence] = self.shared.fence_in(row)
                self.shared.running(row, 0)
            raise
        else:
            self.shared.running(row, 0)
        finally:
            self.shared.give_row(row)

    # -- one message ---------------------------------------------------------------------------------------------

    def trace(self, delivery: Delivery, incarnation: str, request: dict[str, Any]) -> tuple[Outcome, Traced]:
        """Runs one message through Celery's tracer. The outcome is not written yet, unless it was committed early."""
        task = self.app.tasks.get(delivery.task)
        if task is None:
            return delivery.outcome(Kind.DEAD, error=f"unknown task {delivery.task}"), ignored("unknown task")
        if task.__trace__ is None:
            # Pools that do not fork build tracers late.
            task.__trace__ = build_tracer(task.name, task, app=self.app, hostname=self.hostname)
        max_attempts = task.bridge_max_attempts or self.settings.max_attempts
        context = TicketContext(
            delivery.ticket,
            delivery.message_id,
            delivery.attempt,
            delivery.fence,
            max_attempts,
            self._commit_early,
            partial(self.shared.holds, incarnation),
            delivery.lost,
        )
        request["bridge_ticket"] = context
        delivery.context = context
        delivery.started_us = context.started_us = time.time_ns() // 1000
        started = time.perf_counter()
        result, info, runtime, shown = task.__trace__(delivery.message_id, delivery.args, delivery.kwargs, request)
        if context.late:
            delivery.started_us = 0
            return delivery.outcome(Kind.RETURNED), ignored("the lease ended before the task began")
        delivery.service_ms = (time.perf_counter() - started) * 1000
        if info is None:
            return delivery.outcome(Kind.DONE), (0, shown, runtime)
        return self._failure(delivery, result), (1, result, runtime)

    def _failure(self, delivery: Delivery, einfo: ExceptionInfo) -> Outcome:
        exc = unwrapped(einfo)
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
        # As far as it has come: Celery stores the result after this, and nothing of it is written any more.
        service_ms = max(0, time.time_ns() // 1000 - context.started_us) / 1000
        outcome = Outcome(context.message_id, context.fence, Kind.DONE, service_ms, context.started_us)
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
        args, kwargs, embed = json.loads(body)
        told = request.get(HEADER_LOST)
        lost = LostAttempt(*told) if told else None
        delivery = Delivery(ticket, message_id, fence, attempt, task, args, kwargs, lost)
        with self.row(fence) as row:
            # Noted before the looks: whoever ends the lease, or wants it back, then sees that it runs.
            self.shared.running(row, fence)
            if not self.shared.holds(incarnation):
                return ignored("the lease that this was dispatched under is over")
            if fence <= self.shared.recalled_to:
                self.shared.running(row, 0)
                self.writer.write(incarnation, [delivery.outcome(Kind.RETURNED)])
                return ignored("the message was wanted back; given back")
            if self.shared.cut_off(fence, fence):
                self.shared.running(row, 0)
                self.writer.write(incarnation, [delivery.outcome(Kind.LOST, CUT_OFF)])
                return ignored(CUT_OFF)
            request.update(embed, args=args, kwargs=kwargs, hostname=self.hostname, is_eager=False)
            outcome, traced = self.trace(delivery, incarnation, request)
            self.write(incarnation, [(delivery, outcome)])
            return traced

    def run_bundle(self, request: dict[str, Any], body: str) -> Traced:
        """Messages that came in a bundle."""
        with self.row(request[HEADER_BASE] + request[HEADER_RUNS][0][1]) as row:
            return run(self, row, request, body)


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


def cut_off_in(first_fence: int) -> int:
    """The fence that ran when a Celery message was cut off within this process; 0: none. Answers once."""
    return _current.cut_off.pop(first_fence, 0) if _current is not None else 0


def _execution() -> Execution:
    if _current is None:
        raise RuntimeError("the bridge was not set up in this process")
    return _current
