"""The bridge's part of one Celery worker, in its main process: a member of the lane.

`Member` owns the worker's shared page, lease, watcher, holdings and open requests. It takes runs, refuses runs, and
handles the shutdown. What it gives back is chosen by `bridge.worker.main.open_requests`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from bridge.consumer.holdings import Holdings, Taking
from bridge.consumer.lease import Lease
from bridge.consumer.writer import OutcomeWriter
from bridge.protocol.agreement import facts
from bridge.protocol.envelope import returned
from bridge.protocol.headers import first_fence, heads_of
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_REQUEST, WorkerRequest
from bridge.protocol.outcomes import Kind, Outcome
from bridge.protocol.registration import ChangingFacts, Profile, RunnableTasks
from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.fencing import kill_overdue, watch_own_deadline
from bridge.worker.guard.processes import gone
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.main.cutting_off import end_running_tasks
from bridge.worker.main.known_tasks import Conditions, runnable_tasks
from bridge.worker.main.open_requests import OpenRequests
from bridge.worker.main.warm_shutdown import WarmShutdown
from bridge.worker.pool.delivery import failure_of

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Seconds between two checks of a pool process that is ending.
EXIT_CHECK_S = 0.002
#: The largest `worker_max_tasks_per_child` for which each message counts as one task. A larger one is there against
#: leaks; without bundles, short tasks would cost several times as much.
COUNTED_TASKS = 100


class Member:
    """A worker that is a consumer of a lane."""

    def __init__(self, app: Celery, name: str, app_lane: AppLane) -> None:
        self.app = app
        self.name = name
        self.app_lane = app_lane
        self.lane: LaneSettings = app_lane.settings
        #: The Celery queue of this worker in the lane. Only the leader pushes to it.
        self.queue = self.lane.keys.queue(name)
        #: The URL of the lane's server.
        self.url: str = app.bridge.settings.redis_url
        #: Start of this worker, Unix time in seconds. It is the same for all incarnations of this process.
        self.started = time.time()
        self.shared = SharedPage()
        self.holdings = Holdings()
        self.writer = OutcomeWriter(self.url, self.lane, self.shared, app_lane.in_layout)
        #: Starts the worker's watcher when none is running.
        self.ensure_watcher: Callable[[], None] = lambda: None
        #: Celery's pool.
        self.pool: Any = None
        #: Returns how many messages the worker takes now.
        self._slots: Callable[[], int] = lambda: 1
        #: What the runnable tasks were computed for.
        self._said_for: Conditions | None = None
        self._runnable_tasks = RunnableTasks([], [], {}, {})
        #: Whether tasks run in pool processes, which can be killed.
        self.forks = False
        #: Whether Celery can end a running task: in pool processes and greenlets it can, in threads not.
        self.can_end = False
        #: Whether Celery replaces a pool process after a few tasks. It would count a bundle as one.
        self._counts_tasks = False
        self.lease: Lease | None = None
        self._warm_shutdown: WarmShutdown | None = None
        #: Its unfinished requests.
        self.open = OpenRequests(self.shared)
        #: Those that must not start (`bridge.worker.main.rate_limits`). They go back with the lease's next renewal.
        self.kept_back: deque[Any] = deque()
        #: Threads that wait for the end of a pool process, and then write the outcomes of its request.
        self.waiting_threads: set[threading.Thread] = set()
        #: The newest fence that was taken.
        self._newest = 0
        #: Whether the worker was asked to stop. The recall is on the page a moment later: see `WarmShutdown`.
        self._is_stopping = False

    # -- called by the strategy and by requests ------------------------------------------------------------------------

    def take(self, headers: dict[str, Any], body: str | bytes) -> bool:
        """Takes the runs of a Celery message. False: its lease is over, or it came twice, so this worker ignores it."""
        if headers[HEADER_INCARNATION] != self.shared.incarnation:
            logger.debug("refused a message of another incarnation")
            return False
        base = headers[HEADER_BASE]
        runs = heads_of(headers)
        self._newest = max(self._newest, base + runs[-1].offset + runs[-1].length - 1)
        for i, (ticket, offset, length, _, doubt) in enumerate(runs):
            first = base + offset
            took = self.holdings.take(ticket, first, first + length - 1, bool(doubt))
            if took is Taking.FORGOTTEN:
                logger.warning("fence %d of ticket %r came before, and is not here any more: given back", first, ticket)
                # A run that is sent again travels alone. If it had an outcome, that comes first in the stream.
                incarnation = self.shared.incarnation
                self.write(incarnation, returned({"headers": headers, "body": body}, incarnation))
                return False
            if took is Taking.REFUSED:
                logger.warning(
                    "refused fence %d of ticket %r: it came twice, or is not the newest", base + offset, ticket
                )
                # A Celery message is taken whole or not at all. The leader will send its other runs again.
                for taken in runs[:i]:
                    self.holdings.drop(taken.ticket, base + taken.offset)
                return False
        return True

    def received(self, request: Any) -> None:
        """Notes a request that will go to the pool next."""
        request.member = self
        self.open.add(request)

    def max_attempts(self, task: Any) -> int:
        """How many attempts a message of a task has."""
        return int(task.bridge_max_attempts or self.lane.max_attempts)

    def decline(self, headers: dict[str, Any], body: str | bytes) -> None:
        """Gives back a Celery message that was just taken, and that no pool process will get."""
        incarnation = headers[HEADER_INCARNATION]
        self.write(incarnation, returned({"headers": headers, "body": body}, incarnation))
        self.drop(headers)

    def refuse(self, headers: dict[str, Any], body: str | bytes, error: str) -> None:
        """Fails a Celery message that was just taken, and that caused an error in this process.

        If it is a bundle, the faulty message is unknown. So the first message of each run is charged with an attempt,
        and travels alone from then on.
        """
        incarnation = headers[HEADER_INCARNATION]
        heads = returned({"headers": headers, "body": body}, incarnation)
        kind = failure_of(headers) if len(heads) == 1 else Kind.LOST
        self.write(incarnation, [Outcome(head.message_id, head.fence, kind, error=error) for head in heads])
        request = self.open.all.get(first_fence(headers))
        if request is not None:
            request.finish()
        self.drop(headers)

    def drop(self, headers: dict[str, Any]) -> None:
        """The worker does not hold the runs of a Celery message any more."""
        base = headers[HEADER_BASE]
        for run in heads_of(headers):
            self.holdings.drop(run.ticket, base + run.offset)

    def write(self, incarnation: str, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process. They are void when their lease is over.

        Where the server refuses them, they are void, too: this thread must not stand still. The worker does not hold
        these runs any more, so the leader sends them again.
        """
        if not outcomes or not self.shared.holds(incarnation):
            return
        try:
            self.writer.write(incarnation, outcomes, waits=False)
        except RedisError as exc:
            logger.error("the server refuses the outcomes of %d messages, which come again: %s", len(outcomes), exc)

    def handle_leader_request(self, headers: dict[str, Any]) -> None:
        """Handles a request of the leader, which came instead of a message."""
        request = headers[HEADER_REQUEST]
        if request != WorkerRequest.GIVE_BACK.value or headers[HEADER_INCARNATION] != self.shared.incarnation:
            # A probe needs no answer: the leader sees that it left the queue. Another incarnation's request is ignored.
            return
        logger.info("the leader recalls the messages that have not started")
        self._recall()

    def _recall(self) -> None:
        """Gives back the messages taken so far that have not started."""
        self.open.recall(self._newest)

    def wait_for_end(self, pid: int, fences: set[int], incarnation: str, *, killed: bool) -> bool:
        """Waits until pool process ``pid`` runs none of ``fences`` any more. ``killed``: waits until it is gone.

        Returns False when the lease ended first.
        """
        while self.shared.holds(incarnation):
            row = self.shared.row_of(pid)
            if row is None or gone(pid, row.started) or not (killed or row.fence in fences):
                return True
            time.sleep(EXIT_CHECK_S)
        return False

    # -- life --------------------------------------------------------------------------------------------------------

    def child_started(self) -> None:
        """A pool process has started. Called in that process, before it gets any message."""
        main, _ = self.shared.main
        if os.getpid() == main:
            return
        if os.getppid() != main:
            # The main process died before this process had asked the kernel to end together with it.
            os._exit(1)
        self.shared.give_row(self.shared.take_row())
        watch_own_deadline(self.shared, self.lane.lease)

    def start(
        self, consumer: Any, conditions: Conditions, slots: Callable[[], int], on_duplicate: Callable[[], None]
    ) -> None:
        """Takes the lease: the worker will consume next.

        After a lost connection Celery calls this again. Then the lease is kept, and only the messages that Celery may
        have dropped are noted. ``slots`` returns how many messages the worker takes now. ``on_duplicate`` is called
        when another worker took the name meanwhile.
        """
        # Celery learned revoked ids from other workers, or kept them over a restart.
        self.shared.revoke(state.revoked)
        if self.lease is not None:
            self.open.connection_lost()
            return
        self.pool = consumer.pool
        pool = kind_of_pool(type(self.pool))
        self._slots = slots
        self.forks = pool == "prefork"
        most: int | None = consumer.controller.max_tasks_per_child
        self._counts_tasks = self.forks and most is not None and most <= COUNTED_TASKS
        self.refresh_tasks(conditions)
        self.can_end = self.forks or pool in ("gevent", "eventlet")
        if not self.forks:
            logger.warning(
                "the %s pool cannot end a running task when this worker loses its lease: the task runs on, and its "
                "effects are refused by its fence",
                pool,
            )
        elif get_start_method() != "fork":
            raise ConfigurationError(
                f"the pool of {self.name} starts its processes by {get_start_method()}, and the bridge needs fork: "
                "set worker_pool_start_method = 'fork', or choose another pool (-P threads)"
            )
        profile = Profile(
            queue=self.queue,
            changing=self._changing_facts(),
            pool=pool,
            pid=os.getpid(),
            started=self.started,
            facts=facts(self.app, self.lane, master=False),
        )
        lease = Lease(
            self.url,
            self.lane,
            self.name,
            profile,
            self.shared,
            layout=self.app_lane.in_layout,
            held=self.report,
            changing_facts=self._changing_facts,
            on_lost=self._stop_tickets,
            on_duplicate=on_duplicate,
            is_stopping=lambda: self._is_stopping,
            # `begin` runs on Celery's own thread. While it waits there, no other code checks for a shutdown.
            while_waiting=state.maybe_shutdown,
            on_renewal=self._on_renewal,
        )
        lease.begin()
        # Set last: when the server is away, `begin` raises, and Celery will call this again.
        self.lease = lease

    def refresh_tasks(self, conditions: Conditions) -> None:
        """Computes the runnable tasks again if an operator changed what they depend on.

        Called every second on Celery's own thread, and not on the lease's: the app's router may be slow.
        """
        conditions = conditions._replace(limited=conditions.limited & self.app_lane.tasks)
        if conditions == self._said_for or self._is_stopping:
            return
        self._runnable_tasks = runnable_tasks(
            self.app, self.app_lane.tasks, conditions.queues, bundles=not self._counts_tasks
        )
        before, self._said_for = self._said_for, conditions
        if before is not None and before.limited != conditions.limited:
            # What waits here was sent by the limits before: bundles without one, or single messages at a slow one.
            self._recall()

    def _changing_facts(self) -> ChangingFacts:
        return ChangingFacts(self._slots(), self._runnable_tasks)

    def _on_renewal(self) -> None:
        """Called with each renewal of the lease, on its thread."""
        self.ensure_watcher()
        while self.kept_back:
            # No pool process can have it.
            self.kept_back.popleft().give_back()
        if self.open.unaccepted and not self._is_stopping and self._slots() < 1:
            logger.warning("the pool has no process for messages: giving back those that have not started")
            self._recall()

    def report(self) -> list[int]:
        """The first fences of the runs that this worker holds. Called with each renewal of the lease, on its thread."""
        self.open.give_back_dropped()
        return self.holdings.report()

    def begin_shutdown(self) -> None:
        """The worker was asked to stop: starts the warm shutdown. May be called twice."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self.lease is None or not self.shared.incarnation:
            # The queue is not this worker's: another one may have the name, and a lease.
            self.open.recall_all()
            return
        incarnation = self.shared.incarnation
        self._warm_shutdown = WarmShutdown(
            self.url,
            self.lane,
            self.name,
            incarnation,
            holdings=self.holdings,
            lease_holds=partial(self.shared.holds, incarnation),
            write=self.write,
            recall_all=self.open.recall_all,
            give_back_unstarted=self.open.give_back_unstarted,
        )
        self._warm_shutdown.start()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was asked to stop. Its pool will close, and may drop messages without a report."""
        return self._is_stopping

    def stop(self) -> bool:
        """Ends the worker's part in the lane, after its pool has ended. May be called twice.

        In a cold shutdown, tasks may still run. They are ended first. Returns False if that fails. Then the lease is
        not given up.
        """
        shutdown, self._warm_shutdown = self._warm_shutdown, None
        if shutdown is not None:
            shutdown.stop()
        for thread in list(self.waiting_threads):
            thread.join(timeout=max(0.0, self.shared.left_s))
        if self.shared.ends_now and not self._end_running_tasks():
            # The watcher gives notice, or the lease decides.
            return False
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()
        return True

    def _end_running_tasks(self) -> bool:
        requests, waiting_threads = self.open.all.values(), self.waiting_threads
        return end_running_tasks(
            self.shared, self.pool, requests, waiting_threads, forks=self.forks, can_end=self.can_end
        )

    def _stop_tickets(self) -> None:
        """The lease is over: kills the pool processes that run tickets, before other workers get these tickets."""
        self.holdings.forget()
        for pid in kill_overdue(self.shared):
            logger.error("killed pool process %d: it ran a ticket after its lease ended", pid)
        if not self.forks and self.shared.overdue():
            logger.warning("this pool cannot end running tasks; their outcomes will be refused by their fences")


def kind_of_pool(cls: type) -> str:
    """The name of Celery's pool that ``cls`` is or derives from, as "prefork". For another class, its module's name."""
    for base in cls.__mro__:
        package, _, name = base.__module__.rpartition(".")
        if package == "celery.concurrency" and name != "base":
            return name
    return cls.__module__.rpartition(".")[2]
