"""A Celery message of the bridge in the worker's main process: what Celery's pool reports of it becomes outcomes here.

The pool process that ran it cannot write them any more: it died, or was ended. An outcome that it had written before
comes first in the stream, and the second one then has a stale fence and changes nothing.

Which end means what:

- a hard time limit, a process that died: the message that ran is charged with an attempt (``LOST``);
- a cold shutdown, in which Celery ends the running tasks (`BridgeRequest.cancel`): the message that ran comes again,
  and is not charged (``INTERRUPTED``). Celery also calls `cancel` when it lost its connection. Then nothing happens:
  the lease holds, so no other worker gets the message, and its outcome does not need Celery's connection;
- an operator revokes the message (`BridgeRequest.terminate`): it is dead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery.app.task import Context
from celery.exceptions import Ignore, Terminated, TimeLimitExceeded
from celery.platforms import signals
from celery.utils.log import get_logger
from celery.worker.state import task_ready

from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.worker.pool.calls import cut_off_in
from bridge.worker.pool.celery_notices import CeleryNotice
from bridge.worker.pool.delivery import RevokedHere
from bridge.worker.pool.exceptions import stand_in

if TYPE_CHECKING:
    from celery.worker.request import Request as _Base

    from bridge.worker.main.member import Member
else:
    _Base = object

logger = get_logger(__name__)

#: What Celery says of an execution that was cut off half way.
CUT_OFF = (TimeLimitExceeded, WorkerLostError)


class CarriedMessage(NamedTuple):
    """One message of a Celery message."""

    id: str
    task: str
    ticket: str
    payload: Any
    fence: int
    attempt: int
    #: How many messages of its run come before it.
    place: int = 0


class BridgeRequest(_Base):
    """What both kinds of request add to Celery's."""

    member: Member
    _finished = False
    #: Whether what became of this was told, or is about to be.
    _outcomes_reported = False
    #: Whether an operator does not want what runs any more.
    _terminated_by_operator = False
    #: Whether it is a bundle.
    carries_many = False

    @property
    def body(self) -> Any:
        """The message's own text; the parsed form of the base class is a stand-in."""
        return self._message.body

    @property
    def _base_fence(self) -> int:
        return int(self._request_dict[HEADER_BASE])

    @property
    def first_fence(self) -> int:
        """The fence of the first message; names the request among those of this worker."""
        return self._base_fence + int(self._request_dict[HEADER_RUNS][0][1])

    def fences(self) -> set[int]:
        """The fences of all messages that this carries."""
        base = self._base_fence
        runs = self._request_dict[HEADER_RUNS]
        return {base + offset + i for _, offset, count, *_ in runs for i in range(count)}

    def messages(self) -> Iterator[CarriedMessage]:
        """The messages. It parses the body: for what is rare."""
        raise NotImplementedError

    def announce(self) -> None:
        """Tells who watches that it was received."""
        raise NotImplementedError

    def context_of(self, one: CarriedMessage) -> Context:
        """The request of one message, as its task would see it."""
        raise NotImplementedError

    # -- beginning and end -------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """It has not begun, and shall not."""
        if not self._outcomes_reported:
            self._outcomes_reported = True
            self.report([Outcome(one.id, one.fence, Kind.RETURNED) for one in self.messages()])
        self.finish()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self.member.unaccepted.pop(self.first_fence, None)
        return super().on_accepted(pid, time_accepted)

    def finish(self) -> None:
        """The worker does not hold these runs any more."""
        if not self._finished:
            self._finished = True
            first = self.first_fence
            self.member.unaccepted.pop(first, None)
            self.member.requests.pop(first, None)
            self.member.drop(self._request_dict)
            cut_off_in(first)

    def report(self, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process, unless the lease that they belong to is over."""
        self.member.write(self._request_dict[HEADER_INCARNATION], outcomes)

    # -- what the pool could not run to its end ----------------------------------------------------------------------

    def lost(self, kind: Kind, exc: BaseException) -> None:
        """The pool could not run this to its end."""
        if self._outcomes_reported or self._finished:
            return
        self._outcomes_reported = True
        if not (self.member.forks and self.worker_pid):
            cut_off = cut_off_in(self.first_fence)
            running = cut_off.fence if cut_off is not None else 0
            self._notify_celery(kind, exc, running)
            self._write_outcomes(kind, exc, running)
            return
        self._notify_celery(kind, exc, self._running())
        if kind is Kind.FAILED:
            # The pool process has come back from it.
            self._write_outcomes_of_process(kind, exc)
            return
        # Celery reports a time limit, and an operator's revoke, before the process has ended: told now, the next
        # execution could begin beside this one. Not waited for here, where Celery's own thread would stand still.
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
        """The fence of this that its pool process runs, or ran when it ended; 0: none."""
        row = self.member.shared.row_of(self.worker_pid)
        return row.fence if row is not None and row.fence in self.fences() else 0

    def _notify_celery(self, kind: Kind, exc: BaseException, running: int) -> None:
        """Tells Celery's world. On Celery's own thread, and before the outcome is written: a process that is forked
        while another thread stores a result would inherit its locks, and a retry that is told late could follow its
        success.
        """
        for one in self.messages():
            became = self._outcome_kind(kind, one, running)
            if became is Kind.RETURNED:
                continue
            if became is Kind.DEAD:
                # Of one that came alone Celery says so itself.
                if self.carries_many:
                    self._notice_of(one, exc).revoked(terminated=True)
            elif became is Kind.INTERRUPTED or one.attempt < self.member.max_attempts(self._app.tasks[one.task]):
                self._notice_of(one, exc).retried()
            else:
                self._notice_of(one, exc).failed()

    def _write_outcomes(self, kind: Kind, exc: BaseException, running: int) -> None:
        """Says what became of the messages when ``running`` is the fence that ran (0: none)."""
        outcomes = []
        for one in self.messages():
            became = self._outcome_kind(kind, one, running)
            # Those that were settled before have stale fences now, and of a run only what is after the message that ran
            # goes back: the leader reads in order.
            error = "" if became is Kind.RETURNED else f"{type(exc).__name__}: {exc}"
            outcomes.append(Outcome(one.id, one.fence, became, error=error))
        self.report(outcomes)
        self.finish()

    def _outcome_kind(self, kind: Kind, one: CarriedMessage, running: int) -> Kind:
        """What became of one message, when the pool could not run this to its end for the reason ``kind``."""
        raise NotImplementedError

    def _notice_of(self, one: CarriedMessage, exc: BaseException) -> CeleryNotice:
        return CeleryNotice(self._app.tasks[one.task], self.context_of(one), exc, self._eventer)

    @property
    def _waits_for_end(self) -> bool:
        """Whether a thread waits for the end of this."""
        return self._outcomes_reported and not self._finished

    # -- what Celery calls -------------------------------------------------------------------------------------------

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if not self.member.forks and (cut_off := cut_off_in(self.first_fence)) is not None:
            # A greenlet that was killed ends like one that came to its end. One that nobody asked to end was ended by
            # what it ran (`sys.exit` in a task), as threads may be.
            self._outcomes_reported = True
            task_ready(self)
            if self._terminated_by_operator or self._already_revoked or self.member.shared.ends_now:
                why, exc = self._why_ended, Terminated("ended by Celery")
            else:
                # What stands for it can be stored, and raised again in whoever waits for the result.
                why, exc = Kind.FAILED, stand_in(cut_off.exc)
                logger.error("%s[%s] ended its line of execution: %r", self.name, self.id, cut_off.exc)
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
                    # The pool process has written it.
                    self._outcomes_reported = True
                    return self._announce_revoked("revoked", False, None, False)
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
            if self.member.shared.ends_now and isinstance(exc, WorkerLostError):
                kind = Kind.INTERRUPTED
            if not self._outcomes_reported:
                logger.error("the pool could not run %s[%s] to its end: %r", self.name, self.id, exc)
        self.lost(kind, exc)
        return None

    @property
    def _why_ended(self) -> Kind:
        """Why Celery ended what ran here: by an operator's revoke the message shall not come again."""
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
        # Told when it is over, and not at once, as Celery does: see `lost`.
        del emit_retry
        if not self.member.shared.ends_now or not self.member.can_end or not self.time_start:
            return
        pool.terminate_job(self.worker_pid, signals.signum(signal or TERM_SIGNAME))
        task_ready(self)
        if self.member.forks:
            self.lost(Kind.INTERRUPTED, Terminated("the worker was told to end at once"))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        if not terminated or self.member.forks:
            self.lost(Kind.DEAD, Revoked(reason))
        return super()._announce_revoked(reason, terminated, signum, expired)


class Revoked(Exception):
    """An operator does not want the message."""


class TicketRequest(BridgeRequest):
    """A message that travels alone."""

    @property
    def args(self) -> Any:
        return json.loads(self._message.body)[0]

    def messages(self) -> Iterator[CarriedMessage]:
        ticket, _, _, attempt, _ = self._request_dict[HEADER_RUNS][0]
        yield CarriedMessage(self.id, self.name, ticket, self.args[1], self.first_fence, attempt)

    def context_of(self, one: CarriedMessage) -> Context:
        del one
        return Context({**self._request_dict, "args": self.args, "kwargs": {}})

    def announce(self) -> None:
        self.send_event(
            "task-received",
            uuid=self.id,
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=self._request_dict.get("retries", 0),
            eta=None,
            expires=None,
        )

    def send_event(self, kind: str, **fields: Any) -> None:
        fields.setdefault("uuid", self.id)
        uuid = fields.pop("uuid")
        if self._eventer and self._eventer.enabled and self.task.send_events:
            self._eventer.send(kind, uuid=uuid, **fields)

    def _outcome_kind(self, kind: Kind, one: CarriedMessage, running: int) -> Kind:
        if kind in (Kind.LOST, Kind.INTERRUPTED) and self.member.forks and running != one.fence:
            # The process ended before it had begun this, or after it had written what became of it.
            return Kind.RETURNED
        return kind
