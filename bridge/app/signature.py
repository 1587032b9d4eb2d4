"""Whether a task can be called as a message calls it: with its ticket and its payload, and nothing else."""

from __future__ import annotations

import inspect
from typing import Any

from bridge.routing.errors import ConfigurationError


def mismatch(task: Any) -> str:
    """Why ``task`` cannot be called with a ticket and a payload; empty when it can. An ordinary task need not."""
    found: str | None = task.__dict__.get("_mismatch")
    if found is None:
        found = task._mismatch = _mismatch(task)
    return found


def require_match(task: Any) -> None:
    """Refuses a task that no message can be for. Raises `ConfigurationError`."""
    if mismatch(task):
        raise ConfigurationError(mismatch(task))


def is_async_or_generator(body: Any) -> bool:
    """Whether a call of ``body`` would only make a coroutine or a generator of it, which Celery never runs."""
    return inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def _mismatch(task: Any) -> str:
    if is_async_or_generator(inspect.unwrap(task.run)):
        return (
            f"no message can be for the task {task.name}: Celery would not run its body, which is async or a generator"
        )
    try:
        signature = inspect.signature(task.run)
        takes = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        signature.bind("ticket", "payload")
    except TypeError:
        bound = "(self, ticket_id, payload) with bind=True, or (ticket_id, payload)"
        return f"no message can be for the task {task.name}: it takes ({takes}), and would have to take {bound}"
    except ValueError:
        # Of something that Python cannot look into.
        return ""
    return ""
