"""The bridge's part of one worker process: what `bridge.install` hooks into ``celery worker``."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery import bootsteps, signals
from celery.utils.log import get_logger
from kombu import Exchange, Queue

from bridge.envelope import returned
from bridge.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS, HEADER_WORD, WorkerWord
from bridge.outcomes import Outcome
from bridge.settings import check_tasks
from bridge.worker import execute, strategy
from bridge.worker.arrival import ServerStep, fail, require_server
from bridge.worker.broker import outlast_outages, pass_over_dead_children
from bridge.worker.ending import Ending
from bridge.worker.farewell import Farewell
from bridge.worker.fencing import kill_overdue, watch_own_deadline
from bridge.worker.holdings import Holdings, Taking
from bridge.worker.last_read import end_last_read
from bridge.worker.last_results import hear_out
from bridge.worker.lease import Lease
from bridge.worker.processes import gone
from bridge.worker.shared import EVERYTHING, ROWS, Shared
from bridge.worker.watching import Watch
from bridge.worker.writer import OutcomeWriter
from routing.errors import ConfigurationError, DuplicateConsumer, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds after which a pool process that got a message has said so.
DROPPED_AFTER_S = 1.0
#: Seconds between saying that messages are wanted back and taking those that nobody runs: see `give_back_unstarted`.
RECALL_S = 0.1
#: Seconds between two looks at a pool process that is being ended.
LOOK_S = 0.002


class Member:
    """A worker that takes part in a lane."""

    def __init__(self, app: Celery, name: str) -> None:
        self.app = app
        self.name = name
        self.settings = app.bridge.settings
        #: Unix time in seconds: tells one life of this worker from the next, over all of its incarnations.
        self.started = time.time()
        self.shared = Shared()
        self.holdings = Holdings()
        self.writer = OutcomeWriter(self.settings, self.shared)
        self.watch = Watch(self.settings, name, self.shared)
        self.ending = Ending(self.settings, self.shared)
        #: Whether tasks run in pool processes, which can be killed.
        self.forks = False
        self.lease: Lease | None = None
        self._farewell: Farewell | None = None
        #: First fence -> request, of what no pool process has accepted yet.
        self.unaccepted: dict[int, Any] = {}
        #: The same, of what Celery may have dropped when its connection was lost; and since when (monotonic).
        self._dropped: dict[int, Any] = {}
        self._dropped_at = 0.0
        #: The newest fence that was received.
        self._newest = 0
        #: Whether the worker was asked to stop. The page says so a moment later: see `Farewell`.
        self._going = False

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

    def decline(self, headers: dict[str, Any], body: str | bytes) -> None:
        """Gives back what was taken from the queue just now and no pool process will get."""
        incarnation = headers[HEADER_INCARNATION]
        self.write(incarnation, returned({"headers": headers, "body": body}, incarnation))
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

    def hear(self, headers: dict[str, Any]) -> None:
        """The leader asks something of this worker."""
        word = headers[HEADER_WORD]
        if word != WorkerWord.GIVE_BACK.value or headers[HEADER_INCARNATION] != self.shared.incarnation:
            # A probe, or of no concern: that it left the queue is the answer.
            return
        logger.info("the leader wants back what has not begun")
        newest = self.shared.recalled_to = self._newest

        def later() -> None:
            time.sleep(RECALL_S)
            self.give_back_unstarted(newest)

        # Not on Celery's own thread, which a server that is away would stop here.
        threading.Thread(target=later, name="bridge-recall", daemon=True).start()

    def wait_over(self, pid: int, fences: set[int], incarnation: str, *, killed: bool) -> bool:
        """Waits until pool process ``pid`` runs none of ``fences`` any more; for one that is being ``killed``, until it
        is gone. False: the lease ended first.
        """
        while self.shared.holds(incarnation):
            row = self.shared.row_of(pid)
            if row is None or gone(pid, row.started) or not (killed or row.fence in fences):
                return True
            time.sleep(LOOK_S)
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
        watch_own_deadline(self.shared, self.settings.lease)

    def start(self, consumer: Any) -> None:
        """The worker is about to consume: takes the lease. Once; Celery restarts its consumer on a lost connection."""
        if self.lease is not None:
            # Celery empties the pool's queue when it loses its connection, expecting the broker to deliver again.
            self._dropped = dict(self.unaccepted)
            self._dropped_at = time.monotonic()
            return
        pool = type(consumer.pool).__module__.rpartition(".")[2]
        slots = int(getattr(consumer.pool, "num_processes", None) or consumer.pool.limit or 1)
        self.forks = pool == "prefork"
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
        if slots > ROWS:
            raise ConfigurationError(
                f"the bridge runs at most {ROWS} messages at once; start {self.name} with -c {ROWS}"
            )
        registration: dict[str, object] = {
            "queue": self.settings.keys.queue(self.name),
            "slots": slots,
            "pool": pool,
            "pid": os.getpid(),
            "started": self.started,
        }
        lease = Lease(
            self.settings,
            self.name,
            registration,
            self.shared,
            held=self.report,
            lost=self._stop_tickets,
            going=lambda: self._going,
            beat=self.watch.ensure,
        )
        lease.begin()
        # Only now: when the server is away, Celery starts its consumer again, and this with it.
        self.lease = lease

    def report(self) -> list[int]:
        """The fences of what this worker holds; called with each renewal of the lease, on its thread."""
        if self._dropped and time.monotonic() - self._dropped_at > DROPPED_AFTER_S:
            self._settle_dropped()
        return self.holdings.report()

    def _settle_dropped(self) -> None:
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

    def going(self) -> None:
        """The worker was asked to stop: what has not started goes back."""
        if self._going:
            return
        self._going = True
        if self.lease is None:
            self.recall_all()
            return
        self._farewell = Farewell(
            self.settings,
            self.name,
            self.shared.incarnation,
            holdings=self.holdings,
            write=self.write,
            recall_all=self.recall_all,
            give_back_unstarted=self.give_back_unstarted,
        )
        self._farewell.start()

    @property
    def is_going(self) -> bool:
        """Whether the worker was asked to stop: its pool is about to close, and may neither run anything nor say so."""
        return self._going

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
        """The worker runs nothing any more."""
        farewell, self._farewell = self._farewell, None
        if farewell is not None:
            farewell.stop()
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()
        self.watch.farewell()

    def _stop_tickets(self) -> None:
        """The lease is over: kills the pool processes that run tickets, so that none runs on beside its successor."""
        self.holdings.forget()
        for pid in kill_overdue(self.shared):
            logger.error("killed pool process %d: it ran a ticket under a lease that is over", pid)
        if not self.forks and self.shared.overdue():
            logger.warning("this pool cannot end what runs; when it ends, its fence refuses it")


class MemberStep(bootsteps.StartStopStep):
    """Takes the lease when Celery's consumer is ready to receive, and gives it up when the pool is done."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.consumer = parent
        outlast_outages(parent)
        pass_over_dead_children()
        hear_out(parent)

    def start(self, parent: Any) -> None:
        member = _members.get(parent.hostname)
        if member is None:
            return
        try:
            member.start(parent)
        except (ConfigurationError, DuplicateConsumer) as exc:
            fail(exc)

    def close(self, parent: Any) -> None:
        """The loop is over and does not begin again: the worker stops. A lost connection does not come here."""
        member = _members.get(parent.hostname)
        if member is not None and member.lease is not None:
            # Already, unless nobody sent a signal: an operator's remote command stops it, or an error.
            member.going()
            member.recall_all()
            end_last_read(member, parent)


#: The member of each worker of this process (there is one, but for embedded workers in tests).
_members: dict[str, Member] = {}


def hook(app: Celery) -> None:
    """Connects the signals through which a worker of ``app`` becomes a member."""

    def before_setup(instance: Any, **_: Any) -> None:
        # Before Celery itself reads the broker's URL: of one that it cannot read it would show a piece, and that may be
        # of the password.
        if instance.app is not app:
            return
        try:
            _ = app.bridge.settings
        except TicketBridgeError as exc:
            fail(exc)

    def after_setup(sender: str, instance: Any, **_: Any) -> None:
        if instance.app is not app:
            return
        try:
            settings = app.bridge.settings
            check_tasks(app, settings)
        except TicketBridgeError as exc:
            fail(exc)
        # Before Celery shows its banner; `ServerStep` waits where that is wanted.
        require_server(app)
        member = _members[sender] = Member(app, sender)
        member.watch.ensure()
        queue = app.amqp.queues.select_add(
            Queue(settings.keys.queue(sender), routing_key=settings.keys.queue(sender), no_ack=True)
        )
        # No exchange, so no binding that would stay behind in Redis: only the leader pushes to this queue, by name.
        queue.exchange = Exchange("")
        strategy.set_member(member)
        execute.set_current(execute.Execution(app, settings, member.shared, member.writer, sender))

    def child_started(**_: Any) -> None:
        for member in _members.values():
            member.child_started()

    def shutting_down(**_: Any) -> None:
        for member in _members.values():
            member.going()
            member.ending.start()

    def stopped(sender: Any, **_: Any) -> None:
        member = _members.pop(getattr(sender, "hostname", ""), None)
        if member is not None:
            member.stop()

    def unknown(message: Any, name: str, **_: Any) -> None:
        strategy.unknown_task(message, name)

    signals.celeryd_init.connect(before_setup, weak=False)
    signals.celeryd_after_setup.connect(after_setup, weak=False)
    signals.worker_process_init.connect(child_started, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_shutdown.connect(stopped, weak=False)
    signals.task_unknown.connect(unknown, weak=False)
    app.steps["worker"].add(ServerStep)
    app.steps["consumer"].add(MemberStep)
