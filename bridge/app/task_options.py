"""Checks the ``bridge_…`` options of tasks, and the default task, when a process starts."""

from __future__ import annotations

import difflib
import inspect
from contextlib import suppress
from datetime import date
from numbers import Real
from typing import TYPE_CHECKING, Any

from celery.utils.functional import firstmethod
from celery.utils.time import maybe_iso8601

from bridge.app.installed import bridge_of
from bridge.app.lanes import subscriptions_of
from bridge.app.signature import is_async_or_generator, require_match, rollback_would_not_run
from bridge.app.ticket_tasks import ticket_tasks
from bridge.routing.errors import ConfigurationError
from bridge.settings.config_keys import PREFIX
from bridge.settings.lane import MOST_ATTEMPTS
from bridge.settings.subscriptions import SETTING
from bridge.settings.versions import SETTING as FOLLOWS

if TYPE_CHECKING:
    from celery import Celery

#: The values of ``bridge_on_dead``: what happens to the ticket of a dead message.
ON_DEAD = ("skip", "park")

#: What the setting task_annotations has for all tasks, and for one; None: nothing. As Celery reads it.
_of_all, _of_task = firstmethod("annotate_any"), firstmethod("annotate")
#: How a rollback is called.
ROLLBACK = "(self, lost, ticket_id, payload)"

#: The options that a task may have, without their prefix, and their types.
TASK_OVERRIDES: dict[str, type[Any]] = {
    "max_attempts": int,
    "bundle": bool,
    "on_dead": str,
    "rollback": object,
    "state": bool,
    "subscription": str,
}


def check_tasks(app: Celery) -> None:
    """Checks the options of the tasks, and the tasks of the lanes.

    Raises `ConfigurationError` for a wrong option, a default task that ``app`` does not have, a subscription without a
    task.
    """
    for name, task in app.tasks.items():
        check_task_options(name, task)
    known_tasks = ticket_tasks(app)
    subscriptions = bridge_of(app).settings.subscriptions
    for lane, *_ in subscriptions_of(app).values():
        default = lane.settings.default_task
        where = f"{SETTING}[{lane.name!r}]: task" if lane.name in subscriptions else "bridge_default_task"
        if lane.version != bridge_of(app).settings.lane.stream:
            where = f"{FOLLOWS}: the task of stream {lane.settings.stream!r},"
        if default is not None and default not in known_tasks:
            known = ", ".join(sorted(known_tasks)) or "none"
            raise ConfigurationError(f"{where} {default!r} is not a task of this app; its tasks: {known}")
        if default is not None:
            require_match(app.tasks[default])
        if lane.is_subscription and not lane.tasks:
            raise ConfigurationError(
                f"{SETTING}[{lane.name!r}] has no task: set its option `task`, or set `bridge_subscription` on a task"
            )


def check_task_options(name: str, task: Any) -> None:
    """Refuses ``bridge_…`` options of a task that are unknown or cannot work, and an ``expires`` that cannot."""
    _check_expires(name, task, getattr(task, "expires", None))
    for attribute in dir(type(task)):
        if not attribute.startswith(PREFIX):
            continue
        option = attribute.removeprefix(PREFIX)
        value: Any = getattr(task, attribute)
        kind: type[Any] | None = TASK_OVERRIDES.get(option)
        if kind is None:
            near = difflib.get_close_matches(option, TASK_OVERRIDES, n=1, cutoff=0)
            raise ConfigurationError(
                f"{_place(name, task, attribute)}: unknown option {attribute}; did you mean {PREFIX}{near[0]}?"
            )
        if value is None:
            continue
        if option == "rollback":
            _check_rollback(name, _place(name, task, attribute), inspect.getattr_static(type(task), attribute))
            continue
        if type(value) is not kind:
            raise ConfigurationError(
                f"{_place(name, task, attribute)}: {attribute} must be {kind.__name__}, not {value!r}"
            )
        if option == "max_attempts" and not 1 <= int(value) <= MOST_ATTEMPTS:
            raise ConfigurationError(
                f"{_place(name, task, attribute)}: {attribute} must be 1 to {MOST_ATTEMPTS:,}, not {value}"
            )
        if option == "on_dead" and value not in ON_DEAD:
            raise ConfigurationError(
                f"{_place(name, task, attribute)}: {attribute} must be {' or '.join(ON_DEAD)}, not {value!r}"
            )


def _place(name: str, task: Any, attribute: str) -> str:
    """Where the option comes from. An annotation gives it to many tasks, also to Celery's own, which no user wrote."""
    annotations = task.app.annotations
    # In this order: Celery sets those of "*" last.
    for key, found in (("*", _of_all(annotations)), (name, _of_task(annotations, task))):
        if attribute in (found or ()):
            return f'task_annotations["{key}"]'
    return f"task {name}"


def _check_rollback(name: str, place: str, value: Any) -> None:
    """Refuses a rollback that cannot be called as `bridge.app.task.TicketTask` calls it."""
    function = value.__func__ if isinstance(value, staticmethod) else value
    if not callable(function):
        raise ConfigurationError(f"{place}: bridge_rollback must be a function {ROLLBACK}, not {value!r}")
    if is_async_or_generator(function):
        raise ConfigurationError(rollback_would_not_run(name))
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Python cannot tell the signature of some builtins.
        return
    try:
        signature.bind("self", "lost", "ticket", "payload")
    except TypeError:
        takes = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        raise ConfigurationError(f"{place}: bridge_rollback takes ({takes}), and is called with {ROLLBACK}") from None


def _check_expires(name: str, task: Any, value: Any) -> None:
    """Refuses an ``expires`` that Celery could not use for a call either."""
    if value is None or isinstance(value, date) or (not isinstance(value, bool) and isinstance(value, Real)):
        return
    if isinstance(value, str) and value:
        with suppress(ValueError):
            maybe_iso8601(value)
            return
    place = _place(name, task, "expires")
    raise ConfigurationError(f"{place}: expires must be seconds, a datetime or an ISO 8601 time, not {value!r}")
