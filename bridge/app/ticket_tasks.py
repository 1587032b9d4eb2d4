"""Which tasks messages may name: those that the app has for tickets, and neither the bridge's own nor Celery's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.app.task import TicketTask

if TYPE_CHECKING:
    from celery import Celery

#: How the names of tasks begin that do the work of Celery and of the bridge.
RESERVED = ("bridge.", "celery.")


def ticket_tasks(app: Celery) -> frozenset[str]:
    """The names of the tasks of ``app`` that messages may name, as of now: tasks may be registered late."""
    return frozenset(name for name in list(app.tasks) if is_ticket_task(app, name))


def is_ticket_task(app: Celery, name: str) -> bool:
    """Whether a message may name the task ``name``."""
    return not name.startswith(RESERVED) and isinstance(app.tasks.get(name), TicketTask)
