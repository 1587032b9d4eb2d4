"""Which tasks a message may name: the ticket tasks of the app, without the bridge's own tasks and Celery's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.app.task import TicketTask

if TYPE_CHECKING:
    from celery import Celery

#: Prefixes of the names of Celery's own tasks and of the bridge's own tasks.
RESERVED = ("bridge.", "celery.")


def ticket_tasks(app: Celery) -> frozenset[str]:
    """The names of the tasks of ``app`` that messages may name now. More tasks may be registered later."""
    return frozenset(name for name in list(app.tasks) if is_ticket_task(app, name))


def is_ticket_task(app: Celery, name: str) -> bool:
    """Whether a message may name the task ``name``."""
    return not name.startswith(RESERVED) and isinstance(app.tasks.get(name), TicketTask)
