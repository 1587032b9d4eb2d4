"""The ``bridge_…`` options of tasks, and the default task: what cannot work is refused when a process starts."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from bridge.app.signature import require_match
from bridge.app.ticket_tasks import ticket_tasks
from bridge.routing.errors import ConfigurationError
from bridge.settings.config_keys import PREFIX

if TYPE_CHECKING:
    from celery import Celery

    from bridge.settings.lane import LaneSettings

#: What may become of the ticket of a dead message.
ON_DEAD = ("skip", "park")

#: What a task may override or add, as an attribute with the prefix, and its type.
TASK_OVERRIDES: dict[str, type[Any]] = {"max_attempts": int, "bundle": bool, "on_dead": str, "rollback": object}


def check_tasks(app: Celery, lane: LaneSettings) -> None:
    """Refuses a default task that ``app`` does not have, and options of its tasks that cannot work."""
    for name, task in app.tasks.items():
        check_task_options(name, task)
    default = lane.default_task
    known_tasks = ticket_tasks(app)
    if default is not None and default not in known_tasks:
        known = ", ".join(sorted(known_tasks)) or "none"
        raise ConfigurationError(f"bridge_default_task {default!r} is not a task of this app; its tasks: {known}")
    if default is not None:
        require_match(app.tasks[default])


def check_task_options(name: str, task: Any) -> None:
    """Refuses ``bridge_…`` options of a task that are unknown or of the wrong type."""
    for attribute in dir(type(task)):
        if not attribute.startswith(PREFIX):
            continue
        option = attribute.removeprefix(PREFIX)
        value: Any = getattr(task, attribute)
        kind: type[Any] | None = TASK_OVERRIDES.get(option)
        if kind is None:
            near = difflib.get_close_matches(option, TASK_OVERRIDES, n=1, cutoff=0)
            raise ConfigurationError(f"task {name}: unknown option {attribute}; did you mean {PREFIX}{near[0]}?")
        if value is None:
            continue
        if option == "rollback":
            if not callable(value):
                raise ConfigurationError(
                    f"task {name}: bridge_rollback must be a function (self, lost, ticket_id, payload), not {value!r}"
                )
            continue
        if type(value) is not kind:
            raise ConfigurationError(f"task {name}: {attribute} must be {kind.__name__}, not {value!r}")
        if option == "max_attempts" and int(value) < 1:
            raise ConfigurationError(f"task {name}: bridge_max_attempts must be at least 1, not {value}")
        if option == "on_dead" and value not in ON_DEAD:
            raise ConfigurationError(f"task {name}: bridge_on_dead must be {' or '.join(ON_DEAD)}, not {value!r}")
