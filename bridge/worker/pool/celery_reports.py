"""Reports an attempt that was cut off or revoked, as Celery itself would: result, handlers, signals, event.

An attempt that will be repeated is reported as a retry, so that a caller who waits for the result goes on waiting. Only
the last attempt is reported as a failure.

The process that ran the task is gone. So the worker's main process makes the report, on the thread that also forks the
replacement of the dead process. On another thread a lock (of the result backend, or of a user's handler) could be held
during the fork. In the new process that lock would stay taken for ever. (A pool process reports only what the main
process does not know of: `Execution.report_cut_off`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.exceptions import Retry
from celery.signals import task_failure, task_retry, task_revoked
from celery.utils.log import get_logger

from bridge.app.results import result_in
from bridge.routing.text import safe_repr
from bridge.worker.pool.delivery import SHOWN_CHARS

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)


class CeleryReport:
    """The report of one attempt of one message of ``lane``. ``request``: its Celery context. ``eventer``: None to send
    no event.
    """

    def __init__(self, task: Any, request: Any, exc: BaseException, eventer: Any, lane: LaneSettings) -> None:
        self._lane = lane
        self._task = task
        self._request = request
        self._exc = exc
        self._eventer = eventer
        try:
            raise exc
        except BaseException:
            self._einfo = ExceptionInfo()

    def retried(self) -> None:
        """The attempt was cut off, and the message comes again."""
        task, request = self._task, self._request
        if self._stores:
            self._quietly(task.backend.mark_as_retry, request.id, self._exc, self._einfo.traceback, request=request)
        self._quietly(task.on_retry, self._exc, request.id, request.args, request.kwargs, self._einfo)
        reason = Retry(exc=self._exc)
        self._quietly(task_retry.send, sender=task, request=request, reason=reason, einfo=self._einfo)
        self._event("task-retried")

    def failed(self) -> None:
        """The attempt was cut off, and was the last one."""
        task, request, exc = self._task, self._request, self._exc
        self._quietly(
            *(task.backend.mark_as_failure, request.id, exc, self._einfo.traceback),
            request=request,
            store_result=self._stores,
        )
        self._quietly(task.on_failure, exc, request.id, request.args, request.kwargs, self._einfo)
        self._quietly(task.after_return, states.FAILURE, exc, request.id, request.args, request.kwargs, self._einfo)
        self._quietly(
            task_failure.send,
            sender=task,
            task_id=request.id,
            exception=exc,
            args=request.args,
            kwargs=request.kwargs,
            traceback=exc.__traceback__,
            einfo=self._einfo,
        )
        self._event("task-failed")

    def revoked(self, *, terminated: bool, expired: bool = False) -> None:
        """An operator revoked the message, or it had ``expired``. ``terminated``: it was running."""
        task, request = self._task, self._request
        reason = "terminated" if terminated else "expired" if expired else "revoked"
        self._quietly(task.backend.mark_as_revoked, request.id, reason, request=request, store_result=self._stores)
        fields = {"terminated": terminated, "signum": None, "expired": expired}
        self._quietly(task_revoked.send, sender=task, request=request, **fields)
        if self._eventer and self._eventer.enabled and task.send_events:
            self._eventer.send("task-revoked", uuid=request.id, **fields)

    @property
    def _stores(self) -> bool:
        return not self._request.ignore_result or bool(self._task.store_errors_even_if_ignored)

    def _event(self, kind: str) -> None:
        if self._eventer and self._eventer.enabled and self._task.send_events:
            self._eventer.send(
                kind,
                uuid=self._request.id,
                exception=safe_repr(self._exc, SHOWN_CHARS),
                traceback=self._einfo.traceback,
            )

    def _quietly(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._task.request_stack.push(self._request)
        try:
            with result_in(self._lane, self._request.id):
                call(*args, **kwargs)
        except Exception:
            # An error of a result backend or of a user's handler must not stop the message.
            logger.exception("cannot report the end of %s[%s]", self._task.name, self._request.id)
        finally:
            self._task.request_stack.pop()
