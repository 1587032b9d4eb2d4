"""The members of one Celery worker: one for each lane that it serves, with one watcher and one forced end for all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.apps.worker import Worker
from celery.worker import state

from bridge.app.lanes import served_lanes
from bridge.routing.errors import DuplicateConsumer
from bridge.worker.guard.watcher_process import WatchedLane, WatcherProcess
from bridge.worker.main.forced_end import ForcedEnd
from bridge.worker.main.known_tasks import conditions_of
from bridge.worker.main.member import Member
from bridge.worker.main.slots import Slots
from bridge.worker.main.threads import run_in_thread

if TYPE_CHECKING:
    from celery import Celery

    from bridge.worker.main.new_layout import LayoutWatch


class Members:
    """The members of the worker ``name``. Raises `ConfigurationError` for a lane that the app does not have."""

    def __init__(self, app: Celery, name: str) -> None:
        self.app = app
        self.name = name
        url: str = app.bridge.settings.redis_url
        lanes = served_lanes(app)
        self._members = [Member(app, name, lane) for lane in lanes]
        watched = [WatchedLane(member.lane, member.shared) for member in self._members]
        self.watcher = WatcherProcess(url, watched, name)
        self.forced_end = ForcedEnd(url, [member.shared for member in self._members])
        for member in self._members:
            member.ensure_watcher = self.watcher.ensure
        #: How many messages the worker takes. Set when it takes its leases.
        self._slots: Slots | None = None
        #: The streams whose lanes the worker should leave. Written by the thread of `LayoutWatch`.
        self._leaving = frozenset[str]()
        #: Starts the worker again when the stream has a new layout.
        self.layout_watch: LayoutWatch
        #: Queue for tickets -> its member.
        self.by_queue = {member.queue: member for member in self._members}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    @property
    def queues(self) -> frozenset[str]:
        """The worker's own queues for tickets, one for each lane."""
        return frozenset(self.by_queue)

    @property
    def have_leases(self) -> bool:
        """Whether the members have taken their leases."""
        return any(member.lease is not None for member in self._members)

    def start(self, consumer: Any, own_queues: frozenset[str]) -> None:
        """Takes the leases. ``consumer``: Celery's, which will consume next. ``own_queues``: the queues for tickets of
        this process.
        """
        if self._slots is None:
            # Celery itself waits for a process that was started later, and ends it then.
            patience_s = max(
                [self.app.conf.worker_proc_alive_timeout, *(member.lane.lease for member in self._members)]
            )
            self._slots = Slots(consumer, self.name, math.ceil(patience_s), self._begun)
        conditions = conditions_of(self.app, own_queues)
        for member in self._members:
            member.start(consumer, conditions, self._slots, partial(self._name_is_taken, consumer.controller))

    def _name_is_taken(self, worker: Any) -> None:
        """Another worker took the name while this one had no lease. Called on the thread of a lease."""
        # What a program started within its own process, the program must end.
        if isinstance(worker, Worker):
            self.begin_forced_shutdown()
            state.should_stop = DuplicateConsumer.exit_code

    def _begun(self) -> int:
        return sum(member.open.begun for member in self._members)

    def look_again(self, own_queues: frozenset[str]) -> None:
        """Looks again which tasks the worker can run, and how many: an operator may have changed its queues or a rate
        limit, and pool processes may hang, or may have ended with messages that Celery has forgotten. Called every
        second on Celery's own thread.
        """
        if self._slots is not None:
            self._slots.look_at_starts()
        conditions = conditions_of(self.app, own_queues)
        for member in self._members:
            member.refresh_tasks(conditions)
            member.open.report_cut_off()

    def leave(self, streams: frozenset[str]) -> None:
        """Lets the worker leave the lanes of these streams soon: it has no messages of them."""
        self._leaving = streams

    def leave_lanes(self, consumer: Any) -> None:
        """Leaves the lanes that it should leave. Called every second on Celery's own thread. ``consumer``: Celery's."""
        streams, self._leaving = self._leaving, frozenset()
        for member in [member for member in self._members if member.lane.stream in streams]:
            self._members.remove(member)
            del self.by_queue[member.queue]
            consumer.cancel_task_queue(member.queue)
            # It waits for the server.
            run_in_thread(partial(_leave, member))

    def child_started(self) -> None:
        """A pool process has started. Called in that process, before it gets any message."""
        for member in self._members:
            member.child_started()

    def begin_shutdown(self) -> None:
        """The worker was asked to stop: starts the warm shutdown. May be called twice."""
        for member in self._members:
            member.begin_shutdown()

    def begin_forced_shutdown(self) -> None:
        """The same, when the process must end in any case."""
        self.begin_shutdown()
        self.forced_end.start()

    def end_now(self) -> None:
        """A cold shutdown began."""
        for member in self._members:
            member.shared.end_now()

    def stop(self) -> None:
        """Ends the worker's part in its lanes, after its pool has ended. May be called twice."""
        self.layout_watch.stop()
        ended = [member.stop() for member in self._members]
        if all(ended):
            self.watcher.end()


def _leave(member: Member) -> None:
    member.begin_shutdown()
    if member.stop():
        member.shared.leave()
