"""What Celery's pool calls in a pool process, and what it is told of errors that came out of a message."""

from __future__ import annotations

import threading
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate

from bridge.protocol.names import HEADER_BASE, HEADER_RUNS
from bridge.worker.pool import bundles
from bridge.worker.pool.delivery import Traced
from bridge.worker.pool.exceptions import picklable, stand_in
from bridge.worker.pool.execute import ASKED_TO_END, CutOff, Execution

#: Whose exceptions end a greenlet.
GREEN = ("greenlet", "gevent", "eventlet")

#: What Celery's pools of greenlets tell of one that was killed.
CUT_OFF_WITHIN_MAIN: Traced = (0, None, 0.0)

#: The execution of this process, set before the pool forks.
_current: Execution | None = None


def set_current(execution: Execution) -> None:
    """Makes ``execution`` the one that `run_ticket` and `run_bundle` use in this process and its children."""
    global _current
    _current = execution


def run_ticket(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """What the pool calls for a message that came alone; the signature is that of Celery's own trace function."""
    del uuid
    execution = _execution()
    try:
        return picklable(execution.run_alone(request, name, body))
    except BaseException as exc:
        return _raised(execution, request, exc)


def run_bundle(name: str, uuid: str, request: dict[str, Any], body: str, *_: Any, **__: Any) -> Traced:
    """What the pool calls for a bundle."""
    del name, uuid
    execution = _execution()
    try:
        return picklable(bundles.run_bundle(execution, request, body))
    except BaseException as exc:
        return _raised(execution, request, exc)


def _raised(execution: Execution, request: dict[str, Any], exc: BaseException) -> Traced:
    """What the pool is told of ``exc``, which came out of a Celery message: of a task that raises what is no
    `Exception`, as `sys.exit` does, or from outside of any task. A process ends by it only where it was asked to.

    A pool process hands a stand-in to its main process. Pools within that drop an error, and the message would run for
    ever; by what is no `Exception` Celery ends, or takes it for a success. So it is kept here, for `cut_off_in`.
    """
    if not execution.shared.in_main:
        if isinstance(exc, SystemExit) and exc.code == ASKED_TO_END:
            raise exc
        raise stand_in(exc) from None
    first_fence = request[HEADER_BASE] + request[HEADER_RUNS][0][1]
    execution.cut_off.setdefault(first_fence, CutOff(0, exc))
    if _is_the_pools(exc):
        raise exc
    return CUT_OFF_WITHIN_MAIN


def _is_the_pools(exc: BaseException) -> bool:
    """Whether Celery waits for it: the end and the time limit of a greenlet, a signal that ends the worker."""
    if isinstance(exc, (WorkerShutdown, WorkerTerminate)):
        # Celery raises them in handlers of signals.
        return threading.current_thread() is threading.main_thread()
    return not isinstance(exc, Exception) and type(exc).__module__.partition(".")[0] in GREEN


def cut_off_in(first_fence: int) -> CutOff | None:
    """What cut a Celery message off within this process. Answers once."""
    return _current.cut_off.pop(first_fence, None) if _current is not None else None


def _execution() -> Execution:
    if _current is None:
        raise RuntimeError("the bridge was not set up in this process")
    return _current
