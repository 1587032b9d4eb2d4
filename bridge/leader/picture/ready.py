"""The tickets of a lane that can be dispatched, in queues, and those that wait for the end of a backoff. No I/O."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from bridge.leader.picture.backoffs import Resting
from bridge.leader.picture.flight import Flight
from bridge.leader.picture.fresh import Fresh
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.leader.picture.stranded import Stranded
from bridge.routing.message_options import HIGHEST_PRIORITY
from bridge.routing.policies import PolicyName

if TYPE_CHECKING:
    from bridge.leader.picture.times import Times
    from bridge.routing.message_options import MessageOptions
    from bridge.settings.lane import LaneSettings

#: With fewer messages in memory than this, the leader always reads on.
ENOUGH_MESSAGES = 4000
#: Tickets ready for dispatch, for each slot of the consumers. With more than this, the leader stops reading.
READY_PER_SLOT = 128
#: How many tickets of priority 0 one of priority 1 goes before, at most; one of priority 9, nine times as many.
PASSED_PER_PRIORITY = 1000
#: The heap of backoffs is rebuilt, without the entries of tickets that do not wait any more, when it has twice as many
#: entries as after the last time, and this many more.
OUTDATED = 1000
#: How many tickets pass the backlog in one step that came while fresh messages were not few.
PASS_AT_ONCE = 16

_turn_of = attrgetter("turn")


def queue_by_turn(ready: deque[Ticket], ticket: Ticket) -> None:
    """Puts ``ticket`` before the tickets whose turn is later than its own."""
    ready.insert(bisect_right(ready, ticket.turn, key=_turn_of), ticket)


class Ready(Flight):
    """The queues of tickets that can be dispatched. A base class of `bridge.leader.picture.lane.Lane`."""

    def __init__(self, settings: LaneSettings, clock: Times) -> None:
        super().__init__(settings, clock)
        self._pinned = settings.policy is PolicyName.RENDEZVOUS
        #: Consumers whose queue here has tickets. Some of the queues may be empty by now.
        self.crowded: dict[Consumer, None] = {}
        #: The result of `_open_slots`, and `Consumer.changes` when it was counted.
        self._slots: dict[frozenset[str] | None, int] = {}
        self._slots_seen = -1
        #: Tickets without a consumer that can be dispatched, oldest first.
        self.ready: deque[Ticket] = deque()
        #: Tickets whose oldest message is a suspect. It goes out alone.
        self.suspects: deque[Ticket] = deque()
        #: Heap of tickets that wait for the end of a backoff: (due ms, sequence, ticket).
        self.backoffs: list[tuple[int, int, Ticket]] = []
        #: Tickets that left the heap because of a step of the server's clock: their messages are not due by it.
        self._too_early: list[Ticket] = []
        #: The steps of the server's clock that the backoffs here have (ms).
        self.steps_ms = clock.settled_steps_ms()
        self._backoff_sequence = 0
        #: With more entries than this, those of tickets that do not wait any more are removed.
        self._backoffs_most = OUTDATED
        # A turn less what a priority takes off it is still above 0, which stands for tickets that go first.
        self._turn = PASSED_PER_PRIORITY * HIGHEST_PRIORITY
        #: Whether a ticket was queued before others: then tickets of a queue are not in the order in which they came.
        self.out_of_turn = False
        #: The messages that could start at once.
        self.fresh = Fresh()
        #: Queued tickets whose oldest message was delayed and is due. Others take turns with them (`_turn_of_kind`).
        self.late_ready: set[Ticket] = set()
        #: Queued tickets with a fresh message, while these are few: they go out before all others, and run before them.
        self.fresh_ready: dict[Ticket, None] = {}
        #: Other queued tickets with a fresh message: when these came, fresh messages were not few. In their order.
        self._fresh_behind: dict[Ticket, None] = {}
        #: The latest turn that was dispatched; and, while kinds take turns, the last turn of each.
        self._served = self._last_late = self._last_fresh = self._last_other = self._turn
        self._take_turns = False
        #: Tickets whose records do not say yet that they began or ended to wait for a message that is not due, or when
        #: their backoff ends.
        self.unrecorded: dict[Ticket, None] = {}
        #: Tickets whose oldest message no consumer here can run.
        self.stranded = Stranded(self, self.queue_again)
        #: Tickets that wait for the end of a backoff, with no message in memory.
        self.resting = Resting(self, clock.settled_ms)

    # -- whether the leader reads on -------------------------------------------------------------------------------

    @property
    def has_enough_work(self) -> bool:
        """Whether the leader stops reading: enough tickets in memory are ready and wait only for room.

        The other messages stay unread in the stream. When many tickets in memory wait for a message in flight, the
        leader reads on, because there may be tickets with nothing in flight further on.
        """
        if self.held < ENOUGH_MESSAGES or self.full:
            return self.full
        slots = self._open_slots()
        if self.stranded.mixed:
            return self._each_has_enough(slots, late=False)
        # Messages that come now do not wait for those that were delayed, so they are read.
        enough = READY_PER_SLOT * sum(slots.values()) + len(self.late_ready)
        return len(self.ready) > enough or len(self.ready) + sum(len(one.ready) for one in self.crowded) > enough

    @property
    def has_enough_late(self) -> bool:
        """Whether the leader moves no more delayed messages: enough tickets with due ones wait only for room."""
        if self.held < ENOUGH_MESSAGES or self.full:
            return self.full
        slots = self._open_slots()
        if self.stranded.mixed:
            return self._each_has_enough(slots, late=True)
        return len(self.late_ready) > READY_PER_SLOT * sum(slots.values())

    def _each_has_enough(self, slots: dict[frozenset[str] | None, int], *, late: bool) -> bool:
        """Like the two above, where consumers differ in their tasks: each group of consumers must have enough."""
        ready = dict.fromkeys(slots, 0)
        for consumer in self.crowded:
            if consumer.open:
                delayed = sum(ticket in self.late_ready for ticket in consumer.ready) if self.late_ready else 0
                ready[consumer.tasks] += delayed if late else len(consumer.ready) - delayed
        return all(ready[tasks] > READY_PER_SLOT * slots[tasks] for tasks in slots)

    def _open_slots(self) -> dict[frozenset[str] | None, int]:
        """Set of tasks -> slots of the open consumers that can run them. Counted again only after a change."""
        if self._slots_seen != Consumer.changes:
            self._slots_seen = Consumer.changes
            self._slots = {}
            for consumer in self.consumers.values():
                if consumer.open:
                    self._slots[consumer.tasks] = self._slots.get(consumer.tasks, 0) + consumer.slots
        return self._slots

    # -- queues ----------------------------------------------------------------------------------------------------

    def make_ready(self, ticket: Ticket, *, first: bool = False, fresh: bool = False) -> None:
        """Queues the ticket for dispatch, if its oldest message may go out. ``first``: before all queued tickets.
        ``fresh``: its only message is (`bridge.leader.picture.fresh`).
        """
        if ticket.queued or ticket.run or ticket.due_ms or not ticket.waiting:
            return
        if ticket.front_id or ticket.park_reason is not None:
            return
        options = ticket.waiting[0].options
        if options is not None and options.hold and self._holds(ticket, options.due_ms):
            return
        if (self.stranded.runnable is not None or self.stranded.open_circuits) and self.stranded.holds(ticket):
            self.stranded.add(ticket)
            return
        ticket.queued = True
        consumer = ticket.consumer
        if ticket.moving is not None:
            consumer = self._open_consumer(ticket.moving, consumer, ticket.waiting[0].task)
            ticket.consumer = consumer
            ticket.moving = None
        elif self._pinned:
            consumer = None
        if ticket.suspect:
            ticket.consumer = None
            ready = self.suspects
        elif consumer is not None and consumer.open and consumer.runs(ticket.waiting[0].task):
            ready = consumer.ready
            self.crowded[consumer] = self.room_changed[consumer] = None
        else:
            ticket.consumer = None
            ready = self.ready
        self._turn += 1
        if first:
            ticket.turn = -self._turn
            ready.appendleft(ticket)
        else:
            options = ticket.waiting[0].options
            if fresh and not self.fresh.are_few and not ticket.suspect:
                self._fresh_behind[ticket] = None
            if options is not None or self.late_ready or self.fresh.are_few:
                self._queue_in_turn(ready, ticket, options, fresh=fresh)
            else:
                ticket.turn = self._turn
                ready.append(ticket)

    def queue_with_turn(self, ticket: Ticket, turn: int) -> None:
        """Queues a ticket again, if its oldest message may go out. It had this turn, and gets no later one."""
        self.make_ready(ticket)
        if ticket.queued and turn < ticket.turn:
            ready = self.ready if ticket.consumer is None else ticket.consumer.ready
            ready.remove(ticket)
            ticket.turn = turn
            self.out_of_turn = True
            queue_by_turn(ready, ticket)

    def _queue_in_turn(
        self, ready: deque[Ticket], ticket: Ticket, options: MessageOptions | None, *, fresh: bool
    ) -> None:
        """Queues a ticket by the priority of its oldest message, and by whether that one was delayed, or is fresh.

        Many delayed messages may be due at once. Tickets with other messages take turns with them: so they wait for one
        of them, and not for all. And so nobody starves, however many messages come of either kind. While fresh messages
        are few, they take turns with a backlog in the same way.
        """
        late = options is not None and options.overtakes
        takes_turns = late or self.late_ready or self.fresh.are_few
        ticket.turn = self._turn_of_kind(late=late, fresh=fresh) if takes_turns else self._turn
        if late:
            self.late_ready.add(ticket)
        if fresh and not late and self.fresh.are_few:
            self.fresh_ready[ticket] = None
        if options is not None:
            ticket.turn -= options.priority * PASSED_PER_PRIORITY
        if ticket.turn != self._turn:
            self.out_of_turn = True
        if not ready or ready[-1].turn <= ticket.turn:
            ready.append(ticket)
        else:
            queue_by_turn(ready, ticket)

    def _turn_of_kind(self, *, late: bool, fresh: bool) -> int:
        """The next turn of a ticket of this kind: behind those of its kind, and behind what was dispatched."""
        before = self._turn - 1
        if not self._take_turns:
            self._take_turns = True
            # What was queued until now goes before other tickets, but not before fresh ones.
            self._last_other = before
            self._last_fresh = self._served
        if late:
            if not self.late_ready:
                # It goes before late ones, too.
                self._last_late = before
            turn = self._last_late = max(self._served, self._last_late) + 1
        elif fresh and self.fresh.are_few:
            turn = self._last_fresh = max(self._served, self._last_fresh) + 1
        else:
            turn = self._last_other = max(self._served, self._last_other) + 1
        return turn

    def begin_step(self, now_ms: int) -> None:
        """A step is planned now."""
        self.fresh.look(now_ms)
        if self.fresh.are_few:
            if self._fresh_behind:
                self._let_pass()
        elif not self.late_ready:
            self._take_turns = False

    def _let_pass(self) -> None:
        """Fresh messages are few now. So those that came before this, and wait in the backlog, pass it, too: the ones
        that come next must not pass them.
        """
        for ticket in list(islice(self._fresh_behind, PASS_AT_ONCE)):
            del self._fresh_behind[ticket]
            options = ticket.waiting[0].options
            if options is not None and options.overtakes:
                continue
            ready = self.ready if ticket.consumer is None else ticket.consumer.ready
            ready.remove(ticket)
            self._queue_in_turn(ready, ticket, options, fresh=True)

    def left_queue(self, ticket: Ticket) -> None:
        """``ticket`` was removed from its queue."""
        ticket.queued = False
        self.late_ready.discard(ticket)
        self.fresh_ready.pop(ticket, None)
        self._fresh_behind.pop(ticket, None)

    def were_sent(self, tickets: Sequence[Ticket]) -> None:
        """These tickets left their queues to be dispatched, in the order of their turns."""
        self._served = max(self._served, tickets[-1].turn)
        if self.late_ready:
            self.late_ready.difference_update(tickets)
        for some in (self.fresh_ready, self._fresh_behind):
            if some:
                for ticket in tickets:
                    some.pop(ticket, None)

    def _open_consumer(self, name: str, instead_of: Consumer | None, task: str) -> Consumer | None:
        """The open consumer with that name that can run ``task``.

        Without a name: the least loaded consumer other than ``instead_of``.
        """
        others = [c for c in self.consumers.values() if c.open and c is not instead_of and c.runs(task)]
        if name:
            others = [c for c in others if c.name == name]
        return min(others, key=lambda c: (c.load, len(c.ready)), default=None)

    def unqueue(self, ticket: Ticket) -> None:
        """Removes the ticket from the queue that it is in."""
        if not ticket.queued:
            return
        self.left_queue(ticket)
        queues = [self.ready, self.suspects]
        if ticket.consumer is not None:
            queues.append(ticket.consumer.ready)
        for queue in queues:
            if ticket in queue:
                queue.remove(ticket)
        for consumer in self.consumers.values():
            if consumer.alone is ticket:
                self.end_solitude(consumer)

    def free_ready(self, consumer: Consumer) -> None:
        """Moves the tickets that wait for room at ``consumer`` to the common queue.

        They go before tickets that have only waited for their turn. Otherwise a backlog would add its length to the
        time that a worker needs to leave. They go behind tickets that were lost, given back, retried or freed earlier,
        so that those do not wait longer.
        """
        ahead = []
        while self.ready and self.ready[0].turn <= 0:
            ahead.append(self.ready.popleft())
        while consumer.ready:
            ticket = consumer.ready.pop()
            self.left_queue(ticket)
            ticket.consumer = None
            self.make_ready(ticket, first=True)
            if ticket.consumer is None:
                ticket.turn = 0
        self.ready.extendleft(reversed(ahead))

    def queue_again(self) -> None:
        """Queues all tickets of the common queues again, because the consumers can run other tasks than before."""
        for queue in (self.ready, self.suspects):
            tickets = list(queue)
            queue.clear()
            for ticket in tickets:
                self.left_queue(ticket)
                turn = ticket.turn
                self.make_ready(ticket)
                if ticket.queued:
                    ticket.turn = turn

    def wake(self) -> None:
        """Makes tickets ready whose backoff is over. They go before all others.

        Otherwise a backlog would add its length to every backoff. It would also delay the tickets of a lost worker, and
        that delay must be bounded by the lease.
        """
        if (steps_ms := self.clock.settled_steps_ms()) != self.steps_ms:
            self._take_step(steps_ms)
        if not self.backoffs or self.backoffs[0][0] > (now_ms := self.clock.settled_ms()):
            return
        due_ms = self.clock.due_ms()
        while self.backoffs and self.backoffs[0][0] <= now_ms:
            due, _, ticket = heapq.heappop(self.backoffs)
            if ticket.due_ms == due:
                if ticket.holding and due > due_ms:
                    self._too_early.append(ticket)
                    continue
                ticket.due_ms = 0
                ticket.holding = False
                if not self.resting.wake(ticket):
                    self.make_ready(ticket, first=True)

    def _take_step(self, steps_ms: int) -> None:
        """The server's clock was set a lease ago. A backoff goes on for as long as it was to. A message is due at the
        time that was asked for, by the clock as it is now.
        """
        step_ms, self.steps_ms = steps_ms - self.steps_ms, steps_ms
        waiting = dict.fromkeys(entry[2] for entry in self.backoffs if entry[2].due_ms == entry[0])
        waiting |= dict.fromkeys(ticket for ticket in self._too_early if ticket.due_ms)
        self.backoffs, self._too_early = [], []
        for ticket in waiting:
            self.hold_back(ticket, ticket.due_ms + (0 if ticket.holding else step_ms))

    def _holds(self, ticket: Ticket, due_ms: int) -> bool:
        """Whether ``ticket`` waits for its oldest message, which is due at ``due_ms``."""
        if ticket.begun or due_ms <= self.clock.due_ms():
            return False
        self.hold_back(ticket, due_ms)
        ticket.holding = True
        self.unrecorded[ticket] = None
        return True

    def back_off(self, ticket: Ticket, delay_ms: int) -> None:
        """Makes the oldest message of ``ticket`` wait for so long."""
        self.hold_back(ticket, self.clock.settled_ms() + delay_ms)

    def hold_back(self, ticket: Ticket, due_ms: int) -> None:
        """Makes the oldest message of ``ticket`` wait until ``due_ms``, by the server's clock."""
        ticket.due_ms = max(1, due_ms)
        self._backoff_sequence += 1
        heapq.heappush(self.backoffs, (ticket.due_ms, self._backoff_sequence, ticket))
        if len(self.backoffs) > self._backoffs_most:
            # A ticket that was parked, or ended its wait for a message, leaves its entry: it may be due in a year.
            known = {entry[2]: entry for entry in self.backoffs if entry[2].due_ms == entry[0]}
            self.backoffs = list(known.values())
            heapq.heapify(self.backoffs)
            self._backoffs_most = 2 * len(self.backoffs) + OUTDATED
