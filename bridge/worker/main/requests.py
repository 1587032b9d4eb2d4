"""A Celery message of the bridge in the worker's main process: turns failures that Celery's pool reports into outcomes.

Usually the pool process writes the outcomes. When it died or was ended, it cannot, and the main process writes them. If
the pool process had written an outcome before, that one comes first in the stream. The second one then has a stale
fence, and changes nothing.

What each end means:

- a hard time limit, or a pool process that died: the message that ran is charged with an attempt (``LOST``);
- a worker that stops, and a pool process that ended by SIGTERM: somebody sent the signal to all processes of the
  worker. The message that ran comes again, and is not charged (``INTERRUPTED``);
- a cold shutdown, in which Celery ends the running tasks (`BridgeRequest.cancel`): the same. Celery also calls `cancel`
  when it lost its connection. Then nothing happens: the lease holds, so no other worker gets the message, and its
  outcome does not need Celery's connection;
- an operator revokes the message (`BridgeRequest.terminate`): it is dead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.common import TERM_SIGNAME, human_status
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery import signals
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Terminated, TimeLimitExceeded
from celery.platforms import signals as os_signals
from celery.utils.log import get_logger
from celery.worker.state import task_ready

from bridge.app.results import result_in
from bridge.protocol.headers import first_fence, heads_of, own_rules
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.text import error_text, safe_repr
from bridge.worker.main.bundle_events import send_gathered
from bridge.worker.pool.calls import cut_off_in
from bridge.worker.pool.celery_reports import CeleryReport
from bridge.worker.pool.delivery import EXPIRED, SHOWN_CHARS, RevokedHere
from bridge.worker.pool.exceptions import stand_in

if TYPE_CHECKING:
    from celery.worker.request import Request as _Base

    from bridge.worker.main.member import Member
else:
    _Base = object

logger = get_logger(__name__)

#: The errors by which Celery reports an execution that was cut off half way.
CUT_OFF = (TimeLimitExceeded, WorkerLostError)
#: What the error may say of a pool process that ended by SIGTERM. It reports its end, and the main process kills it. If
#: that does not come within a second, it ends by itself, with the second status.
BY_SIGTERM = (f"{human_status(-SIGTERM)} ", f"{human_status(SIGTERM)} ")


class CarriedMessage(NamedTuple):
    """One message within a Celery message."""

    id: str
    task: str
    ticket: str
    payload: Any
    fence: int
    attempt: int
    #: How many messages of its run precede it.
    place: int = 0


class BridgeRequest(_Base):
    """Mixed into Celery's request class: the base of `TicketRequest` and `BundleRequest`."""

    member: Member
    _finished = False
    #: Whether the outcomes of this request are written here, or will be.
    _outcomes_reported = False
    #: Whether an operator terminated the message that runs.
    _terminated_by_operator = False
    #: Whether it is a bundle.
    carries_many = False

    @property
    def body(self) -> Any:
        """The raw text of the Celery message. The base class only has a stand-in for its parsed form."""
        return self._message.body

    @property
    def _base_fence(self) -> int:
        return int(self._request_dict[HEADER_BASE])

    @property
    def first_fence(self) -> int:
        """The fence of the first message. It identifies the request within this worker."""
        return first_fence(self._request_dict)

    def fences(self) -> set[int]:
        """The fences of all messages of this request."""
        base = self._base_fence
        return {base + run.offset + i for run in heads_of(self._request_dict) for i in range(run.length)}

    def messages(self) -> Iterator[CarriedMessage]:
        """The messages of this request. It parses the body, so it is for rare cases only."""
        raise NotImplementedError

    def signal_received(self, consumer: Any) -> None:
        """Sends Celery's signal ``task_received``. ``consumer``: Celery's."""
        signals.task_received.send(sender=consumer, request=self)

    def announce(self) -> None:
        """Sends the events for received messages."""
        raise NotImplementedError

    def context_of(self, one: CarriedMessage) -> Context:
        """The request context of one message, as its task would see it."""
        raise NotImplementedError

    # -- start and end -----------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Gives the messages back: none has started, and none will."""
        if not self._outcomes_reported:
            self._outcomes_reported = True
            self.report([Outcome(one.id, one.fence, Kind.RETURNED) for one in self.messages()])
        self.finish()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self.member.open.accepted(self.first_fence)
        return super().on_accepted(pid, time_accepted)

    def finish(self) -> None:
        """Ends the request: the worker does not hold its runs any more."""
        if not self._finished:
            self._finished = True
            first = self.first_fence
            self.member.open.remove(first)
            self.member.drop(self._request_dict)
            cut_off_in(self.member.queue, first)

    def report(self, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process, unless their lease is over."""
        self.member.write(self._request_dict[HEADER_INCARNATION], outcomes)

    # -- messages that the pool could not run to their end -------------------------------------------------------------

    def cut_off(self, pid: int) -> None:
        """Its pool process ``pid`` has ended, and Celery does not know that it had this request."""
        if self._outcomes_reported or self._finished:
            return
        self.worker_pid = pid
        try:
            raise WorkerLostError(f"Worker exited prematurely: pid {pid}, after a lost connection.")
        except WorkerLostError:
            self.on_failure(ExceptionInfo())

    def lost(self, kind: Kind, exc: BaseException) -> None:
        """The pool could not run this request to its end. Reports that to Celery, and writes the outcomes."""
        if self._outcomes_reported or self._finished:
            return
        self._outcomes_reported = True
        if not (self.member.forks and self.worker_pid):
            cut_off = cut_off_in(self.member.queue, self.first_fence)
            running = cut_off.fence if cut_off is not None else 0
            self._notify_celery(kind, exc, running)
            self._write_outcomes(kind, exc, running)
            return
        self._notify_celery(kind, exc, self._running())
        if kind is Kind.FAILED:
            # The pool process lives, and has left the message.
            self._write_outcomes_of_process(kind, exc)
            return
        # Celery reports a time limit, and an operator's revoke, before the process has ended. If the outcome were
        # written now, the next execution could overlap this one. A thread waits for the end, since Celery's own thread
        # must not stand still.
        thread = threading.Thread(
            target=self._write_outcomes_when_ended, args=(kind, exc), name="bridge-lost", daemon=True
        )
        self.member.waiting_threads.add(thread)
        thread.start()

    def _write_outcomes_when_ended(self, kind: Kind, exc: BaseException) -> None:
        try:
            incarnation = self._request_dict[HEADER_INCARNATION]
            self.member.wait_for_end(self.worker_pid, self.fences(), incarnation, killed=kind is Kind.LOST)
            self._write_outcomes_of_process(kind, exc)
        finally:
            self.member.waiting_threads.discard(threading.current_thread())

    def _write_outcomes_of_process(self, kind: Kind, exc: BaseException) -> None:
        self._write_outcomes(kind, exc, self._running())
        self.member.shared.forget(self.worker_pid)

    def _running(self) -> int:
        """The fence of this request that its pool process runs, or ran when it ended; 0: none."""
        row = self.member.shared.row_of(self.worker_pid)
        return row.fence if row is not None and row.fence in self.fences() else 0

    def _notify_celery(self, kind: Kind, exc: BaseException, running: int) -> None:
        """Reports the end to Celery: results, handlers, signals, events.

        Must be called on Celery's own thread: if another thread stored a result during a fork, the new process would
        inherit its locks. And before the outcome is written: else the report of a retry could follow the success.
        """
        for one in self.messages():
            became = self._outcome_kind(kind, one, running)
            if became is Kind.RETURNED:
                continue
            if became is Kind.DEAD:
                # For a message that travelled alone Celery reports this itself.
                if self.carries_many:
                    self._report_of(one, exc).revoked(terminated=one.fence == running)
            elif became is Kind.INTERRUPTED or one.attempt < self._max_attempts(one):
                self._report_of(one, exc).retried()
            else:
                self._report_of(one, exc).failed()

    def _max_attempts(self, one: CarriedMessage) -> int:
        own = own_rules(self._request_dict)
        if own is not None and own.max_attempts is not None:
            return own.max_attempts
        return self.member.max_attempts(self._app.tasks[one.task])

    def _write_outcomes(self, kind: Kind, exc: BaseException, running: int) -> None:
        """Writes the outcomes of the messages, and ends the request. ``running``: the fence that ran; 0: none."""
        outcomes = []
        for one in self.messages():
            became = self._outcome_kind(kind, one, running)
            # A message that was settled before has a stale fence now, so its outcome changes nothing. The leader reads
            # in order: of a run, only the messages after the one that ran go back.
            error = "" if became is Kind.RETURNED else error_text(exc)
            outcomes.append(Outcome(one.id, one.fence, became, error=error))
        self.report(outcomes)
        self.finish()

    def _outcome_kind(self, kind: Kind, one: CarriedMessage, running: int) -> Kind:
        """The outcome of one message, when the pool could not run this request to its end for the reason ``kind``."""
        raise NotImplementedError

    def _report_of(self, one: CarriedMessage, exc: BaseException) -> CeleryReport:
        send_gathered(self._eventer)
        return CeleryReport(self._app.tasks[one.task], self.context_of(one), exc, self._eventer, self.member.lane)

    @property
    def _waits_for_end(self) -> bool:
        """Whether a thread waits for the pool process, and will end the request."""
        return self._outcomes_reported and not self._finished

    # -- called by Celery ----------------------------------------------------------------------------------------------

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if not self.member.forks and (cut_off := cut_off_in(self.member.queue, self.first_fence)) is not None:
            # For Celery, a greenlet that was killed looks like one that succeeded. If neither an operator nor a
            # shutdown ended it, its task did (`sys.exit` in a task). The task of a thread can do that too.
            self._outcomes_reported = True
            task_ready(self)
            if self._terminated_by_operator or self._already_revoked or self.member.shared.ends_now:
                why, exc = self._why_ended, Terminated("ended by Celery")
            else:
                # The stand-in can be stored as a result, and raised again where a caller waits for the result.
                why, exc = Kind.FAILED, stand_in(cut_off.exc)
                logger.error("%s[%s] ended its thread or greenlet: %r", self.name, self.id, cut_off.exc)
            self._notify_celery(why, exc, cut_off.fence)
            self._write_outcomes(why, exc, cut_off.fence)
            return None
        try:
            return super().on_success(failed__retval__runtime, **kwargs)
        finally:
            if not self._waits_for_end:
                self.finish()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if return_ok or self._finished or isinstance(exc, Ignore):
            try:
                if isinstance(exc, RevokedHere):
                    # The pool process has written the outcome.
                    self._outcomes_reported = True
                    return self._announce_revoked(exc.why, False, None, exc.why == EXPIRED)
                if isinstance(exc, Reject):
                    # The pool process has stored the result. From 5.7 on, Celery would store one more here: `Reject`
                    # itself, and under the id alone, which may be the result of another lane.
                    task_ready(self)
                    if not exc.requeue:
                        shown = safe_repr(exc, SHOWN_CHARS)
                        self.send_event("task-failed", exception=shown, traceback=str(exc_info.traceback))
                    return None
                return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            finally:
                if not self._waits_for_end:
                    self.finish()
        task_ready(self)
        if isinstance(exc, Terminated):
            kind = self._why_ended
            if kind is Kind.DEAD and not self._already_revoked:
                self._announce_revoked("terminated", True, str(exc), False)
        else:
            kind = Kind.LOST if isinstance(exc, CUT_OFF) else Kind.FAILED
            if isinstance(exc, WorkerLostError) and self._is_told_to_end(exc):
                kind = Kind.INTERRUPTED
            if not self._outcomes_reported:
                logger.error("the pool could not run %s[%s] to its end: %r", self.name, self.id, exc)
        self.lost(kind, exc)
        return None

    def _is_told_to_end(self, exc: WorkerLostError) -> bool:
        """Whether the pool process was ended together with its worker."""
        return self.member.shared.ends_now or (
            self.member.is_stopping and any(status in str(exc) for status in BY_SIGTERM)
        )

    @property
    def _why_ended(self) -> Kind:
        """The outcome of the message that Celery ended. After an operator's revoke it must not come again."""
        return Kind.DEAD if self._terminated_by_operator or self._already_revoked else Kind.INTERRUPTED

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if soft:
            return super().on_timeout(soft, timeout)
        task_ready(self)
        if not self._outcomes_reported:
            logger.error("hard time limit (%g s) exceeded for %s[%s]", timeout, self.name, self.id)
        self.lost(Kind.LOST, TimeLimitExceeded(timeout))
        return None

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        self._terminated_by_operator = True
        return super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> Any:
        # Celery reports a retry at once. Here it is reported when the process has ended: see `lost`.
        del emit_retry
        if not self.member.shared.ends_now or not self.member.can_end or not self.time_start:
            return
        pool.terminate_job(self.worker_pid, os_signals.signum(signal or TERM_SIGNAME))
        task_ready(self)
        if self.member.forks:
            self.lost(Kind.INTERRUPTED, Terminated("the worker was told to end at once"))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        if not terminated or self.member.forks:
            self.lost(Kind.DEAD, Revoked(reason))
        with result_in(self.member.lane, self.id):
            return super()._announce_revoked(reason, terminated, signum, expired)


class Revoked(Exception):
    """An operator revoked the message."""
