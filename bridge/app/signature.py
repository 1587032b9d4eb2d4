"""Checks that a task can be called with a ticket and a payload, as a message calls it."""

from __future__ import annotations

import inspect
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any

from bridge.routing.errors import ConfigurationError

#: Modules whose functions wrap the user's callable.
_WRAPPERS = frozenset({"celery.app.autoretry", "celery.app.base", "bridge.app.eager", "bridge.app.handling"})


#: What a call of an ``async def`` or a generator returns. These types have no subclasses.
_NOT_RUN = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


def mismatch(task: Any) -> str:
    """Why ``task`` cannot be called with a ticket and a payload; '' if it can. Ordinary tasks need not accept them."""
    found: str | None = task.__dict__.get("_bridge_mismatch")
    if found is None:
        found = task._bridge_mismatch = _mismatch(task)
    return found


def require_match(task: Any) -> None:
    """Raises `ConfigurationError` when ``task`` cannot handle messages."""
    if mismatch(task):
        raise ConfigurationError(mismatch(task))


def is_async_or_generator(body: Any) -> bool:
    """Whether a call of ``body`` only creates a coroutine or a generator, which Celery would never run.

    The user's outermost callable counts: a decorator may run the coroutine of what it decorates.
    """
    body = inspect.unwrap(body, stop=lambda one: getattr(one, "__globals__", {}).get("__name__") not in _WRAPPERS)
    return inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def was_not_run(result: Any) -> bool:
    """Whether ``result`` is a coroutine or a generator: the call that returned it has run nothing."""
    return type(result) in _NOT_RUN


def would_not_run(task: Any) -> str:
    """The error of a task whose body a call does not run."""
    return f"the task {task.name} cannot handle messages: Celery would not run its body, which is async or a generator"


def rollback_would_not_run(name: str) -> str:
    """The same of the rollback of the task ``name``."""
    return f"task {name}: bridge_rollback is async or a generator, so its body would not run"


def _mismatch(task: Any) -> str:
    # The `__call__` of a base class may run it. If it does not, the result says so (`bridge.app.handling`).
    if task._bridge_calls_run and is_async_or_generator(task.run):
        return would_not_run(task)
    try:
        # Celery's wrapper for `autoretry_for` has a copy of the attributes of the method in it, also of the signature
        # that begins with ``self``. The method's own is the one of the call.
        signature = inspect.signature(inspect.unwrap(task.run, stop=lambda one: isinstance(one, MethodType)))
        takes = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        signature.bind("ticket", "payload")
    except TypeError:
        bound = "(self, ticket_id, payload) with bind=True, or (ticket_id, payload)"
        return f"the task {task.name} cannot handle messages: it takes ({takes}), and must take {bound}"
    except ValueError:
        # Python cannot tell the signature of some builtins.
        return ""
    return ""
