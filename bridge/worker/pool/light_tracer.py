"""Runs a message of a bundle without Celery's tracer, when nothing can notice the difference.

Celery's tracer costs more than everything else that a pool process does for a short task. Most of it serves listeners:
signals, handlers, callbacks. If the task has none of them, or only what every Django app has, `LightTracer` runs the
body alone. A result for Celery's own Redis backend is stored later, with those of its round
(`bridge.worker.pool.results`).

Only a success ends here. Any other end of the body (an exception, a callback that it asked for) goes through Celery's
tracer, which calls the task again: `bridge.app.handling.entry_of` then raises or returns what the body did. So all
paths but one are Celery's own code, in every version.

`LightTracer` first looks at the tracer that Celery would use. A library may have replaced or wrapped that tracer, as
Sentry and New Relic do, and a later version of Celery may do more in it. In both cases Celery's tracer is used.
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import celery
from celery import signals, states
from celery._state import _task_stack
from celery.app import trace
from celery.app.task import Context
from celery.backends.base import Backend, DisabledBackend
from celery.fixups.django import DjangoWorkerFixup
from celery.loaders.base import BaseLoader
from celery.utils.saferepr import saferepr
from celery.utils.threads import _LocalStack, release_local
from kombu.utils.encoding import safe_repr

from bridge.app.handling import handled
from bridge.worker.pool.results import is_known, store, unstored

if TYPE_CHECKING:
    from bridge.app.context import TicketContext
    from bridge.worker.pool.delivery import Delivery

#: The versions of Celery whose tracer was compared with this one (`tests/unit/worker/test_light_tracer.py`).
COMPARED = ((5, 6), (5, 7))

#: What Celery's tracer must have found when it was built: no listener. A name that it does not have is another tracer.
_NO_LISTENER: dict[str, Any] = {
    "eager": False,
    "task_before_start": None,
    "task_on_success": None,
    "task_after_return": None,
}

#: What Celery's tracer returns: (result or ExceptionInfo, info, seconds, result as text).
Traced = tuple[Any, Any, Any, Any]


class LightTracer:
    """Runs messages of one bundle. ``request``: the request fields that they share."""

    __slots__ = ("_request", "_stacks", "_templates")

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        #: Task name -> the attributes of its requests in this bundle; None: the task needs Celery's tracer.
        self._templates: dict[str, dict[str, Any] | None] = {}
        #: Celery's stacks that were used.
        self._stacks: set[Any] = set()

    def close(self) -> None:
        """The bundle has ended. Must be called on the thread or greenlet that ran it."""
        for stack in self._stacks:
            if not stack.stack:
                release_local(stack)

    def run(self, task: Any, delivery: Delivery, context: TicketContext) -> Traced | None:
        """Runs the body. None: it was not run, and Celery's tracer must run it."""
        try:
            template = self._templates[delivery.task]
        except KeyError:
            template = self._templates[delivery.task] = self._template(task)
            self._stacks |= {_task_stack, task.request_stack}
        if template is None or (listens := _listeners()) is _Listeners.OTHERS:
            return None
        started = time.monotonic()
        request = Context.__new__(Context)
        id_, args, kwargs = delivery.message_id, delivery.args, delivery.kwargs
        request.__dict__ = own = {
            **template,
            "id": id_,
            "correlation_id": id_,
            "root_id": id_,
            "retries": delivery.attempt - 1,
            "args": args,
            "kwargs": kwargs,
            "bridge_ticket": context,
            "headers": {},
        }
        requests = task.request_stack
        # Popped without Celery's method, which forgets an empty stack: to make it again for each message costs more
        # than the rest of this.
        tasks_now, requests_now = _task_stack.push(task), requests.push(request)
        try:
            if listens is _Listeners.DJANGO:
                signals.task_prerun.send(sender=task, task_id=id_, task=task, args=args, kwargs=kwargs)
            result = handled(task, context, request, args, kwargs)
        except Exception as exc:
            context.body_end = (exc, None)
        except BaseException:
            if listens is _Listeners.DJANGO:
                _send_postrun(task, delivery, None, None)
            raise
        else:
            if not (request.callbacks or request.chain or request.chord) and (
                task.ignore_result or _stores_later(task, delivery, context, request, result)
            ):
                shown = "None" if result is None else saferepr(result, task.resultrepr_maxsize)
                runtime = time.monotonic() - started
                if trace.logger.isEnabledFor(logging.INFO):
                    _log(task, request, shown, runtime)
                if listens is _Listeners.DJANGO:
                    _send_postrun(task, delivery, result, states.SUCCESS)
                return result, None, runtime, shown
            context.body_end = (None, result)
        finally:
            tasks_now.pop()
            requests_now.pop()
        # The body may have changed its request, and Celery's tracer takes it over.
        return _traced_by_celery(task, delivery, own)

    def _template(self, task: Any) -> dict[str, Any] | None:
        if not is_light(task):
            return None
        known = {**self._request, "task": task.name, "ignore_result": bool(task.ignore_result)}
        # With the names that differ between messages: so Celery sees the same names as in a whole request.
        fields = {**known, "id": "", "bridge_ticket": None, "headers": {}}
        made: dict[str, Any] = vars(Context(fields, args=(), called_directly=False, kwargs={}))
        return made


def _traced_by_celery(task: Any, delivery: Delivery, own: dict[str, Any]) -> Traced:
    traced: Traced = task.__trace__(delivery.message_id, delivery.args, delivery.kwargs, own)
    return traced


def _stores_later(task: Any, delivery: Delivery, context: TicketContext, request: Context, result: Any) -> bool:
    """Keeps the result, to be stored with the others of its round. Returns False if Celery must store it."""
    backend = task.backend
    if type(backend) is DisabledBackend:
        return True

    def trace_again() -> Traced:
        context.body_end = (None, result)
        return _traced_by_celery(task, delivery, vars(request))

    kept = unstored(backend, request, result, trace_again)
    if kept is not None and context.written:
        # Its success is written already. If this process died now, nobody would store the result.
        return store([kept])
    delivery.unstored = kept
    return kept is not None


def is_light(task: Any) -> bool:
    """Whether nothing that Celery's tracer does beside the body of ``task`` has an effect, if the body succeeds.

    Receivers of signals are not looked at: see `LightTracer.run`.
    """
    tracer = task.__trace__
    if type(tracer) is not FunctionType or tracer.__code__ is not _celerys_code(trace.build_tracer):
        return False
    built: dict[str, Any] = dict(
        zip(tracer.__code__.co_freevars, (cell.cell_contents for cell in tracer.__closure__ or ()), strict=True)
    )
    backend = type(task.backend)
    return (
        all(built.get(name, name) is value for name, value in [*_NO_LISTENER.items(), ("task", task), ("fun", task)])
        and not built.get("deduplicate_successful_tasks", True)
        and _is_bases(built.get("loader_task_init"), BaseLoader.on_task_init)
        and _is_bases(built.get("loader_cleanup"), BaseLoader.on_process_cleanup)
        and (bool(task.ignore_result) or (not task.track_started and is_known(task.backend)))
        # A `__call__` of the task itself, or of its classes, must be called.
        and type(task).__call__ is type(task)._bridge_entry
        and task._bridge_calls_run
        and "__call__" not in vars(task)
        and type(task.request_stack) is type(_task_stack) is _LocalStack
        and trace.Context is Context
        and backend.mark_as_done is Backend.mark_as_done
        and backend.process_cleanup is Backend.process_cleanup
        and not {"mark_as_done", "process_cleanup"} & vars(task.backend).keys()
    )


def _log(task: Any, request: Context, shown: str, runtime: float) -> None:
    trace.info(
        trace.LOG_SUCCESS,
        {
            "id": request.id,
            "name": trace.get_task_name(request, task.name),
            "return_value": shown,
            "runtime": runtime,
            "args": request.get("argsrepr") or safe_repr(request.args),
            "kwargs": request.get("kwargsrepr") or safe_repr(request.kwargs),
        },
    )


class _Listeners(Enum):
    """Who listens to the signals that Celery's tracer sends with a success."""

    NOBODY = auto()
    #: Only Celery's own receivers in a Django app, which close its connections before and after each message. They are
    #: called here as by the tracer. If the body fails, the tracer calls them again, which changes nothing.
    DJANGO = auto()
    OTHERS = auto()


_DJANGOS = (DjangoWorkerFixup.on_task_prerun, DjangoWorkerFixup.on_task_postrun)


def _listeners() -> _Listeners:
    found = [*signals.task_prerun.receivers, *signals.task_postrun.receivers]
    if signals.task_success.receivers:
        return _Listeners.OTHERS
    if not found:
        return _Listeners.NOBODY
    for _, receiver in found:
        known: Any = receiver() if isinstance(receiver, ReferenceType) else receiver
        if getattr(known, "__func__", None) not in _DJANGOS or type(known.__self__) is not DjangoWorkerFixup:
            return _Listeners.OTHERS
    return _Listeners.DJANGO


def _send_postrun(task: Any, delivery: Delivery, result: Any, state: str | None) -> None:
    signals.task_postrun.send(
        sender=task, task_id=delivery.message_id, task=task, args=delivery.args, kwargs=delivery.kwargs,
        retval=result, state=state,
    )  # fmt: skip


def _is_bases(method: Any, bases: Any) -> bool:
    return getattr(method, "__func__", None) is bases


@lru_cache(maxsize=4)
def _celerys_code(build_tracer: Any) -> CodeType | None:
    """The code of the tracers that Celery itself builds; None: it is not known well enough."""
    if celery.VERSION[:2] not in COMPARED:
        return None
    built = unwrap(build_tracer)
    code = getattr(built, "__code__", None)
    # All code of Celery's module names the same file. A function of a library that took its place does not.
    if code is None or code.co_filename != trace.TraceInfo.handle_failure.__code__.co_filename:
        return None
    found = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == "trace_task"]
    return found[0] if len(found) == 1 else None
