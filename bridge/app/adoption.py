"""Adopts the tasks of an app: changes their classes, so that they can handle messages.

A task comes into the registry in many ways: ``@app.task``, ``shared_task``, ``register_task`` of a class or an
instance, a registry of another app, before `install`, or after the app was finalised. All of them end in the registry's
``__setitem__``, so tasks are adopted there. After that the classes of a task are, from the outside in:

1. the task's own class: its ``__call__`` (`bridge.app.handling.entry_of`) and its strategy are the bridge's;
2. the user's classes, with their own ``__call__``, ``retry`` or handlers;
3. `TicketTask`, then Celery's ``Task``.
"""

from __future__ import annotations

import math
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import getattr_static, unwrap
from types import FunctionType, new_class
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.app.registry import TaskRegistry
from celery.app.trace import task_has_custom

from bridge.app.belonging import SubscriptionOf
from bridge.app.eager import with_ticket_when_called
from bridge.app.handling import before_start_of, entry_of, roll_back_in_run
from bridge.app.task import TicketTask
from bridge.routing.errors import ConfigurationError
from bridge.routing.text import error_text, one_line
from bridge.settings.lane import MOST_ATTEMPTS

if TYPE_CHECKING:
    from celery import Celery

STRATEGY = "bridge.worker.main.strategy:strategy"

#: Attributes that the bridge defines on the outermost class.
OUTERMOST = {"__call__", "before_start"}

#: Celery's own tasks carry no tickets.
CELERYS = "celery."

#: Whether the bridge makes a class now. A user's base class may register a task of each of its subclasses
#: (``__init_subclass__``, a metaclass), and a class of the bridge is none of these.
_makes_class: ContextVar[bool] = ContextVar("bridge_makes_class", default=False)


def with_tickets(base: type) -> type:
    """``base`` with `TicketTask` inserted before Celery's ``Task``, and behind the user's classes."""
    if issubclass(base, TicketTask):
        return base
    if issubclass(TicketTask, base):
        return TicketTask
    try:
        return _subclass(base, (base, TicketTask))
    except Exception:
        # Its tasks are refused when a process starts (`adopt_all`). Here an error would end the import of a user's
        # module.
        return base


def adopt(task: Any) -> None:
    """Makes ``task`` able to handle messages. Raises what its classes raise where one of them cannot be extended."""
    cls = type(task)
    if "_bridge_outermost" in cls.__dict__ or not isinstance(task, Task):
        return
    # If Celery made this class for this task alone, it can be changed. Other classes may have several tasks, or tasks
    # of another app.
    own = "_decorated" in cls.__dict__ and issubclass(cls, TicketTask) and not OUTERMOST & cls.__dict__.keys()
    outermost: Any = cls if own else _subclass(cls, (cls,) if issubclass(cls, TicketTask) else (cls, TicketTask))
    outermost._bridge_outermost = outermost
    ordinary = getattr_static(outermost, "Strategy")
    if ordinary != STRATEGY:
        outermost._bridge_ordinary_strategy = ordinary
        outermost.Strategy = STRATEGY
    outermost._bridge_calls_run = _next_call(outermost) is TicketTask
    outermost.__call__ = outermost._bridge_entry = entry_of(outermost)
    with_ticket_when_called(outermost)
    if task_has_custom(task, "before_start"):
        outermost.before_start = before_start_of(outermost)
    _take_max_retries(outermost)
    task.__class__ = outermost
    # The tracer was built for the class before.
    task.__dict__.pop("__trace__", None)


def adopt_all(app: Celery) -> None:
    """Adopts all tasks in the registry of ``app``. Raises `ConfigurationError` for a task that cannot be adopted: it
    could not handle messages.
    """
    for name, task in app.tasks.items():
        if name.startswith(CELERYS):
            continue
        try:
            adopt(task)
            if isinstance(task, TicketTask):
                # Celery applies `task_annotations` later than it registers the task.
                _take_max_retries(type(task))
        except ConfigurationError as exc:
            raise ConfigurationError(f"task {name}: {exc}") from None
        except Exception as exc:
            raise ConfigurationError(
                f"task {name}: its class {type(task).__name__} cannot be extended: {one_line(error_text(exc))}"
            ) from None
        if isinstance(task, TicketTask):
            rollback = getattr_static(type(task), "bridge_rollback") is not None
            if rollback and not (
                task._bridge_calls_run or task._bridge_rolls_back_in_run or unwrap(type(task).run) is Task.run
            ):
                roll_back_in_run(task)
        else:
            raise ConfigurationError(f"task {name} is {type(task).__name__}, which is no subclass of celery.Task")


def adopt_from_now_on(app: Celery) -> None:
    """Adopts the tasks that ``app`` has now, and each one that is registered later."""
    made = app.__dict__.pop("Task", None)
    bound = partial(app.subclass_with_self, name="Task", attribute="_app", keep_reduce=True, abstract=True)
    base = app.create_task_cls if made is None else partial(bound, made)
    # Not `task_cls`: that is part of a pickled app, and a class that is made here is in no module.
    app.create_task_cls = lambda: with_tickets(base())

    make = app._task_from_fun

    def with_ticket(fun: Any, name: Any = None, base: Any = None, bind: bool = False, **options: Any) -> Any:
        return make(fun, name=name, base=with_tickets(base or app.Task), bind=bind, **options)

    app._task_from_fun = _as_celerys(with_ticket)

    declare = app.task

    def task(*args: Any, **options: Any) -> Any:
        name = options.get("bridge_subscription") or getattr(options.get("base"), "bridge_subscription", None)
        if isinstance(name, str):
            options["bridge_subscription"] = SubscriptionOf(app, name)
        return declare(*args, **options)

    app.task = _as_celerys(task)

    register = app.register_task

    def register_task(task: Any, **options: Any) -> Any:
        if _makes_class.get():
            return task() if isinstance(task, type) else task
        # So a later instance of the class that the user gave knows its app, too. Celery binds it when the app is used.
        given: Any = task if isinstance(task, type) else type(task)
        given._app = app
        return register(task, **options)

    app.register_task = _as_celerys(register_task)

    registry = app._tasks
    registry.__class__ = (
        AdoptingRegistry if type(registry) is TaskRegistry else _subclass(type(registry), (_Adopting, type(registry)))
    )
    for name, task in list(registry.items()):
        registry[name] = task


def _as_celerys(function: Any) -> Any:
    """``function`` with a module name of Celery. Celery's warnings point to the first line outside of its own modules,
    and that must be the user's line.
    """
    names = {**function.__globals__, "__name__": "celery.app.base"}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


class _Adopting:
    """Mixed into the registry of an app."""

    def register(self, task: Any) -> None:
        # Celery refuses a task without a name, as one of a class that the bridge makes of an abstract one.
        if not _makes_class.get():
            super().register(task)  # type: ignore[misc]

    def __setitem__(self, name: str, task: Any) -> None:
        if _makes_class.get():
            return
        if not name.startswith(CELERYS):
            # A task that cannot be adopted is refused when a process starts. Here an error would end the import of a
            # user's module.
            with suppress(Exception):
                adopt(task)
        super().__setitem__(name, task)  # type: ignore[misc]


class AdoptingRegistry(_Adopting, TaskRegistry):
    """A registry that adopts each task that is added."""


def _take_max_retries(cls: Any) -> None:
    """Sets ``bridge_max_attempts`` to ``max_retries`` plus 1, if the user set only ``max_retries``.

    The task may have one in its ``retry_kwargs``, too, for what `autoretry_for` catches. The larger one bounds the
    attempts. That of ``retry_kwargs`` may end them sooner (`TicketTask.retry`).
    """
    given = []
    if any("max_retries" in one.__dict__ for one in cls.__mro__[: cls.__mro__.index(TicketTask)]):
        given.append(_retries(cls.max_retries))
    if getattr(cls, "autoretry_for", ()):
        of_autoretry = (getattr(cls, "retry_kwargs", None) or {}).get("max_retries")
        if of_autoretry is not None:  # Celery takes None as not given.
            given.append(_retries(of_autoretry))
    if given and cls.bridge_max_attempts in (None, getattr(cls, "_bridge_attempts_of_retries", None)):
        cls._bridge_attempts_of_retries = cls.bridge_max_attempts = min(max(given) + 1, MOST_ATTEMPTS)


def _retries(most: Any) -> int:
    """How often a task with this ``max_retries`` is retried. Celery compares only: infinity is no limit."""
    if most is None or most == math.inf:
        return MOST_ATTEMPTS - 1
    try:
        return max(int(most), 0)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"max_retries must be a number or None, not {most!r}") from None


def _next_call(cls: type) -> type:
    """The next class after ``cls`` in its MRO that defines ``__call__``, without those of other adopted tasks."""
    return next(
        one for one in cls.__mro__[1:] if "__call__" in one.__dict__ and "_bridge_outermost" not in one.__dict__
    )


def _subclass(cls: type, bases: tuple[type, ...]) -> type:
    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    token = _makes_class.set(True)
    try:
        return new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(attributes))
    finally:
        _makes_class.reset(token)
