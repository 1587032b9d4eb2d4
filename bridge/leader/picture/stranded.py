"""Tickets whose oldest message nobody who is here can run. No I/O.

They are out of everybody's way: they wait for no consumer's room, and none of their messages is in memory. Those stay
where they are, pending under the master's name, like what is spilled; they are read again when somebody comes who can
run the oldest one (`Stranded.fit`).

Each task has a clock, which counts the seconds for which nobody could run it, while a leader led and somebody was here
to ask. A ticket notes what that clock showed when its message began to wait. `bridge.protocol.unserved` moves the
clocks on, tells of them, and decides what becomes of those that have waited for too long.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.routing.ids import id_key


class Waiting:
    """The tickets that wait for somebody who can run one task."""

    def __init__(self, since_ms: int, waited_s: float = 0.0) -> None:
        #: Unix ms since which nobody can.
        self.since_ms = since_ms
        #: What the task's clock shows.
        self.waited_s = waited_s
        #: Ticket -> what the clock showed when its message began to wait.
        self.tickets: dict[Ticket, float] = {}
        self._oldest: list[tuple[float, int, Ticket]] = []
        self._sequence = 0

    def add(self, ticket: Ticket, began_s: float) -> None:
        self.tickets[ticket] = began_s
        self._sequence += 1
        heapq.heappush(self._oldest, (began_s, self._sequence, ticket))

    def longest(self) -> tuple[Ticket, float] | None:
        """The ticket that has waited for longest, and for how many seconds."""
        while self._oldest:
            began_s, _, ticket = self._oldest[0]
            if self.tickets.get(ticket) == began_s:
                return ticket, self.waited_s - began_s
            heapq.heappop(self._oldest)
        return None

    def pass_over(self) -> None:
        """The one that has waited for longest is not the next any more: something becomes of it."""
        heapq.heappop(self._oldest)

    @property
    def messages(self) -> int:
        """Messages of these tickets, as far as they are known: the older ones of a spilled ticket."""
        return sum(ticket.behind for ticket in self.tickets)


class StrandedLane(Protocol):
    """What `Stranded` needs of its lane (`bridge.leader.picture.lane`)."""

    @property
    def consumers(self) -> dict[str, Consumer]:
        """The consumers, by incarnation."""

    @property
    def spilled(self) -> set[Ticket]:
        """The tickets of which messages are not in memory, and may be read again."""

    def now_ms(self) -> int:
        """Unix ms by the lane's clock."""

    def let_go(self, ticket: Ticket) -> None:
        """Spills all messages of ``ticket`` that wait."""

    def end_solitude(self, consumer: Consumer) -> None:
        """The suspect that had ``consumer`` for itself is done with it."""

    def queue_anew(self) -> None:
        """What the consumers can run has changed: asks again for each ticket that waits for a consumer."""


class Stranded:
    """Works on one lane, which asks it before a ticket is queued for dispatch."""

    def __init__(self, lane: StrandedLane) -> None:
        self._lane = lane
        #: What those who are here can run; None: anything, or nobody is here who could be asked.
        self.runnable: frozenset[str] | None = None
        #: Whether those who are here differ in what they can run.
        self.mixed = False
        #: Tasks whose circuit breaker is open (`bridge.leader.picture.breaker`): their messages wait here, too, but for
        #: probes.
        self.paused: set[str] = set()
        self.probes: set[Ticket] = set()
        self.waiting: dict[str, Waiting] = {}
        self._sets: list[frozenset[str] | None] = []

    def add(self, ticket: Ticket) -> None:
        """Nobody can run the oldest message of ``ticket``, which is in memory."""
        lane = self._lane
        message = ticket.waiting[0]
        now_ms = lane.now_ms()
        waiting = self.waiting.get(message.task)
        if waiting is None:
            waiting = self.waiting[message.task] = Waiting(now_ms)
        ticket.stranded, ticket.stranded_id = message.task, message.id
        ticket.consumer = None
        ticket.behind = len(ticket.waiting) + (ticket.spilled_from is not None)
        if ticket.suspect:
            for consumer in lane.consumers.values():
                if consumer.alone is ticket:
                    lane.end_solitude(consumer)
        lane.let_go(ticket)
        lane.spilled.discard(ticket)
        # It may have waited for as long as it is in the stream, but not for longer than nobody can run its task.
        age_s = max(0.0, (now_ms - id_key(message.id)[0]) / 1000)
        waiting.add(ticket, waiting.waited_s - min(waiting.waited_s, age_s))

    def free(self, ticket: Ticket) -> None:
        """The ticket is to be read again."""
        if self.drop(ticket) and ticket.spilled_from is not None:
            self._lane.spilled.add(ticket)

    def drop(self, ticket: Ticket) -> bool:
        """The ticket waits for nobody any more; whether it did."""
        task, ticket.stranded = ticket.stranded, ""
        if not task:
            return False
        ticket.behind = 0
        waiting = self.waiting[task]
        del waiting.tickets[ticket]
        return True

    def fit(self) -> None:
        """Somebody came or went, or can run something else than before: frees what can be run now, and finds what
        cannot any more.
        """
        lane = self._lane
        # Those that were never seen registered are never sent anything.
        differing = {consumer.tasks for consumer in lane.consumers.values() if consumer.registration}
        self.mixed = len(differing) > 1
        sets = [consumer.tasks for consumer in lane.consumers.values() if consumer.serving]
        if len(sets) == len(self._sets) and all(one is other for one, other in zip(sets, self._sets, strict=True)):
            return
        self._sets = sets
        known = {one for one in sets if one is not None}
        before, self.runnable = self.runnable, None
        if sets and None not in sets:
            self.runnable = frozenset().union(*known)
        elif not sets:
            # Whoever waits for somebody goes on waiting: nothing could be sent to anybody.
            return
        if self.runnable == before:
            return
        for task in [task for task in self.waiting if self.can_run(task)]:
            self.release(task)
        if self.runnable is not None and (before is None or not before <= self.runnable):
            lane.queue_anew()

    def can_run(self, task: str) -> bool:
        """Whether somebody who is here can run ``task``, as far as that is known, and shall."""
        return task not in self.paused and (self.runnable is None or task in self.runnable)

    def holds(self, ticket: Ticket) -> bool:
        """Whether the oldest message of ``ticket``, which is in memory, has to wait."""
        task = ticket.waiting[0].task
        if self.runnable is not None and task not in self.runnable:
            return True
        return task in self.paused and ticket not in self.probes

    def release(self, task: str) -> None:
        """What waits for ``task`` is read again, if somebody can run it."""
        if task in self.waiting and self.can_run(task):
            for ticket in list(self.waiting[task].tickets):
                self.free(ticket)
            del self.waiting[task]
