"""Which tasks a worker can run. The worker writes them into its registration.

These are the tasks of its app, without those that Celery's routes (``task_routes``, a task's own ``queue``) send to a
queue that this worker does not consume. Such a task is meant for other workers, so its ticket messages go to them too.
The ticket messages themselves always travel through a worker's own queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery.app.routes import Router
from celery.utils.log import get_logger
from kombu import Queue

from bridge.app.ticket_tasks import ticket_tasks
from bridge.app.traits import is_limited, traits_of
from bridge.protocol.registration import RunnableTasks

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)


class Conditions(NamedTuple):
    """What an operator may change while a worker runs (``add_consumer``, ``cancel_consumer``, ``rate_limit``), and what
    the worker says of its tasks depends on.
    """

    #: The Celery queues that the worker consumes, except those for tickets.
    queues: frozenset[str]
    #: The ticket tasks that have a rate limit.
    limited: frozenset[str]


def conditions_of(app: Celery, own: frozenset[str]) -> Conditions:
    """What holds now. ``own``: the process's queues for tickets."""
    limited = frozenset(name for name in ticket_tasks(app) if is_limited(app.tasks[name]))
    return Conditions(frozenset(app.amqp.queues.consume_from) - own, limited)


def runnable_tasks(
    app: Celery, lane_tasks: frozenset[str], queues: frozenset[str], *, bundles: bool = True
) -> RunnableTasks:
    """The part of the registration about tasks, for a worker of ``app`` that consumes ``queues``.

    ``lane_tasks``: the tasks that belong to the lane. ``bundles``: whether the worker takes bundles at all.
    """
    router = Router(app.amqp.routes, _Queues(app.amqp.queues), app=app)
    found = RunnableTasks([], sorted(queues), {}, {})
    for name in sorted(lane_tasks & ticket_tasks(app)):
        task = app.tasks[name]
        queue = _queue_of(task, router, queues)
        if queue is not None:
            found.elsewhere[name] = queue
            continue
        found.tasks.append(name)
        own = traits_of(task)
        if not bundles:
            own["bundle"] = False
        if own:
            found.traits[name] = own
    return found


def _queue_of(task: Any, router: Router, queues: frozenset[str]) -> str | None:
    """The queue that ``task`` is routed to, if it is none of ``queues``; None: the task may run here."""
    try:
        route = router.route(dict(task._get_exec_options()), task.name, task_type=task)
    except Exception as exc:
        # The app's own router failed. It may need the arguments of a call.
        logger.warning("cannot tell which queue the task %s is routed to, so it may run here: %r", task.name, exc)
        return None
    found = route.get("queue")
    if found is None:
        # The route names an exchange and a routing key. Only the broker knows to which queues these lead.
        return None
    name = found.name if isinstance(found, Queue) else str(found)
    return None if name in queues else name


class _Queues:
    """The app's queues, for a router. Given Celery's own object, it would declare missing queues, which the worker
    would then consume.
    """

    def __init__(self, queues: Any) -> None:
        self._queues = queues

    def __getitem__(self, name: str) -> Queue:
        found = self._queues.aliases.get(name) or dict.get(self._queues, name)
        return found if found is not None else Queue(name)
