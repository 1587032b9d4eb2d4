"""Runs messages in a pool process: a message that travels alone, and by `Execution.trace` each message of a bundle.

The steps for one message are the same on both paths (`bridge.worker.pool.bundles` is the other one):

1. Note its fence in shared memory. If this process dies now, the watcher or the main process knows which message to
   charge.
2. Check that the lease of its incarnation holds, and that the message was not recalled. A message whose lease is over
   is dropped. A recalled one is given back.
3. Run the task by Celery's own tracer, or in a bundle by the light one (`bridge.worker.pool.light_tracer`). Signals and
   result backends may take long before the task's body starts, so the lease is checked again there
   (`bridge.app.handling.handled`).
4. Write the outcome, with the effects in the same step. Only then the ticket's next message may start.

The lease is checked in memory, never in Redis. So the only Redis command between two messages is one write, and in a
bundle one write per round.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.common import TERM_SIGNAL
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import states
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger
from kombu.exceptions import EncodeError

from bridge.app.context import TicketContext
from bridge.app.effects import Effects
from bridge.app.handling import has_expired, retry_delay_ms
from bridge.app.refusing import Rejected
from bridge.app.results import result_in
from bridge.app.state_home import versions_of
from bridge.link.outage import has_no_file_descriptor
from bridge.protocol.headers import OwnRules, first_head, lost_of, own_rules
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION
from bridge.protocol.outcome_limits import ERROR_CHARS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import PayloadError, StaleFence
from bridge.routing.history import WHY_CHARS
from bridge.routing.message_options import EXPIRED as EXPIRED_ERROR
from bridge.routing.return_codes import ReturnCode
from bridge.routing.text import error_text, one_line, safe_repr, safe_str
from bridge.worker.pool.celery_reports import CeleryReport
from bridge.worker.pool.delivery import (
    CUT_OFF,
    EXPIRED,
    REVOKED_ERROR,
    Delivery,
    Traced,
    cut_off_outcome,
    failed,
    failure_of,
    ignored,
    revoked,
    unwrapped,
)
from bridge.worker.pool.results import store
from bridge.worker.pool.round_write import RoundWrite
from bridge.worker.pool.states import LeaseOver, States

if TYPE_CHECKING:
    from bridge.app.refusing import Drop
    from bridge.consumer.writer import OutcomeWriter
    from bridge.settings.lane import LaneSettings
    from bridge.worker.guard.shared_page import SharedPage
    from bridge.worker.pool.light_tracer import LightTracer

logger = get_logger(__name__)

#: Outcomes that are an attempt: after the last one the message is dead.
CHARGED = frozenset({Kind.FAILED, Kind.FAILED_OWING})

#: The exit code of a pool process that Celery asked to end while it runs a message.
ASKED_TO_END = TERM_SIGNAL - 256


_Calls = tuple[Callable[[TicketContext], None], Callable[[], bool], Callable[[], str]]


class CutOff(NamedTuple):
    """What ended a Celery message half way, and the fence that it was running; 0: none."""

    fence: int
    exc: BaseException


class Execution:
    """What a pool process needs to run messages. It is made before the pool forks."""

    def __init__(self, app: Any, lane: LaneSettings, shared: SharedPage, writer: OutcomeWriter, hostname: str) -> None:
        self.app = app
        self.lane = lane
        self.shared = shared
        self.writer = writer
        self.hostname = hostname
        self.states = States(lane, versions_of(app), writer)
        #: (incarnation, what `_calls_of` returned for it).
        self._calls: tuple[str, _Calls] | None = None
        #: First fence of a Celery message -> what cut it off. For pools within the main process.
        self.cut_off: dict[int, CutOff] = {}
        # The keys of all partitions, and those beside the stream itself.
        Effects.own |= {lane.stream.encode(), app.bridge.settings.lane.stream.encode()}

    @contextmanager
    def row(self, first_fence: int) -> Iterator[int]:
        """A row of the shared page, while one Celery message runs. A process without a free descriptor ends before."""
        if not self.shared.in_main:
            try:
                os.close(os.dup(self.shared.fd))
            except OSError as exc:
                # A task has taken them all. No message has begun, so none is charged, and a new process runs them.
                logger.critical("no file descriptor is left in this pool process, which ends: %s", exc)
                os._exit(os.EX_OSERR)
        row = self.shared.take_row()
        try:
            yield row
        except BaseException as exc:
            if isinstance(exc, SystemExit) and exc.code == ASKED_TO_END:
                self.shared.asked_to_end(row)
            # The message was cut off, and the main process needs the fence that ran. A pool child leaves it in its row.
            # In the main process other threads or greenlets need the row, so the fence is kept in `cut_off`.
            if self.shared.in_main:
                self.cut_off[first_fence] = CutOff(self.shared.fence_in(row), exc)
                self.shared.note_running(row, 0)
            raise
        else:
            self.shared.note_running(row, 0)
        finally:
            self.shared.give_row(row)

    # -- one message ---------------------------------------------------------------------------------------------

    def trace(
        self,
        delivery: Delivery,
        incarnation: str,
        request: dict[str, Any],
        light: LightTracer | None = None,
    ) -> tuple[Outcome, Traced]:
        """Runs one message. Returns its outcome, and the result for Celery.

        ``request``: the fields of its request. With ``light``, those that all messages of the bundle share; then
        Celery's tracer runs the message only where ``light`` does not.

        The outcome is not written yet, unless the task has a result that is stored: see `_write_early`.
        """
        task = self.app.tasks.get(delivery.task)
        if task is None:
            return delivery.outcome(Kind.DEAD, error=f"unknown task {delivery.task}"), ignored("unknown task")
        if task.expires is not None and has_expired(task.expires, delivery.message_id, self.shared.server_ms):
            return self._expired(task, delivery, f"Revoked: expired ({task.expires})")
        own = delivery.own
        if own is not None and own.expires_ms is not None and self.shared.server_ms >= own.expires_ms:
            return self._expired(task, delivery, EXPIRED_ERROR)
        if task.__trace__ is None:
            # Pools that do not fork build tracers late.
            task.__trace__ = build_tracer(task.name, task, app=self.app, hostname=self.hostname)
        max_attempts = self._max_attempts(task, own)
        write_success, lease_holds, home = self._calls_of(incarnation)
        context = TicketContext(
            delivery.ticket,
            delivery.message_id,
            delivery.attempt,
            delivery.fence,
            max_attempts,
            write_success,
            lease_holds,
            delivery.lost,
            self.lane,
            home,
        )
        delivery.context = context
        if task.bridge_state:
            try:
                self._give_state(delivery, context, incarnation)
            except LeaseOver:
                return delivery.outcome(Kind.RETURNED), ignored("the lease ended before the state was read")
        if own is not None and own.timeout_ms is not None:
            context.deadline = time.monotonic() + own.timeout_ms / 1000
        delivery.started_us = context.started_us = time.time_ns() // 1000
        started = time.perf_counter()
        traced: Any
        try:
            traced = light.run(task, delivery, context) if light is not None else None
            if traced is None:
                wanted = dict(request) if light is None else delivery.request(request, task)
                wanted["bridge_ticket"] = context
                traced = task.__trace__(delivery.message_id, delivery.args, delivery.kwargs, wanted)
        except Exception as exc:
            traced = _failed_in_tracer(exc)
        if context.lease_was_over:
            delivery.started_us = 0
            return delivery.outcome(Kind.RETURNED), ignored("the lease ended before the task began")
        delivery.service_ms = (time.perf_counter() - started) * 1000
        if context.taken_over:
            why = one_line(safe_str(unwrapped(traced[0])), WHY_CHARS)
            logger.warning("ticket %r: message %s comes again: %s", delivery.ticket, delivery.message_id, why)
            return delivery.outcome(Kind.INTERRUPTED, why), ignored(why)
        return self._end(delivery, context, traced)

    def _expired(self, task: Any, delivery: Delivery, error: str) -> tuple[Outcome, Traced]:
        # The main process stores it, too, as Celery does. Here it is stored before the outcome is written.
        if not task.ignore_result:
            with result_in(self.lane, delivery.message_id):
                task.backend.mark_as_revoked(delivery.message_id, "expired")
        return delivery.outcome(Kind.DEAD, error), revoked(EXPIRED)

    def _calls_of(self, incarnation: str) -> _Calls:
        """How a message of ``incarnation`` writes its success, and asks for its lease and its ticket's home. The same
        for all messages.
        """
        known = self._calls
        if known is None or known[0] != incarnation:
            calls = (
                partial(self._write_early, incarnation),
                partial(self.shared.holds, incarnation),
                partial(self.states.home, incarnation),
            )
            # Set in one step, for pools with threads.
            known = self._calls = (incarnation, calls)
        return known[1]

    def _end(self, delivery: Delivery, context: TicketContext, traced: Any) -> tuple[Outcome, Traced]:
        """The outcome of a message that ran, and the result for Celery. ``traced``: what the tracer returned."""
        result, info, runtime, shown = traced
        if info is None:
            if context.dropped is not None and not context.written:
                return self._dropped(delivery, context.dropped), (0, shown, runtime)
            return delivery.outcome(Kind.DONE), (0, shown, runtime)
        if result.internal and has_no_file_descriptor(unwrapped(result)) and not self.shared.in_main:
            # A task has left this process without a file descriptor, and Celery could not store the result. In a new
            # process no other message suffers from that.
            logger.critical("no result can be stored in this pool process, which ends: %s", unwrapped(result))
            os._exit(os.EX_OSERR)
        if context.written:
            # Success and effects are written. A later error, as in storing the result, changes nothing.
            return delivery.outcome(Kind.DONE), (1, result, runtime)
        decided = context.dropped or context.decided
        if decided is None and context.entered and isinstance(unwrapped(result), EncodeError):
            # The body succeeded. Its result can never be stored, and Celery has stored a failure, as of a call.
            return delivery.outcome(Kind.DONE), (1, result, runtime)
        # Celery's tracer returns its record of the end, or the error that went through it.
        if decided is not None and getattr(info, "retval", info) is not decided:
            late = unwrapped(result)
            error = one_line(error_text(late), WHY_CHARS)
            text = "ticket %r: message %s: an error behind the task does not change how it ended: %s"
            logger.error(text, delivery.ticket, delivery.message_id, error)
            if context.dropped is not None:
                return self._dropped(delivery, context.dropped), (0, repr(None), runtime or 0.0)
            result = ExceptionInfo((type(decided), decided, decided.__traceback__))
        outcome = self._failure(delivery, result)
        if getattr(info, "state", None) != states.FAILURE:
            self._store_failure(delivery, outcome, result)
        return outcome, (1, result, runtime)

    def _store_failure(self, delivery: Delivery, outcome: Outcome, einfo: ExceptionInfo) -> None:
        """Stores the result of a message that has ended, and that Celery's tracer does not count as a failure.

        Else a caller would wait for it for ever. The tracer stores nothing for `Reject`, or when an error struck in the
        tracer itself.
        """
        task = self.app.tasks[delivery.task]
        is_last = delivery.attempt >= self._max_attempts(task, delivery.own)
        if outcome.kind is not Kind.DEAD and not (outcome.kind in CHARGED and is_last):
            return
        if task.ignore_result and not task.store_errors_even_if_ignored:
            return
        exc = unwrapped(einfo)
        if isinstance(exc, Reject):
            exc = Rejected(safe_str(exc.reason))
        try:
            with result_in(self.lane, delivery.message_id):
                task.backend.store_result(delivery.message_id, exc, states.FAILURE, traceback=str(einfo.traceback))
        except Exception as late:
            # The outcome counts, with and without a result.
            error = one_line(error_text(late), WHY_CHARS)
            logger.warning("ticket %r: the result of %s is not stored: %s", delivery.ticket, delivery.message_id, error)

    def _max_attempts(self, task: Any, own: OwnRules | None) -> int:
        if own is not None and own.max_attempts is not None:
            return own.max_attempts
        return int(task.bridge_max_attempts or self.lane.max_attempts)

    def _dropped(self, delivery: Delivery, drop: Drop) -> Outcome:
        reason = one_line(drop.reason, WHY_CHARS)
        logger.info("ticket %r: message %s was dropped: %s", delivery.ticket, delivery.message_id, reason)
        return delivery.outcome(Kind.DROPPED, reason)

    def _give_state(self, delivery: Delivery, context: TicketContext, incarnation: str) -> None:
        stored = delivery.state
        if stored is None:
            stored = self.states.read(incarnation, [delivery.ticket])[delivery.ticket]
        context.give_state(self.states.key(incarnation, delivery.ticket), stored)

    def _failure(self, delivery: Delivery, einfo: ExceptionInfo) -> Outcome:
        exc = unwrapped(einfo)
        nack = delivery.context.nacked if delivery.context is not None else None
        if nack is not None:
            # Not by the cause of the `Retry`: Celery replaces one that cannot be pickled.
            delay_ms = None if nack.delay is None else int(nack.delay * 1000)
            return delivery.outcome(Kind.NACKED, nack.reason, delay_ms=delay_ms)
        if isinstance(exc, Retry):
            cause = exc.exc
            error = error_text(cause) if cause is not None else (exc.excs or safe_str(exc))
            return delivery.outcome(Kind.FAILED, error, str(einfo.traceback), retry_delay_ms(exc))
        if isinstance(exc, Ignore):
            return delivery.outcome(Kind.DONE)
        if isinstance(exc, Reject):
            kind = Kind.FAILED if exc.requeue else Kind.DEAD
            return delivery.outcome(kind, f"Reject: {safe_repr(exc.reason, ERROR_CHARS)}", str(einfo.traceback))
        gave_up = delivery.context is not None and delivery.context.gave_up
        kind = Kind.DEAD if gave_up else Kind.FAILED
        return delivery.outcome(kind, error_text(exc), str(einfo.traceback))

    def _write_early(self, incarnation: str, context: TicketContext) -> None:
        # Celery stores the result after this. That time is not part of the service time.
        service_ms = max(0, time.time_ns() // 1000 - context.started_us) / 1000
        outcome = Outcome(context.message_id, context.fence, Kind.DONE, service_ms, context.started_us)
        effects = context.seal()
        # The outcome carries the incarnation that the message was dispatched to. In a pool that cannot be killed, it
        # may be over by now. Before the leader takes its tickets back, it reads the outcomes that carry it.
        [(code, problem)] = self.writer.apply(incarnation, [(context.id, outcome, effects)])
        if code is ReturnCode.STALE:
            context.taken_over = True
            raise StaleFence(f"ticket {context.id} was taken over while fence {context.fence} ran; nothing was applied")
        if code is ReturnCode.ERR:
            raise PayloadError(f"the effects cannot be applied: {problem}")
        context.written = True

    def begin_write(self, incarnation: str, done: list[tuple[Delivery, Outcome]]) -> RoundWrite:
        """Begins to write the outcomes ``done``, at most one of each ticket."""
        refused: dict[int, Traced] = {}
        # Results first: a caller must not wait for ever because this process died between the two.
        unstored = [delivery.unstored for delivery, _ in done if delivery.unstored is not None]
        if unstored and not store(unstored):
            done = [self._stored_by_celery(incarnation, delivery, outcome, refused) for delivery, outcome in done]
        return RoundWrite(self.writer, incarnation, done, refused)

    def write(self, incarnation: str, done: list[tuple[Delivery, Outcome]]) -> dict[int, Traced]:
        """Writes the outcomes ``done``, and waits for the replies: see `RoundWrite.end`."""
        return self.begin_write(incarnation, done).end()

    def _stored_by_celery(
        self, incarnation: str, delivery: Delivery, outcome: Outcome, refused: dict[int, Traced]
    ) -> tuple[Delivery, Outcome]:
        """Lets Celery's tracer store a result that could not be stored with the others. That may fail the message."""
        unstored, delivery.unstored = delivery.unstored, None
        context = delivery.context
        if unstored is None or context is None or not self.shared.holds(incarnation):
            # After the lease the outcome is void, and another worker stores the result.
            return delivery, outcome
        try:
            traced = unstored.trace()
        except Exception as exc:
            traced = _failed_in_tracer(exc)
        outcome, shown = self._end(delivery, context, traced)
        if shown[0]:
            refused[delivery.fence] = shown
        return delivery, outcome

    def report_cut_off(self, delivery: Delivery, request: dict[str, Any], *, asked: bool) -> None:
        """Reports an attempt whose pool process ended before Celery knew that it had accepted the message.

        The main process knows nothing of that attempt. This is called before the outcome is written, so that this
        report comes before any report of the next attempt.
        """
        task = self.app.tasks.get(delivery.task)
        if task is None:
            return
        report = CeleryReport(task, Context(request), WorkerLostError(CUT_OFF), None, self.lane)
        if asked or delivery.attempt < self._max_attempts(task, delivery.own):
            report.retried()
        else:
            report.failed()

    # -- alone -----------------------------------------------------------------------------------------------------

    def run_alone(self, request: dict[str, Any], task: str, body: str) -> Traced:
        """Runs a message that travelled as a Celery message of its own, and writes its outcome."""
        incarnation = request[HEADER_INCARNATION]
        run = first_head(request)
        fence = request[HEADER_BASE] + run.offset
        message_id = request["id"]
        try:
            args, kwargs, embed = json.loads(body)
        except (ValueError, TypeError, RecursionError) as exc:
            unread = Outcome(message_id, fence, failure_of(request), error=f"the payload cannot be read: {exc!r}")
            self.writer.write(incarnation, [unread])
            return failed(ValueError(unread.error))
        delivery = Delivery(
            run.ticket, message_id, fence, run.attempt, task, args, kwargs, lost_of(request), own_rules(request)
        )
        with self.row(fence) as row:
            # The fence is noted before the lease and the recall are checked: see `bridge.worker.pool.bundles`.
            self.shared.note_running(row, fence)
            if not self.shared.holds(incarnation):
                return ignored("the lease that this was dispatched under is over")
            if fence <= self.shared.recalled_to:
                self.shared.note_running(row, 0)
                self.writer.write(incarnation, [delivery.outcome(Kind.RETURNED)])
                return ignored("the message was recalled, and is given back")
            cut_off, asked = self.shared.cut_off(fence, fence)
            if cut_off:
                self.shared.note_running(row, 0)
                self.report_cut_off(delivery, {**request, "args": args, "kwargs": kwargs, "headers": {}}, asked=asked)
                self.writer.write(incarnation, [delivery.outcome(*cut_off_outcome(asked))])
                return ignored(CUT_OFF)
            if self.shared.is_revoked(message_id):
                self.shared.note_running(row, 0)
                self.writer.write(incarnation, [delivery.outcome(Kind.DEAD, error=REVOKED_ERROR)])
                return revoked()
            request.update(embed, args=args, kwargs=kwargs, headers={}, hostname=self.hostname, is_eager=False)
            outcome, traced = self.trace(delivery, incarnation, request)
            return self.write(incarnation, [(delivery, outcome)]).get(fence, traced)


def _failed_in_tracer(exc: Exception) -> tuple[Any, Any, Any, Any]:
    """As a tracer's return, for an error that came from Celery's tracer: a result that cannot be stored, or a time
    limit that struck there. Only this message fails, and not the others of its bundle.
    """
    _, result, runtime = failed(exc)
    return result, exc, runtime, None
