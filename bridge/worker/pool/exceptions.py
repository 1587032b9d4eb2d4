"""What a pool process hands over to the worker's main process of an exception: its text, and nothing of its class.

The main process unpickles whatever comes back. A class that only the pool process has (a module that the task imported)
or one that does something while it is built would end the main process, and with it the worker; Celery itself raises
again what says that memory, or the process, is at its end. All that is needed there is what is logged and shown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry
from kombu.utils.encoding import safe_repr

from bridge.worker.pool.delivery import RevokedHere, Traced, unwrapped

#: Longest text of an exception, in characters.
SHOWN_CHARS = 10_000


class RaisedInPool(Exception):
    """Stands for what a task raised; it looks the same in logs and events."""

    def __repr__(self) -> str:
        return str(self.args[0])


def picklable(traced: Traced) -> Traced:
    """``traced`` as it may be pickled here and unpickled there."""
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
    """What has the text of ``exc``, and nothing of its class."""
    return RaisedInPool(_shown(exc))


def _shown(one: Any) -> Any:
    return one if type(one) in (str, type(None)) else safe_repr(one)[:SHOWN_CHARS]
