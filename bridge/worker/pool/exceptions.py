"""Makes exceptions safe to send from a pool process to the worker's main process: their text, without their class.

The main process unpickles every result. Two kinds of exception classes would end it, and the worker with it: a class
that only the pool process has (from a module that the task imported), and a class whose constructor has side effects.
Celery also raises some exceptions again in the main process, such as `MemoryError` and `SystemExit`. The main process
needs the text only, for logs and events.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry

from bridge.routing.text import safe_repr
from bridge.worker.pool.delivery import SHOWN_CHARS, RevokedHere, Traced, unwrapped


class RaisedInPool(Exception):
    """Stands for the exception that a task raised. It looks the same in logs and events."""

    def __repr__(self) -> str:
        return str(self.args[0])


def picklable(traced: Traced) -> Traced:
    """``traced`` with an exception that is safe to pickle here and to unpickle in the main process."""
    failed, result, runtime = traced
    if not failed or not isinstance(result, ExceptionInfo):
        return traced
    exc = unwrapped(result)
    picklable_exc = _picklable_exception(exc)
    if picklable_exc is not exc:
        result.type = type(picklable_exc)
        wrapped = isinstance(result.exception, ExceptionWithTraceback)
        result.exception = ExceptionWithTraceback(picklable_exc, str(result.traceback)) if wrapped else picklable_exc
    return (failed, result, runtime)


def _picklable_exception(exc: BaseException) -> Any:
    if type(exc) in (Ignore, RevokedHere) and all(type(word) is str for word in exc.args):
        return exc
    if isinstance(exc, Retry):
        when = exc.when if type(exc.when) in (int, float, datetime, type(None)) else None
        return Retry(_shown(exc.message), None if exc.exc is None else stand_in(exc.exc), when)
    if isinstance(exc, Reject):
        return Reject(_shown(exc.reason), bool(exc.requeue))
    if isinstance(exc, Ignore):
        return Ignore(_shown(exc))
    return stand_in(exc)


def stand_in(exc: BaseException) -> RaisedInPool:
    """An exception with the text of ``exc``, and without its class."""
    return RaisedInPool(_shown(exc))


def _shown(one: Any) -> Any:
    return one if type(one) in (str, type(None)) else safe_repr(one, SHOWN_CHARS)
