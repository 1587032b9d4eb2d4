"""The bridge's part of one worker process: what `bridge.install` hooks into ``celery worker``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery.utils.log import get_logger
from celery.worker import state

from bridge.consumer.holdings import Holdings, Taking
from bridge.consumer.lease import Lease
from bridge.consumer.writer import OutcomeWriter
from bridge.protocol.agreement import facts
from bridge.protocol.envelope import returned
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS, HEADER_WORD, WorkerWord
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.fencing import kill_overdue, watch_own_deadline
from bridge.worker.guard.processes import gone
from bridge.worker.guard.shared_page import EVERYTHING, Shared
from bridge.worker.guard.watcher_process import WatcherProcess
from bridge.worker.main.cutting_off import end_running_tasks
from bridge.worker.main.forced_end import ForcedEnd
from bridge.worker.main.known_tasks import queues_of, runnable_tasks
from bridge.worker.main.slots import slots_of
from bridge.worker.main.warm_shutdown import WarmShutdown

if TYPE_CHECKING:
    from celery import Celery

    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Seconds after which a pool process that got a message has said so.
DROPPED_AFTER_S = 1.0
#: Seconds between saying that messages are wanted back and taking those that nobody runs: see `give_back_unstarted`.
RECALL_S = 0.1
#: Seconds between two looks at a pool process that is being ended.
EXIT_CHECK_S = 0.002


class Member:
    """A worker that takes part in a lane."""

    def __init__(self, app: Celery, name: str) -> None:
        self.app = app
        self.name = name
        self.lane: LaneSettings = app.bridge.settings.lane
        #: Of the lane's server.
        self.url: str = app.bridge.settings.redis_url
        #: Unix time in seconds: tells one life of this worker from the next, over all of its incarnations.
        self.started = time.time()
        self.shared = Shared()
        self.holdings = Holdings()
        self.writer = OutcomeWriter(self.url, self.lane, self.shared)
        self.watcher = WatcherProcess(self.url, self.lane, name, self.shared)
        self.forced_end = ForcedEnd(self.url, self.shared)
        #: Celery's pool.
        self.pool: Any = None
        #: How many messages it takes now.
        self._slots: Callable[[], int] = lambda: 1
        #: The Celery queues that it consumes beside its own, and what it can run therefore.
        self._queues: frozenset[str] | None = None
        self._runnable_tasks: dict[str, Any] = {}
        #: Whether tasks run in pool processes, which can be killed.
        self.forks = False
        #: Whether Celery can end a task that runs: pool processes and greenlets.
        self.can_end = False
        self.lease: Lease | None = None
        self._warm_shutdown: WarmShutdown | None = None
        #: First fence -> request, of what is here and not finished.
        self.requests: dict[int, Any] = {}
        #: The same, of what no pool process has accepted yet.
        self.unaccepted: dict[int, Any] = {}
        #: Threads that wait for the end of something, and say then what became of it.
        self.waiting_threads: set[threading.Thread] = set()
        #: The same, of what Celery may have dropped when its connection was lost; and since when (monotonic).
        self._dropped: dict[int, Any] = {}
        self._dropped_at = 0.0
        #: The newest fence that was received.
        self._newest = 0
        #: Whether the worker was asked to stop. The page says so a moment later: see `WarmShutdown`.
        self._is_stopping = False

    # -- what the strategy asks --------------------------------------------------------------------------------------

    def take(self, headers: dict[str, Any], body: str | bytes) -> bool:
        """Whether this worker runs what the Celery message carries; False: it belongs to a lease that is over, or came
        twice, and nobody waits for it.
        """
        if headers[HEADER_INCARNATION] != self.shared.incarnation:
            logger.debug("refused a message of another incarnation")
            return False
        base = headers[HEADER_BASE]
        runs = headers[HEADER_RUNS]
        _, offset, count, *_ = runs[-1]
        self._newest = max(self._newest, base + offset + count - 1)
        for i, (ticket, offset, count, _, doubt) in enumerate(runs):
            first = base + offset
            took = self.holdings.take(ticket, first, first + count - 1, bool(doubt))
            if took is Taking.FORGOTTEN:
                logger.warning("fence %d of ticket %s came before, and is not here any more: given back", first, ticket)
                # What is in doubt comes alone. If it had an outcome, that one is in the stream before this one.
                incarnation = self.shared.incarnation
                self.write(incarnation, returned({"headers": headers, "body": body}, incarnation))
                return False
            if took is Taking.REFUSED:
                logger.warning(
                    "refused fence %d of ticket %s: it came twice, or is not the newest", base + offset, ticket
                )
                # A Celery message is taken whole or not at all; the runs taken from it are still undone elsewhere.
                for taken, off, *_ in runs[:i]:
                    self.holdings.drop(taken, base + off)
                return False
        return True

    def received(self, request: Any) -> None:
        """What was taken is about to go to the pool."""
        request.member = self
        self.requests[request.first_fence] = self.unaccepted[request.first_fence] = request

    def max_attempts(self, task: Any) -> int:
        """How many attempts a message of a task has."""
        return int(task.bridge_max_attempts or self.lane.max_attempts)

    def decline(self, headers: dict[str, Any], body: str | bytes) -> None:
        """Gives back what was taken from the queue just now and no pool process will get."""
        incarnation = headers[HEADER_INCARNATION]
        self.write(incarnation, returned({"headers": headers, "body": body}, incarnation))
        self.drop(headers)

    def in_doubt(self, request: Any) -> None:
        """It was about to go to the pool, and may be there or not: it goes through the gate for what was dropped."""
        self._dropped[request.first_fence] = request
        self._dropped_at = time.monotonic()

    def refuse(self, headers: dict[str, Any], body: str | bytes, error: str) -> None:
        """What was taken from the queue just now made this process raise. Which message of a bundle did, nobody can
        know: the first of each run is charged, and travels alone from then on.
        """
        incarnation = headers[HEADER_INCARNATION]
        heads = returned({"headers": headers, "body": body}, incarnation)
        kind = Kind.FAILED if len(heads) == 1 else Kind.LOST
        self.write(incarnation, [Outcome(head.message_id, head.fence, kind, error=error) for head in heads])
        request = self.requests.get(headers[HEADER_BASE] + headers[HEADER_RUNS][0][1])
        if request is not None:
            request.finish()
        self.drop(headers)

    def drop(self, headers: dict[str, Any]) -> None:
        """What the Celery message carried is finished."""
        base = headers[HEADER_BASE]
        for ticket, offset, *_ in headers[HEADER_RUNS]:
            self.holdings.drop(ticket, base + offset)

    def write(self, incarnation: str, outcomes: list[Outcome]) -> None:
        """Writes outcomes from the main process; void when the lease that they belong to is over."""
        if outcomes and self.shared.holds(incarnation):
            self.writer.write(incarnation, outcomes)

    def handle_leader_request(self, headers: dict[str, Any]) -> None:
        """The leader asks something of this worker."""
        word = headers[HEADER_WORD]
        if word != WorkerWord.GIVE_BACK.value or headers[HEADER_INCARNATION] != self.shared.incarnation:
            # A probe, or of no concern: that it left the queue is the answer.
            return
        logger.info("the leader wants back what has not begun")
        self._recall()

    def _recall(self) -> None:
        """Gives back what has come so far and not begun."""
        newest = self.shared.recalled_to = self._newest

        def later() -> None:
            time.sleep(RECALL_S)
            self.give_back_unstarted(newest)

        # Not on Celery's own thread, which a server that is away would stop here.
        threading.Thread(target=later, name="bridge-recall", daemon=True).start()

    def wait_for_end(self, pid: int, fences: set[int], incarnation: str, *, killed: bool) -> bool:
        """Waits until pool process ``pid`` runs none of ``fences`` any more; for one that is being ``killed``, until it
        is gone. False: the lease ended first.
        """
        while self.shared.holds(incarnation):
            row = self.shared.row_of(pid)
            if row is None or gone(pid, row.started) or not (killed or row.fence in fences):
                return True
            time.sleep(EXIT_CHECK_S)
        return False

    # -- life --------------------------------------------------------------------------------------------------------

    def child_started(self) -> None:
        """A process of the pool has begun. Called in it, before it gets any message."""
        main, _ = self.shared.main
        if os.getpid() == main:
            return
        if os.getppid() != main:
            # The main process died before this one had asked to be ended with it: nobody would.
            os._exit(1)
        self.shared.give_row(self.shared.take_row())
        watch_own_deadline(self.shared, self.lane.lease)

    def start(self, consumer: Any) -> None:
        """The worker is about to consume: takes the lease. Once; Celery restarts its consumer on a lost connection."""
        # What its neighbours know, or what it knew before it was restarted.
        self.shared.revoke(state.revoked)
        if self.lease is not None:
            # Celery empties the pool's queue when it loses its connection, expecting the broker to deliver again.
            self._dropped = dict(self.unaccepted)
            self._dropped_at = time.monotonic()
            return
        pool = type(consumer.pool).__module__.rpartition(".")[2]
        self.pool = consumer.pool
        self._slots = slots_of(consumer, self.name)
        self.refresh_tasks()
        self.forks = pool == "prefork"
        self.can_end = self.forks or pool in ("gevent", "eventlet")
        if not self.forks:
            logger.warning(
                "the %s pool cannot end a task that runs when this worker loses its lease: it runs on, and its fence "
                "is what refuses its effects",
                pool,
            )
        elif get_start_method() != "fork":
            raise ConfigurationError(
                f"the pool of {self.name} starts its processes by {get_start_method()}, and the bridge needs fork: "
                "set worker_pool_start_method = 'fork', or choose another pool (-P threads)"
            )
        registration: dict[str, object] = {
            "queue": self.lane.keys.queue(self.name),
            **self._changing_facts(),
            "pool": pool,
            "pid": os.getpid(),
            "started": self.started,
            **facts(self.app, master=False),
        }
        lease = Lease(
            self.url,
            self.lane,
            self.name,
            registration,
            self.shared,
            held=self.report,
            on_lost=self._stop_tickets,
            is_stopping=lambda: self._is_stopping,
            on_renewal=self._on_renewal,
            changing_facts=self._changing_facts,
        )
        lease.begin()
        # Only now: when the server is away, Celery starts its consumer again, and this with it.
        self.lease = lease

    def refresh_tasks(self) -> None:
        """An operator may have told the worker to consume others (``add_consumer``, ``cancel_consumer``). Called every
        second on Celery's own thread: a router of the app's must not hold up the lease.
        """
        queues = queues_of(self.app, self.lane.keys.queue(self.name))
        if queues != self._queues and not self._is_stopping:
            self._runnable_tasks = runnable_tasks(self.app, queues)
            self._queues = queues

    def _changing_facts(self) -> dict[str, Any]:
        """Of what the worker registers with, all that may change while it lives."""
        return {"slots": self._slots(), **self._runnable_tasks}

    def _on_renewal(self) -> None:
        """Called with each renewal of the lease, on its thread."""
        self.watcher.ensure()
        if self.unaccepted and not self._is_stopping and self._slots() < 1:
            logger.warning("the pool was shrunk to nothing: giving back what has not begun")
            self._recall()

    def report(self) -> list[int]:
        """The fences of what this worker holds; called with each renewal of the lease, on its thread."""
        if self._dropped and time.monotonic() - self._dropped_at > DROPPED_AFTER_S:
            self._give_back_dropped()
        return self.holdings.report()

    def _give_back_dropped(self) -> None:
        """Gives back what Celery dropped with its connection, through the gate for all that is wanted back.

        Nobody can know that it was dropped: it may lie in a pipe to a pool process that is about to start. So first the
        page says that it is wanted back, and a process that gets it after all gives it back itself; what does not run
        when this looks again, one renewal later, is not begun any more.
        """
        newest = max((max(request.fences()) for request in self._dropped.values()), default=0)
        if self.shared.recalled_to < newest:
            self.shared.recalled_to = newest
            return
        running = self.shared.running_fences()
        for fence, request in list(self._dropped.items()):
            if fence in self.unaccepted and not running & request.fences():
                logger.warning("giving back fence %d, which was dropped with the lost connection", fence)
                request.give_back()
            if fence not in self.unaccepted:
                del self._dropped[fence]

    def begin_shutdown(self) -> None:
        """The worker was asked to stop: what has not started goes back."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self.lease is None:
            self.recall_all()
            return
        self._warm_shutdown = WarmShutdown(
            self.url,
            self.lane,
            self.name,
            self.shared.incarnation,
            holdings=self.holdings,
            write=self.write,
            recall_all=self.recall_all,
            give_back_unstarted=self.give_back_unstarted,
        )
        self._warm_shutdown.start()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was asked to stop: its pool is about to close, and may neither run anything nor say so."""
        return self._is_stopping

    def recall_all(self) -> None:
        """Whatever has not begun shall not begin any more."""
        self.shared.recalled_to = EVERYTHING

    def give_back_unstarted(self, newest: int = EVERYTHING) -> None:
        """Gives back what waits in the pool's queue, up to the fence ``newest``: it may wait behind a long task.

        A pool process notes the fence of a message *before* it looks whether it is wanted back, and this looks for
        fences a while *after* the page said so: so a message either shows here, or is not begun any more.
        """
        running = self.shared.running_fences()
        for request in list(self.unaccepted.values()):
            fences = request.fences()
            if max(fences) <= newest and not running & fences:
                request.give_back()

    def stop(self) -> None:
        """The worker runs nothing any more, unless it ends at once: then what runs is ended first. Twice is once."""
        shutdown, self._warm_shutdown = self._warm_shutdown, None
        if shutdown is not None:
            shutdown.stop()
        for thread in list(self.waiting_threads):
            thread.join(timeout=max(0.0, self.shared.left_s))
        if self.shared.ends_now and not self._end_running_tasks():
            # Nobody can be sure of it: so no good-bye. The watcher gives notice, or the lease decides.
            return
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()
        self.watcher.end()

    def _end_running_tasks(self) -> bool:
        requests, waiting_threads = self.requests.values(), self.waiting_threads
        return end_running_tasks(
            self.shared, self.pool, requests, waiting_threads, forks=self.forks, can_end=self.can_end
        )

    def _stop_tickets(self) -> None:
        """The lease is over: kills the pool processes that run tickets, so that none runs on beside its successor."""
        self.holdings.forget()
        for pid in kill_overdue(self.shared):
            logger.error("killed pool process %d: it ran a ticket under a lease that is over", pid)
        if not self.forks and self.shared.overdue():
            logger.warning("this pool cannot end what runs; when it ends, its fence refuses it")
