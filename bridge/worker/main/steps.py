"""How a Celery worker becomes a consumer of the lane: the bootsteps that `bridge.install` gives to Celery.

Celery runs bootsteps in every worker: in one that the command line starts, and in one that a program or a test starts
(``celery.contrib.testing``, Celery's fixture ``celery_worker``). Celery's signals are used for events that only the
command line has, such as a request to stop.

An error ends a worker of the command line with one line. In a worker that a program or a test started it is raised.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.utils.log import get_logger
from kombu import Exchange, Queue

from bridge.app.adoption import adopt_all
from bridge.app.task_options import check_tasks
from bridge.link.health import EVERY_S, Health
from bridge.routing.errors import TicketBridgeError
from bridge.settings.app import read_settings
from bridge.worker.celery_patches.broker import ignore_dead_children, take_error_replies
from bridge.worker.celery_patches.last_results import keep_unanswered_jobs
from bridge.worker.celery_patches.own_loop import give_own_loop
from bridge.worker.celery_patches.pool_exits import notice_exits_soon
from bridge.worker.celery_patches.queue_names import name_queues_whole
from bridge.worker.main import strategy
from bridge.worker.main.bundle_events import send_gathered
from bridge.worker.main.cold_shutdown import hook_cold_shutdown
from bridge.worker.main.last_read import end_last_read
from bridge.worker.main.members import Members
from bridge.worker.main.new_layout import LayoutWatch
from bridge.worker.main.revoking import hook_revokes
from bridge.worker.main.server_check import check_lane_server, end_worker, exit_with_error
from bridge.worker.main.workers_here import members_of, require_own_queues, ticket_queues, workers
from bridge.worker.pool import calls as pool_calls
from bridge.worker.pool.execute import Execution

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)


class JoinStep(bootsteps.StartStopStep):
    """Makes the worker a member of the lane, before its pool starts any process."""

    #: It may replace the loop.
    requires = ("celery.worker.components:Hub",)

    def create(self, parent: Any) -> None:
        """Celery sets the worker up. It has not started yet."""
        give_own_loop(parent)
        try:
            _join(parent.app, parent)
        except TicketBridgeError as exc:
            end_worker(parent, exc)

    def start(self, parent: Any) -> None:
        """Celery starts the worker. A handler of Celery's signals may have chosen other queues since `create`."""
        members = workers.get(parent)
        if members is not None:
            _consume(parent.app, members)


class MemberStep(bootsteps.StartStopStep):
    """Takes the lease when Celery's consumer is ready to receive messages. Prepares the shutdown when it closes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.consumer = parent
        take_error_replies(parent, partial(end_worker, parent.controller))
        ignore_dead_children()
        notice_exits_soon()
        keep_unanswered_jobs(parent)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        members = members_of(parent)
        if members is None:
            return
        for queue in ticket_queues() - members.queues:
            # The workers of one app share its list of queues. This one must not read the ticket queues of the others.
            parent.task_consumer.cancel_by_queue(queue)
        name_queues_whole(parent, members.queues)
        # Celery forgets its timers when it reconnects.
        if self._timer is not None:
            self._timer.cancel()
        try:
            health = Health(members.app.bridge.settings.health_file)
            self._timer = parent.timer.call_repeatedly(EVERY_S, self._every_second, (members, health, parent))
            members.start(parent, ticket_queues())
            members.layout_watch.start()
        except TicketBridgeError as exc:
            end_worker(parent.controller, exc)

    @staticmethod
    def _every_second(members: Members, health: Health, consumer: Any) -> None:
        health.turn()
        members.leave_lanes(consumer)
        members.look_again(ticket_queues())

    def close(self, parent: Any) -> None:
        """The worker stops: Celery's loop has ended for good. After a lost connection Celery does not call this."""
        members = members_of(parent)
        if members is not None and members.have_leases:
            # After a signal this was done before. Without one (a remote command, an error) it is done here.
            members.begin_shutdown()
            for member in members:
                member.open.recall_all()
            end_last_read(next(iter(members)), members.queues, parent)
        send_gathered(parent.event_dispatcher)


def _join(app: Celery, worker: Any) -> None:
    """Creates the worker's members. Raises `TicketBridgeError`, one line, when the worker cannot join the lane."""
    adopt_all(app)
    check_tasks(app)
    # If the server is away, `ServerStep` waits for it later, where the app is set so.
    check_lane_server(app)
    members = Members(app, worker.hostname)
    require_own_queues(members)
    workers[worker] = members
    members.layout_watch = LayoutWatch(app, worker, leave=members.leave, begin_shutdown=members.begin_forced_shutdown)
    hook_cold_shutdown(worker, members)
    _leave_when_terminated(worker)
    members.watcher.ensure()
    _consume(app, members)
    pool_calls.add({one.queue: Execution(app, one.lane, one.shared, one.writer, one.name) for one in members})


def _consume(app: Celery, members: Members) -> None:
    """Makes the worker consume its own queues for tickets, beside its other queues."""
    for name in members.by_queue:
        if name in app.amqp.queues.consume_from:
            continue
        queue = app.amqp.queues.select_add(Queue(name, routing_key=name, no_ack=True))
        # Without an exchange there is no binding that would stay in Redis. The leader pushes to the queue by its name.
        queue.exchange = Exchange("")


def _leave(worker: Any) -> None:
    """Forgets the worker, and removes its queues from the app: it has ended, and its program may start another one."""
    members = workers.pop(worker, None)
    if members is None:
        return
    pool_calls.remove(members.queues)
    queues = members.app.amqp.queues
    for chosen in (queues, queues._consume_from, getattr(queues, "_default_consume_from", None)):
        if chosen is not None:
            for name in members.by_queue:
                chosen.pop(name, None)


def _leave_when_terminated(worker: Any) -> None:
    """Cleans up after a worker that is terminated, or that never started: Celery sends no signal for these."""
    terminate = worker.terminate

    def terminate_and_leave(in_sighandler: bool = False) -> None:
        terminate(in_sighandler)
        _leave(worker)

    worker.terminate = terminate_and_leave


def check_settings(app: Celery) -> None:
    """Ends a worker of the command line with a one-line error if its settings are wrong.

    They are not kept: another receiver of `celeryd_init` may still change the app's configuration.
    """
    try:
        read_settings(app)
    except TicketBridgeError as exc:
        exit_with_error(exc)


# Celery sends these signals in every process of a worker. A process without a worker does not load this module.


@signals.worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator, unused-ignore]
def _child_started(**_: Any) -> None:
    for members in workers.values():
        members.child_started()


@signals.worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator, unused-ignore]
def _shutting_down(**_: Any) -> None:
    for members in workers.values():
        members.layout_watch.stop()
        members.begin_forced_shutdown()


@signals.worker_shutdown.connect(weak=False)  # type: ignore[untyped-decorator, unused-ignore]
def _stopped(sender: Any, **_: Any) -> None:
    members = workers.get(sender)
    if members is not None:
        members.stop()
        _leave(sender)


@signals.task_unknown.connect(weak=False)  # type: ignore[untyped-decorator, unused-ignore]
def _unknown(sender: Any, message: Any, name: str, **_: Any) -> None:
    strategy.unknown_task(sender, message, name)


hook_revokes()
