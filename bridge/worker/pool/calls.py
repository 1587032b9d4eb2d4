"""The functions that Celery's pool calls to run a message or a bundle, and how their exceptions reach the pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.log import get_logger

from bridge.protocol.headers import first_fence
from bridge.worker.pool import bundles
from bridge.worker.pool.delivery import Traced, ignored
from bridge.worker.pool.exceptions import picklable, stand_in
from bridge.worker.pool.execute import ASKED_TO_END, CutOff, Execution

logger = get_logger(__name__)

#: Packages whose exceptions end a greenlet.
GREEN = ("greenlet", "gevent", "eventlet")

#: Why a thread or greenlet that outlives its worker does not run a message: the leader has it back.
WORKER_HAS_ENDED = "the worker of this message has ended"

#: The result that Celery's pools of greenlets report for a greenlet that was killed.
CUT_OFF_WITHIN_MAIN: Traced = (0, None, 0.0)

#: Queue for tickets -> the execution of its lane. Set before the pool forks. A process may have several workers.
_executions: dict[str, Execution] = {}
#: Whether an error outside of a task has ended a Celery message in this pool process.
_spoiled = False


def add(executions: Mapping[str, Execution]) -> None:
    """Adds what `run_ticket` and `run_bundle` use in this process and its children: queue -> execution."""
    _executions.update(executions)


def remove(queues: Iterable[str]) -> None:
    """Removes what `add` added for ``queues``: their worker has ended."""
    for queue in queues:
        _executions.pop(queue, None)


def run_ticket(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """Runs a message that travelled alone. Celery's pool calls this as it calls Celery's own trace function."""
    del uuid
    _end_if_spoiled()
    execution = _executions.get(request["delivery_info"]["routing_key"])
    if execution is None:
        return ignored(WORKER_HAS_ENDED)
    try:
        return picklable(execution.run_alone(request, name, body))
    except BaseException as exc:
        return _raised(execution, request, exc)


def run_bundle(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """Runs a bundle. Celery's pool calls this as it calls Celery's own trace function."""
    del name, uuid
    _end_if_spoiled()
    execution = _executions.get(request["delivery_info"]["routing_key"])
    if execution is None:
        return ignored(WORKER_HAS_ENDED)
    try:
        return picklable(bundles.run_bundle(execution, request, body))
    except BaseException as exc:
        return _raised(execution, request, exc)


def _end_if_spoiled() -> None:
    """Ends this pool process, if an error that no task raised has ended a Celery message in it.

    A task may have left it in a state in which nothing runs any more: a clock that raises, a module that is gone. Then
    each message would come back at once, and could come to this process again. The process had to report that error
    first. Nothing of this message has begun, so it is not charged, and a new process runs it.
    """
    if _spoiled:
        logger.critical("this pool process ends: an error outside of a task ended an earlier message in it")
        os._exit(os.EX_SOFTWARE)


def _raised(execution: Execution, request: dict[str, Any], exc: BaseException) -> Traced:
    """Handles ``exc``, which ended a Celery message.

    Either a task raised something that is no `Exception` (as `sys.exit` does), or the error came from outside of any
    task. This process ends only if Celery asked it to.

    A pool process raises a substitute exception that can be pickled. A pool within the main process drops an
    `Exception`, so the message would seem to run for ever. Any other error ends Celery, or counts as a success. So the
    error is kept for `cut_off_in`.
    """
    if not execution.shared.in_main:
        if isinstance(exc, SystemExit) and exc.code == ASKED_TO_END:
            raise exc
        global _spoiled
        _spoiled = _spoiled or isinstance(exc, Exception)
        raise stand_in(exc) from None
    execution.cut_off.setdefault(first_fence(request), CutOff(0, exc))
    if _is_the_pools(exc):
        raise exc
    return CUT_OFF_WITHIN_MAIN


def _is_the_pools(exc: BaseException) -> bool:
    """Whether Celery's pool must get ``exc``: the end or time limit of a greenlet, or a signal that ends the worker."""
    if isinstance(exc, (WorkerShutdown, WorkerTerminate)):
        # Celery raises these in signal handlers, which run on the main thread. Else a task raised it.
        return threading.current_thread() is threading.main_thread()
    return not isinstance(exc, Exception) and type(exc).__module__.partition(".")[0] in GREEN


def cut_off_in(queue: str, first_fence: int) -> CutOff | None:
    """What cut off the Celery message with ``first_fence`` of ``queue`` in this process, or None. Removes the entry."""
    execution = _executions.get(queue)
    return execution.cut_off.pop(first_fence, None) if execution is not None else None
