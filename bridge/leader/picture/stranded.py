"""Stranded tickets: no consumer that is here can run their oldest message. No I/O.

Stranded tickets do not wait for a consumer's room, and none of their messages is in memory. The messages stay pending
under the master's name, like spilled ones. They are read again when a consumer arrives that can run the oldest message
(`Stranded.fit`).

Each task has a clock. It counts the seconds in which no consumer could run the task, while a master led and at least
one consumer was here. A ticket notes the value of the clock when its message began to wait.
`bridge.leader.duties.unknown_tasks` advances the clocks, reports them, and gives up messages that waited too long.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.leader.picture.flight import Flight
    from bridge.leader.picture.pieces import Ticket


#: So many rows of tickets that do not wait any more are kept at least.
ROWS = 100


class Waiting:
    """The tickets that wait for a consumer that can run one task."""

    def __init__(self, since_ms: int, waited_s: float = 0.0) -> None:
        #: Unix ms since when no consumer can run the task.
        self.since_ms = since_ms
        #: The task's clock, in seconds.
        self.waited_s = waited_s
        #: Ticket -> number of its row in `_oldest`. A ticket that was stranded again has older rows, too.
        self.tickets: dict[Ticket, int] = {}
        #: (value of the clock when the ticket's message began to wait, number, ticket), as a heap.
        self._oldest: list[tuple[float, int, Ticket]] = []
        self._sequence = 0

    def add(self, ticket: Ticket, began_s: float) -> None:
        self._sequence += 1
        self.tickets[ticket] = self._sequence
        heapq.heappush(self._oldest, (began_s, self._sequence, ticket))

    def remove(self, ticket: Ticket) -> None:
        """The ticket does not wait any more."""
        del self.tickets[ticket]
        if len(self._oldest) > 2 * len(self.tickets) + ROWS:
            # A ticket may be stranded and freed very often, as the trials of a breaker are.
            self._oldest = [row for row in self._oldest if self.tickets.get(row[2]) == row[1]]
            heapq.heapify(self._oldest)

    def longest(self) -> tuple[Ticket, float] | None:
        """The ticket that has waited longest, and for how many seconds."""
        while self._oldest:
            began_s, number, ticket = self._oldest[0]
            if self.tickets.get(ticket) == number:
                return ticket, self.waited_s - began_s
            heapq.heappop(self._oldest)
        return None

    def drop_longest(self) -> None:
        """Removes the ticket that has waited longest from the order: it is being given up."""
        heapq.heappop(self._oldest)

    @property
    def messages(self) -> int:
        """Known messages of these tickets. A spilled ticket has more, which are not in memory."""
        return sum(ticket.waiting_known for ticket in self.tickets)


class Stranded:
    """The stranded tickets of one lane. The lane asks it before it queues a ticket for dispatch.

    ``queue_again`` queues all waiting tickets again, because the consumers can run other tasks than before.
    """

    def __init__(self, lane: Flight, queue_again: Callable[[], None]) -> None:
        self._lane = lane
        self._queue_again = queue_again
        #: The tasks that the consumers here can run; None: any task, or no consumer is here.
        self.runnable: frozenset[str] | None = None
        #: Whether the consumers differ in the tasks that they can run.
        self.mixed = False
        #: Tasks whose circuit breaker is open (`bridge.leader.picture.breaker`). Their messages wait here too, except
        #: for trials.
        self.open_circuits: set[str] = set()
        self.trials: set[Ticket] = set()
        self.waiting: dict[str, Waiting] = {}
        self._sets: list[frozenset[str] | None] = []

    def add(self, ticket: Ticket) -> None:
        """Strands ``ticket``: no consumer can run its oldest message, which is in memory."""
        lane = self._lane
        message = ticket.waiting[0]
        now_ms = lane.clock.server_ms()
        waiting = self.waiting.get(message.task)
        if waiting is None:
            waiting = self.waiting[message.task] = Waiting(now_ms)
        ticket.stranded, ticket.stranded_id = message.task, message.id
        ticket.consumer = None
        ticket.waiting_known = len(ticket.waiting) + (ticket.spilled_from is not None)
        if ticket.suspect:
            for consumer in lane.consumers.values():
                if consumer.alone is ticket:
                    lane.end_solitude(consumer)
        lane.let_go(ticket)
        lane.spilled.discard(ticket)
        # The message has waited since it entered the stream or was due, but at most for the time that its task had no
        # consumer.
        due_ms = 0 if message.options is None else message.options.due_ms
        age_s = max(0.0, (now_ms - max(id_key(message.id)[0], due_ms)) / 1000)
        waiting.add(ticket, waiting.waited_s - min(waiting.waited_s, age_s))

    def free(self, ticket: Ticket) -> None:
        """The ticket is not stranded any more: its messages are read again."""
        if self.drop(ticket) and ticket.spilled_from is not None:
            self._lane.spilled.add(ticket)

    def drop(self, ticket: Ticket) -> bool:
        """Removes the ticket from the stranded ones. Returns whether it was one of them."""
        task, ticket.stranded = ticket.stranded, ""
        if not task:
            return False
        ticket.waiting_known = 0
        self.waiting[task].remove(ticket)
        return True

    def fit(self) -> None:
        """Updates `runnable` after a consumer came, left, or changed its tasks.

        Frees the tickets whose task can be run now, and strands those whose task cannot be run any more.
        """
        lane = self._lane
        # A consumer that was never seen registered gets no messages.
        differing = {consumer.tasks for consumer in lane.consumers.values() if consumer.registration is not None}
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
            # No consumer takes messages now. All tickets go on waiting.
            return
        # Also if it can run the same as before: while no consumer took messages, tickets were stranded all the same.
        for task in [task for task in self.waiting if self.can_run(task)]:
            self.release(task)
        if self.runnable == before:
            return
        if self.runnable is not None and (before is None or not before <= self.runnable):
            self._queue_again()

    def can_run(self, task: str) -> bool:
        """Whether a consumer that is here can run ``task``, and the task's circuit breaker is closed."""
        return task not in self.open_circuits and (self.runnable is None or task in self.runnable)

    def holds(self, ticket: Ticket) -> bool:
        """Whether the oldest message of ``ticket`` has to wait. It is in memory."""
        task = ticket.waiting[0].task
        if self.runnable is not None and task not in self.runnable:
            return True
        return task in self.open_circuits and ticket not in self.trials

    def release(self, task: str) -> None:
        """Frees the tickets that wait for ``task``, if a consumer can run it."""
        if task in self.waiting and self.can_run(task):
            for ticket in list(self.waiting[task].tickets):
                self.free(ticket)
            del self.waiting[task]
