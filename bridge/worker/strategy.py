"""How the worker's main process takes ticket messages and bundles: a Celery strategy and a Celery request.

An ordinary message of the same task (``apply_async`` without the bridge) goes to Celery's default strategy untouched.

What Celery's pool reports in the main process (hard time limit, a child that died, a revoked task) becomes an outcome
here: the child cannot write it any more. An outcome that the child had written before it died comes first in the
stream, and the second one then has a stale fence and changes nothing.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery import signals
from celery.exceptions import Ignore, NotRegistered, Terminated, TimeLimitExceeded
from celery.utils.functional import noop
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker.request import create_request_cls
from celery.worker.state import task_reserved
from celery.worker.strategy import default as default_strategy

from bridge.envelope import SHOWN
from bridge.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS, HEADER_WORD
from bridge.outcomes import Kind, Outcome
from bridge.worker.execute import cut_off_in, run_bundle, run_ticket

if TYPE_CHECKING:
    from bridge.worker.member import Member

logger = get_logger(__name__)

#: What Celery says of an execution that was cut off half way.
CUT_OFF = (TimeLimitExceeded, WorkerLostError)

#: The member (the bridge's part of this worker process), set at start.
_member: Member | None = None


def set_member(member: Member) -> None:
    """Makes ``member`` the one whose messages this process takes."""
    global _member
    _member = member


def strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """Celery's hook: the handler for messages of ``task``."""
    ordinary = default_strategy(task, app, consumer, **kwargs)
    if _member is None:
        return ordinary
    member = _member
    eventer = consumer.event_dispatcher
    bundle = task.name == BUNDLE_TASK
    base = create_request_cls(
        symbol_by_name(task.Request),
        task,
        consumer.pool,
        consumer.hostname,
        eventer,
        app=app,
        trace=run_bundle if bundle else run_ticket,
    )
    request_cls: Any = type(
        "BundleRequest" if bundle else "TicketRequest", (_BundlePart if bundle else _TicketPart, base), {}
    )
    connection_errors = consumer.connection_errors
    bucket_of = consumer.task_buckets.__getitem__
    rate_limits = not consumer.disable_rate_limits

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **extra: Any) -> Any:
        headers = message.headers
        if HEADER_BASE not in headers:
            return ordinary(message, body, ack, reject, callbacks, **extra)
        if HEADER_WORD in headers:
            member.hear(headers)
            return None
        if not member.take(headers, message.body):
            return None
        if member.is_going:
            # Kombu's last blocking read had this already. The pool closes, and may neither take it nor say so.
            member.decline(headers, message.body)
            return None
        request = request_cls(
            message,
            # The queue is consumed without acknowledgements: kombu would still make a round trip for each.
            on_ack=noop,
            on_reject=noop,
            app=app,
            hostname=consumer.hostname,
            eventer=eventer,
            task=task,
            connection_errors=connection_errors,
            # The payload is not parsed here: the pool process does that, once.
            body=((), {}, {}),
            headers=headers,
            decoded=True,
        )
        request.member = member
        member.unaccepted[headers[HEADER_BASE] + headers[HEADER_RUNS][0][1]] = request
        if request.revoked():
            return None
        signals.task_received.send(sender=consumer, request=request)
        request.announce()
        bucket = bucket_of(task.name) if rate_limits else None
        if bucket:
            return consumer._limit_task(request, bucket, 1)
        task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        return consumer.on_task_request(request)

    return handle


if TYPE_CHECKING:
    from celery.worker.request import Request as _Base
else:
    _Base = object


class _Part(_Base):
    """What both kinds of request add to Celery's."""

    member: Member
    _finished = False
    #: Whether what became of this was told, or is about to be.
    _told = False

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

    def give_back(self) -> None:
        """It has not begun, and shall not."""
        if not self._told:
            self._told = True
            self.report(self.outcomes(Kind.RETURNED, "", 0))
        self.finish()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self.member.unaccepted.pop(self.first_fence, None)
        return super().on_accepted(pid, time_accepted)

    def finish(self) -> None:
        """The worker does not hold these runs any more."""
        if not self._finished:
            self._finished = True
            self.member.unaccepted.pop(self.first_fence, None)
            self.member.drop(self._request_dict)
            cut_off_in(self.first_fence)

    def report(self, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process, unless the lease that they belong to is over."""
        self.member.write(self._request_dict[HEADER_INCARNATION], outcomes)

    def outcomes(self, kind: Kind, error: str, running: int) -> list[Outcome]:
        """What became of the messages, when the pool could not run this to its end, and ``running`` is the fence that
        ran (0: none).
        """
        raise NotImplementedError

    def lost(self, kind: Kind, error: str) -> None:
        """The pool could not run this to its end."""
        if self._told or self._finished:
            return
        self._told = True
        if not (self.member.forks and self.worker_pid):
            self.report(self.outcomes(kind, error, cut_off_in(self.first_fence)))
            self.finish()
            return
        if kind is Kind.FAILED:
            # The pool process has come back from it.
            self._settle(kind, error)
            return
        # Celery reports a time limit, and an operator's revoke, before the process has ended: told now, the next
        # execution could begin beside this one. Not waited for here, where Celery's own thread would stand still.
        threading.Thread(target=self._settle_when_over, args=(kind, error), name="bridge-lost", daemon=True).start()

    def _settle_when_over(self, kind: Kind, error: str) -> None:
        incarnation = self._request_dict[HEADER_INCARNATION]
        self.member.wait_over(self.worker_pid, self.fences(), incarnation, killed=kind is Kind.LOST)
        self._settle(kind, error)

    def _settle(self, kind: Kind, error: str) -> None:
        row = self.member.shared.row_of(self.worker_pid)
        running = row.fence if row is not None and row.fence in self.fences() else 0
        self.report(self.outcomes(kind, error, running))
        self.member.shared.forget(self.worker_pid)
        self.finish()

    @property
    def _settling(self) -> bool:
        """Whether a thread waits for the end of this."""
        return self._told and not self._finished

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        try:
            return super().on_success(failed__retval__runtime, **kwargs)
        finally:
            self.finish()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if not return_ok and not self._finished and not isinstance(exc, Ignore):
            kind = Kind.LOST if isinstance(exc, CUT_OFF) else Kind.FAILED
            if isinstance(exc, Terminated):
                # By an operator's revoke: the operator does not want it to come again.
                kind = Kind.DEAD
            self.lost(kind, f"{type(exc).__name__}: {exc}")
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            if not self._settling:
                self.finish()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if not soft:
            self.lost(Kind.LOST, f"TimeLimitExceeded: {timeout:g} s")
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft and not self._settling:
                self.finish()

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        self.lost(Kind.DEAD, f"Revoked: {reason}")
        return super()._announce_revoked(reason, terminated, signum, expired)


class _TicketPart(_Part):
    """A message that travels alone."""

    @property
    def args(self) -> Any:
        return json.loads(self._message.body)[0]

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

    def outcomes(self, kind: Kind, error: str, running: int) -> list[Outcome]:
        if kind is Kind.LOST and self.member.forks and running != self.first_fence:
            # The process ended before it had begun this, or after it had written what became of it.
            kind, error = Kind.RETURNED, ""
        return [Outcome(self.id, self.first_fence, kind, error=error)]


class _BundlePart(_Part):
    """A bundle: its messages are announced one by one, so that Flower shows each."""

    def announce(self) -> None:
        if not self._watched:
            return
        for ticket, _offset, attempt, messages in json.loads(self._message.body):
            for i, (id_, name, payload) in enumerate(messages):
                shown = f"({ticket!r}, {json.dumps(payload, ensure_ascii=False)[:SHOWN]})"
                retries = attempt - 1 if i == 0 else 0
                self._eventer.send("task-received", uuid=id_, name=name, args=shown, kwargs="{}", retries=retries)

    @property
    def _watched(self) -> bool:
        return bool(self._eventer and self._eventer.enabled)

    def send_event(self, kind: str, **fields: Any) -> None:
        """The bundle itself is no task of anybody's: it is not shown."""

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        failed, events, _ = failed__retval__runtime
        if not failed and self._watched:
            for id_, kind, shown, more in events:
                self._eventer.send("task-started", uuid=id_)
                if kind == "succeeded":
                    self._eventer.send("task-succeeded", uuid=id_, result=shown, runtime=more)
                else:
                    self._eventer.send(f"task-{kind}", uuid=id_, exception=shown, traceback=more)
        return super().on_success((failed, None, 0.0) if not failed else failed__retval__runtime, **kwargs)

    def outcomes(self, kind: Kind, error: str, running: int) -> list[Outcome]:
        # The message that ran is charged; the others go back. Those that were settled before have stale fences now, and
        # of a run only what is after the message that ran goes back: the leader reads in order.
        outcomes = []
        for _ticket, offset, _attempt, messages in json.loads(self._message.body):
            for i, (id_, _name, _payload) in enumerate(messages):
                fence = self._base_fence + offset + i
                outcomes.append(
                    Outcome(id_, fence, kind, error=error) if fence == running else Outcome(id_, fence, Kind.RETURNED)
                )
        return outcomes


def unknown_task(message: Any, name: str) -> None:
    """A ticket message of a task that this worker does not have: dead, with that reason."""
    headers = message.headers or {}
    if _member is None or HEADER_BASE not in headers or name == BUNDLE_TASK:
        return
    offset = headers[HEADER_RUNS][0][1]
    error = f"{NotRegistered.__name__}: the worker does not know the task {name}"
    outcome = Outcome(headers["id"], headers[HEADER_BASE] + offset, Kind.DEAD, error=error)
    _member.write(headers[HEADER_INCARNATION], [outcome])
