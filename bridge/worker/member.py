"""The bridge's part of one worker process: what `bridge.install` hooks into ``celery worker``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.utils.log import get_logger
from kombu import Exchange, Queue

from bridge.connect import check_server, client
from bridge.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.outcomes import Outcome
from bridge.settings import check_tasks
from bridge.worker import execute, strategy
from bridge.worker.broker import outlast_outages
from bridge.worker.farewell import Farewell
from bridge.worker.holdings import Holdings
from bridge.worker.lease import Lease
from bridge.worker.shared import Shared
from bridge.worker.writer import OutcomeWriter
from routing.errors import DuplicateConsumer, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds after which a pool process that got a message has said so.
DROPPED_AFTER_S = 1.0


class Member:
    """A worker that takes part in a lane."""

    def __init__(self, app: Celery, name: str) -> None:
        self.app = app
        self.name = name
        self.settings = app.bridge.settings
        self.shared = Shared()
        self.holdings = Holdings()
        self.writer = OutcomeWriter(self.settings, self.shared)
        self.lease: Lease | None = None
        self._farewell: Farewell | None = None
        self._controller: Any = None
        #: First fence -> request, of what no pool process has accepted yet.
        self.unaccepted: dict[int, Any] = {}
        #: The same, of what Celery may have dropped when its connection was lost; and since when (monotonic).
        self._dropped: dict[int, Any] = {}
        self._dropped_at = 0.0

    # -- what the strategy asks --------------------------------------------------------------------------------------

    def take(self, headers: dict[str, Any]) -> bool:
        """Whether this worker runs what the Celery message carries; False: it belongs to a lease that is over, or came
        twice, and nobody waits for it.
        """
        if headers[HEADER_INCARNATION] != self.shared.incarnation:
            logger.debug("refused a message of another incarnation")
            return False
        base = headers[HEADER_BASE]
        runs = headers[HEADER_RUNS]
        for i, (ticket, offset, _, _, doubt) in enumerate(runs):
            if not self.holdings.take(ticket, base + offset, bool(doubt)):
                logger.warning(
                    "refused fence %d of ticket %s: it came twice, or is not the newest", base + offset, ticket
                )
                # A Celery message is taken whole or not at all; the runs taken from it are still undone elsewhere.
                for taken, off, *_ in runs[:i]:
                    self.holdings.drop(taken, base + off)
                return False
        return True

    def drop(self, headers: dict[str, Any]) -> None:
        """What the Celery message carried is finished."""
        base = headers[HEADER_BASE]
        for ticket, offset, *_ in headers[HEADER_RUNS]:
            self.holdings.drop(ticket, base + offset)

    def write(self, incarnation: str, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process; void when the lease that they belong to is over."""
        if outcomes and self.shared.holds(incarnation):
            self.writer.write(incarnation, outcomes)

    def running_fence(self, pid: int) -> int:
        """The fence that pool process ``pid`` ran when it ended."""
        return self.shared.fence_of(pid)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, consumer: Any) -> None:
        """The worker is about to consume: takes the lease. Once; Celery restarts its consumer on a lost connection."""
        if self.lease is not None:
            # Celery empties the pool's queue when it loses its connection, expecting the broker to deliver again.
            self._dropped = dict(self.unaccepted)
            self._dropped_at = time.monotonic()
            return
        self._controller = consumer.controller
        registration: dict[str, object] = {
            "queue": self.settings.keys.queue(self.name),
            "slots": int(getattr(consumer.pool, "num_processes", None) or consumer.pool.limit or 1),
            "pool": type(consumer.pool).__module__.rpartition(".")[2],
            "pid": os.getpid(),
        }
        lease = Lease(self.settings, self.name, registration, self.shared, held=self.report, lost=self._stop_tickets)
        lease.begin()
        # Only now: when the server is away, Celery starts its consumer again, and this with it.
        self.lease = lease

    def report(self) -> list[int]:
        """The fences of what this worker holds; called with each renewal of the lease, on its thread."""
        if self._dropped and time.monotonic() - self._dropped_at > DROPPED_AFTER_S:
            running = self.shared.running_fences()
            for fence, request in list(self._dropped.items()):
                # What a pool process got after all was accepted by now, or runs, or is finished.
                if fence in self.unaccepted and not running & request.fences():
                    logger.warning("giving back fence %d, which was dropped with the lost connection", fence)
                    request.give_back()
                if fence not in self.unaccepted:
                    del self._dropped[fence]
        return self.holdings.report()

    def going(self) -> None:
        """The worker was asked to stop: what has not started goes back."""
        if self.shared.going:
            return
        self.shared.going = True
        if self.lease is not None:
            self._farewell = Farewell(
                self.settings,
                self.name,
                self.shared.incarnation,
                write=self.write,
                give_back_unstarted=self.give_back_unstarted,
            )
            self._farewell.start()

    def give_back_unstarted(self) -> None:
        """Gives back what waits in the pool's queue behind a task that may yet run for long.

        A pool process notes the fence of a message *before* it looks whether the worker is going, and this looks for
        fences a while *after* the worker said so: so a message either shows here, or is not begun any more.
        """
        running = self.shared.running_fences()
        for request in list(self.unaccepted.values()):
            if not running & request.fences():
                request.give_back()

    def stop(self) -> None:
        """The worker runs nothing any more."""
        farewell, self._farewell = self._farewell, None
        if farewell is not None:
            farewell.stop()
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()

    def _stop_tickets(self) -> None:
        """The lease is over: kills the pool processes that run tickets, so that none runs on beside its successor."""
        self.holdings.forget()
        pool = getattr(self._controller, "pool", None)
        processes = getattr(getattr(pool, "_pool", None), "_pool", None)
        if not isinstance(processes, list):
            logger.warning("this pool cannot be stopped; what runs is refused by its fence when it ends")
            return
        busy = self.shared.busy_pids()
        for process in list(processes):
            if process.pid in busy:
                logger.error("killing pool process %d: it runs a ticket under a lease that is over", process.pid)
                os.kill(process.pid, signal.SIGKILL)


class MemberStep(bootsteps.StartStopStep):
    """Takes the lease when Celery's consumer is ready to receive, and gives it up when the pool is done."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.consumer = parent
        outlast_outages(parent)

    def start(self, parent: Any) -> None:
        member = _members.get(parent.hostname)
        if member is None:
            return
        try:
            member.start(parent)
        except DuplicateConsumer as exc:
            fail(exc)


#: The member of each worker of this process (there is one, but for embedded workers in tests).
_members: dict[str, Member] = {}


def fail(exc: Exception) -> None:
    """Ends the worker with one line."""
    print(f"Error: {exc}", file=sys.stderr, flush=True)
    raise SystemExit(getattr(exc, "exit_code", 1))


def hook(app: Celery) -> None:
    """Connects the signals through which a worker of ``app`` becomes a member."""

    def after_setup(sender: str, instance: Any, **_: Any) -> None:
        if instance.app is not app:
            return
        try:
            settings = app.bridge.settings
            check_tasks(app, settings)
            check_server(client(settings.redis_url, timeout_s=5), settings.redis_url)
        except TicketBridgeError as exc:
            fail(exc)
        member = _members[sender] = Member(app, sender)
        queue = app.amqp.queues.select_add(
            Queue(settings.keys.queue(sender), routing_key=settings.keys.queue(sender), no_ack=True)
        )
        # No exchange, so no binding that would stay behind in Redis: only the leader pushes to this queue, by name.
        queue.exchange = Exchange("")
        strategy.set_member(member)
        execute.set_current(execute.Execution(app, settings, member.shared, member.writer, sender))

    def shutting_down(**_: Any) -> None:
        for member in _members.values():
            member.going()

    def stopped(sender: Any, **_: Any) -> None:
        member = _members.pop(getattr(sender, "hostname", ""), None)
        if member is not None:
            member.stop()

    def unknown(message: Any, name: str, **_: Any) -> None:
        strategy.unknown_task(message, name)

    signals.celeryd_after_setup.connect(after_setup, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_shutdown.connect(stopped, weak=False)
    signals.task_unknown.connect(unknown, weak=False)
    app.steps["consumer"].add(MemberStep)
