"""Checks that a task can be called with a ticket and a payload, as a message calls it."""

from __future__ import annotations

import inspect
from typing import Any

from bridge.routing.errors import ConfigurationError


def mismatch(task: Any) -> str:
    """Why ``task`` cannot be called with a ticket and a payload; '' if it can. Ordinary tasks need not accept them."""
    found: str | None = task.__dict__.get("_mismatch")
    if found is None:
        found = task._mismatch = _mismatch(task)
    return found


def require_match(task: Any) -> None:
    """Raises `ConfigurationError` when ``task`` cannot handle messages."""
    if mismatch(task):
        raise ConfigurationError(mismatch(task))


def is_async_or_generator(body: Any) -> bool:
    """Whether a call of ``body`` only creates a coroutine or a generator, which Celery would never run."""
    return inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def _mismatch(task: Any) -> str:
    if is_async_or_generator(inspect.unwrap(task.run)):
        return (
            f"the task {task.name} cannot handle messages: Celery would not run its body, which is async or a generator"
        )
    try:
        signature = inspect.signature(task.run)
        takes = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        signature.bind("ticket", "payload")
    except TypeError:
        bound = "(self, ticket_id, payload) with bind=True, or (ticket_id, payload)"
        return f"the task {task.name} cannot handle messages: it takes ({takes}), and must take {bound}"
    except ValueError:
        # Python cannot tell the signature of some builtins.
        return ""
    return ""
