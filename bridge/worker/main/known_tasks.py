"""Which tasks a worker can run, as it tells when it registers.

That is what its app knows, less what Celery's routes (``task_routes``, a task's own ``queue``) send to a queue that
this worker does not consume: such a task is meant for other workers, and its ticket messages go there, too. The message
itself travels through the worker's own queue, as all of a lane do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app.routes import Router
from celery.utils.log import get_logger
from kombu import Queue

from bridge.app.ticket_tasks import ticket_tasks
from bridge.app.traits import traits_of

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)


def queues_of(app: Celery, own: str) -> frozenset[str]:
    """The Celery queues that this worker consumes now, without its ``own`` one for tickets."""
    return frozenset(app.amqp.queues.consume_from) - {own}


def runnable_tasks(app: Celery, queues: frozenset[str]) -> dict[str, Any]:
    """What a worker of ``app`` that consumes ``queues`` tells of its tasks: see `bridge.protocol.registration`."""
    router = Router(app.amqp.routes, _Queues(app.amqp.queues), app=app)
    tasks, elsewhere, traits = [], {}, {}
    for name in sorted(ticket_tasks(app)):
        task = app.tasks[name]
        queue = _queue_of(task, router, queues)
        if queue is not None:
            elsewhere[name] = queue
            continue
        tasks.append(name)
        own = traits_of(task)
        if own:
            traits[name] = own
    return {"tasks": tasks, "queues": sorted(queues), "elsewhere": elsewhere, "traits": traits}


def _queue_of(task: Any, router: Router, queues: frozenset[str]) -> str | None:
    """The queue that ``task`` is meant for, when it is none of ``queues``; None: it may run here."""
    try:
        route = router.route(dict(task._get_exec_options()), task.name, task_type=task)
    except Exception as exc:
        # A router of the app's own, which may look at arguments.
        logger.warning("cannot tell which queue the task %s is routed to, so it may run here: %r", task.name, exc)
        return None
    found = route.get("queue")
    if found is None:
        # By exchange and routing key: which queues that reaches is the broker's business.
        return None
    name = found.name if isinstance(found, Queue) else str(found)
    return None if name in queues else name


class _Queues:
    """The app's queues for a router, which would declare a queue that is missing, and a worker would consume it."""

    def __init__(self, queues: Any) -> None:
        self._queues = queues

    def __getitem__(self, name: str) -> Queue:
        found = self._queues.aliases.get(name) or dict.get(self._queues, name)
        return found if found is not None else Queue(name)
