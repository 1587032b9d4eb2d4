"""The leader's picture of its lane: tickets, waiting messages, messages in flight. No I/O.

Everything here can be rebuilt from Redis (invariant I6): messages in flight from the ticket records, waiting messages
from the master's own pending entries. The leader fills a `Batch` from this picture and writes it with one script. Only
then does it take the new fences into the picture (`committed`). When the script is refused, or its reply is lost, the
leader throws the whole picture away and reads the lane again. It never repairs the picture by guessing.

Memory is bounded (`bridge.leader.picture.window`). The messages of a parked ticket are not in memory. They are pending
under a name of their own until the ticket is released.

The messages of a ticket are in the order of their ids, with one exception. A message that was begun stays first, even
when an older message is replayed (`replay`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from bridge.leader.picture.backoffs import Resting
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.leader.picture.stranded import Stranded
from bridge.leader.picture.window import Window
from bridge.protocol import dead_letters
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.history import What, row
from bridge.routing.ids import id_key
from bridge.routing.messages import Message, Refusal
from bridge.routing.policies import PolicyName
from bridge.settings.lane import LaneSettings

#: With fewer messages in memory than this, the leader always reads on.
ENOUGH_MESSAGES = 4000
#: Tickets ready for dispatch, for each slot of the consumers. With more than this, the leader stops reading.
READY_PER_SLOT = 128
#: One of this many consumers may be kept for suspects while other work waits (`bridge.leader.picture.suspects`).
SUSPECTS_SHARE = 4
#: How the record of a ticket that awaits a retry begins.
AWAITING = f"[{records.AWAITING},"


class Lane(Window):
    """The picture of one lane. ``now_ms``: Unix time by the leader's clock."""

    def __init__(self, settings: LaneSettings, *, now_ms: Callable[[], int]) -> None:
        super().__init__(settings)
        self.now_ms = now_ms
        self._pinned = settings.policy is PolicyName.RENDEZVOUS
        #: Whether the history of the lane is kept.
        self._historical = settings.history > 0
        #: Tickets with a replayed or released message. It may be older than `Ticket.since` says.
        self.older: set[Ticket] = set()
        #: Parked tickets by id. They are not in ``tickets``.
        self.parked: dict[str, Ticket] = {}
        #: Id of a message in flight -> its ticket.
        self.in_flight: dict[str, Ticket] = {}
        self.consumers: dict[str, Consumer] = {}
        #: Consumers whose room, or whose queue here, changed since the planner looked.
        self.room_changed: dict[Consumer, None] = {}
        #: Those of whose work in flight something landed or went out since `bridge.leader.picture.outcome_pause`
        #: looked.
        self.flight_changed: dict[Consumer, None] = {}
        #: Consumers whose queue here has tickets. Some of the queues may be empty by now.
        self.crowded: dict[Consumer, None] = {}
        #: The result of `_open_slots`, and `Consumer.changes` when it was counted.
        self._slots: dict[frozenset[str] | None, int] = {}
        self._slots_seen = -1
        #: Tickets without a consumer that can be dispatched, oldest first.
        self.ready: deque[Ticket] = deque()
        #: Tickets whose oldest message is a suspect. It goes out alone.
        self.suspects: deque[Ticket] = deque()
        #: Unix ms until when other work goes before suspects.
        self.rest_until = 0
        #: Heap of tickets that wait for the end of a backoff: (due ms, sequence, ticket).
        self.backoffs: list[tuple[int, int, Ticket]] = []
        self._backoff_sequence = 0
        self._turn = 0
        #: Tickets whose oldest message no consumer here can run.
        self.stranded = Stranded(self)
        #: Tickets that wait for the end of a backoff, with no message in memory.
        self.resting = Resting(self, now_ms)
        #: Id up to which entries are in the picture. A refill takes no newer ones: they would be handled twice.
        self.read_to = (0, 0)
        #: Whether some entries that were read before this term are not in the picture yet: those after `read_to`.
        self.behind = False
        #: Tickets whose record the next batch changes.
        self._touched: dict[Ticket, None] = {}
        #: Measured service time of each task, in ms.
        self.service_ms: dict[str, float] = {}

    # -- bounds --------------------------------------------------------------------------------------------------

    @property
    def has_enough_work(self) -> bool:
        """Whether the leader stops reading: enough tickets in memory are ready and wait only for room.

        The other messages stay unread in the stream. When the tickets in memory are blocked by messages in flight, the
        leader reads on, because there may be free tickets further on.
        """
        if self.held < ENOUGH_MESSAGES or self.full:
            return self.full
        slots = self._open_slots()
        if self.stranded.mixed:
            return self._each_has_enough_work(slots)
        enough = READY_PER_SLOT * sum(slots.values())
        return len(self.ready) > enough or len(self.ready) + sum(len(one.ready) for one in self.crowded) > enough

    def _each_has_enough_work(self, slots: dict[frozenset[str] | None, int]) -> bool:
        """Like `has_enough_work`, where consumers differ in their tasks: each group of consumers must have enough."""
        ready = dict.fromkeys(slots, 0)
        for consumer in self.crowded:
            if consumer.open:
                ready[consumer.tasks] += len(consumer.ready)
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

    # -- messages come in ------------------------------------------------------------------------------------------

    def ingest(self, message: Message, batch: Batch) -> None:
        """Takes in a message that is pending under the master's name. The messages of a ticket come in id order."""
        if self.parked and message.ticket in self.parked:
            self.shelve(self.parked[message.ticket], [message.id], batch)
            return
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            ticket = self.tickets[message.ticket] = Ticket(message.ticket, since=message.id)
        elif ticket.spilled_from is not None:
            ticket.waiting_known += 1
            return
        elif self.resting.leave(ticket, message.id):
            return
        elif self.has_enough(ticket, message.size):
            self.spill(ticket, message.id)
            return
        self.append(ticket, message)
        self.make_ready(ticket)

    def leave(self, ticket_id: str, id_: str, batch: Batch) -> None:
        """Notes a message that is pending under the master's name, and leaves it spilled.

        The messages of a ticket come in id order.
        """
        if ticket_id in self.parked:
            self.shelve(self.parked[ticket_id], [id_], batch)
            return
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            ticket = self.tickets[ticket_id] = Ticket(ticket_id, since=id_)
        if ticket.spilled_from is not None:
            ticket.waiting_known += 1
        elif not self.resting.leave(ticket, id_):
            self.spill(ticket, id_)

    def replay(self, message: Message, batch: Batch) -> None:
        """Takes in a dead message that is pending again, under the master's name.

        It goes to its place in id order, but not before a message that was begun.
        """
        ticket = self.parked.get(message.ticket)
        if ticket is not None:
            self.shelve(ticket, [message.id], batch)
            return
        key = id_key(message.id)
        if key > self.read_to:
            # A new leader has not read up to this id yet. It takes the message in when it gets there.
            return
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            ticket = self.tickets[message.ticket] = Ticket(message.ticket)
        self.older.add(ticket)
        # The message comes first, and may be of another task.
        self.stranded.free(ticket)
        if ticket.spilled_from is not None and key >= ticket.spilled_from:
            # It is read with the spilled messages, in its place. Taken in here as well, it would be there twice.
            return
        if self.resting.leave(ticket, message.id):
            return
        at = 1 if ticket.waiting and ticket.begun and not (ticket.run or ticket.front_id) else 0
        while at < len(ticket.waiting) and id_key(ticket.waiting[at].id) < key:
            at += 1
        if self.full or self.has_enough(ticket, message.size):
            # This message and all after it are spilled, so that many replays do not fill the memory.
            while len(ticket.waiting) > at:
                self.drop(ticket, ticket.waiting.pop())
            if not ticket.waiting:
                self.unqueue(ticket)
            self.spill(ticket, message.id)
            return
        ticket.waiting.insert(at, message)
        self.keep(ticket, message)
        self.make_ready(ticket)

    def refuse(self, refusal: Refusal, batch: Batch) -> None:
        """Makes an entry that can never be processed a dead letter at once. Its ticket does not wait for it."""
        batch.dead.append(dead_letters.refused(refusal, at_ms=self.now_ms()))
        batch.acknowledged.append(refusal.id)
        batch.count("dead")
        if self._historical:
            batch.history.append(row(refusal.id, What.REFUSED))

    def parked_name(self, ticket_id: str) -> str:
        """The name under which the messages of a parked ticket are pending."""
        return self.settings.keys.parked_consumer(self.settings.master, ticket_id)

    # -- ready for dispatch ----------------------------------------------------------------------------------------

    def make_ready(self, ticket: Ticket, *, first: bool = False) -> None:
        """Queues the ticket for dispatch, if its oldest message may go out. ``first``: before all queued tickets."""
        if ticket.queued or ticket.run or ticket.due_ms or not ticket.waiting:
            return
        if ticket.front_id or ticket.park_reason is not None:
            return
        if (self.stranded.runnable is not None or self.stranded.paused) and self.stranded.holds(ticket):
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
            ticket.turn = self._turn
            ready.append(ticket)

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
        ticket.queued = False
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
            ticket.queued = False
            ticket.consumer = None
            self.make_ready(ticket, first=True)
            if ticket.consumer is None:
                ticket.turn = 0
        self.ready.extendleft(reversed(ahead))

    def queue_anew(self) -> None:
        """Queues all tickets of the common queues again, because the consumers can run other tasks than before."""
        for queue in (self.ready, self.suspects):
            tickets = list(queue)
            queue.clear()
            for ticket in tickets:
                ticket.queued = False
                turn = ticket.turn
                self.make_ready(ticket)
                if ticket.queued:
                    ticket.turn = turn

    def wake(self, now_ms: int) -> None:
        """Makes tickets ready whose backoff is over. They go before all others.

        Otherwise a backlog would add its length to every backoff. It would also delay the tickets of a lost worker, and
        that delay must be bounded by the lease.
        """
        while self.backoffs and self.backoffs[0][0] <= now_ms:
            due, _, ticket = heapq.heappop(self.backoffs)
            if ticket.due_ms == due:
                ticket.due_ms = 0
                if not self.resting.wake(ticket):
                    self.make_ready(ticket, first=True)

    def hold_back(self, ticket: Ticket, due_ms: int) -> None:
        """Makes the oldest message of ``ticket`` wait until ``due_ms``."""
        ticket.due_ms = max(1, due_ms)
        self._backoff_sequence += 1
        heapq.heappush(self.backoffs, (ticket.due_ms, self._backoff_sequence, ticket))

    def put_in_flight(self, ticket: Ticket, consumer: Consumer, message: Message) -> None:
        """Adds ``message`` to the run of ``ticket`` at ``consumer``. Its bytes are in memory."""
        size = message.size
        self.bytes_in_flight += size
        consumer.messages += 1
        consumer.bytes += size
        ticket.run.append(message)
        self.in_flight[message.id] = ticket

    # -- runs come back --------------------------------------------------------------------------------------------

    def take_back(self, ticket: Ticket) -> None:
        """Puts the rest of the run back, before the waiting messages."""
        count = len(ticket.run)
        while ticket.run:
            message = ticket.run.pop()
            self.take_from_flight(ticket, message)
            ticket.waiting.appendleft(message)
            self.keep(ticket, message)
        self.run_over(ticket)
        if (
            count
            and len(ticket.waiting) > count
            and id_key(ticket.waiting[count].id) < id_key(ticket.waiting[count - 1].id)
        ):
            # An older message was replayed while these were in flight. It goes before those that were not begun.
            first = [ticket.waiting.popleft()] if ticket.begun else []
            rest = sorted(ticket.waiting, key=lambda message: id_key(message.id))
            ticket.waiting = deque([*first, *rest])
        if ticket.spilled_from is not None:
            # A message was replayed in the meantime and spilled. It goes before those that were not begun, too.
            while len(ticket.waiting) > ticket.begun and id_key(ticket.waiting[-1].id) > ticket.spilled_from:
                self.drop(ticket, ticket.waiting.pop())

    def take_from_flight(self, ticket: Ticket, message: Message) -> None:
        """Counts off a message that was in flight: it is not in flight or in memory any more."""
        del self.in_flight[message.id]
        size = message.size
        self.held -= 1
        self.bytes -= size
        self.bytes_in_flight -= size
        parcel = ticket.parcel
        if parcel is None:
            return
        consumer = parcel.consumer
        self.room_changed[consumer] = self.flight_changed[consumer] = None
        consumer.messages -= 1
        consumer.bytes -= size
        consumer.backlog_ms -= parcel.share_ms
        parcel.left -= 1
        if parcel.left == 0:
            consumer.parcels -= 1
            if consumer.parcels == 0:
                consumer.backlog_ms = 0.0

    def run_over(self, ticket: Ticket) -> None:
        """Ends the run of ``ticket``: no message of it is in flight any more."""
        consumer = ticket.consumer
        if consumer is not None:
            consumer.tickets.discard(ticket)
            if consumer.alone is ticket:
                self.end_solitude(consumer)
        ticket.fence = ticket.run_fence = 0
        ticket.parcel = None
        ticket.tail = ""

    def end_solitude(self, consumer: Consumer) -> None:
        """Ends the time in which ``consumer`` was kept for a suspect.

        With few consumers, other work goes first now, for long enough to keep the suspects' share.
        """
        consumer.alone = None
        alike = sum(1 for other in self.consumers.values() if other.serving and other.tasks == consumer.tasks)
        now_ms = self.now_ms()
        spent_ms = now_ms - consumer.alone_since
        self.rest_until = max(self.rest_until, now_ms + int(spent_ms * max(0.0, SUSPECTS_SHARE / max(1, alike) - 1)))

    # -- parked tickets --------------------------------------------------------------------------------------------

    def park(self, ticket: Ticket, reason: str, batch: Batch) -> None:
        """Parks the ticket as soon as no message of it is in flight."""
        self.touch(ticket, batch)
        self.unqueue(ticket)
        ticket.park_reason = reason

    def shelve(self, ticket: Ticket, ids: list[str], batch: Batch) -> None:
        """Puts messages of a parked ticket aside: they become pending under the ticket's own name."""
        batch.shelve(self.parked_name(ticket.id), ids)
        ticket.shelved += len(ids)
        oldest = min(map(id_key, ids), default=None)
        if oldest is not None and (ticket.parked_from is None or oldest < ticket.parked_from):
            ticket.parked_from = oldest

    def _stand_still(self, ticket: Ticket, batch: Batch) -> None:
        """Writes into the batch that the ticket is parked, and removes its messages from memory."""
        ids = [message.id for message in ticket.waiting]
        if self.resting.rests(ticket):
            ids = self.resting.known(ticket)
            self.resting.drop(ticket)
        self.shelve(ticket, ids, batch)
        if ticket.record.startswith(AWAITING):
            batch.due.append(ticket.id)
        if not ticket.begun:
            ticket.front_id = ""
        elif ticket.waiting and not ticket.front_id:
            # If ``front_id`` is set, the message was not read again after the last release.
            ticket.front_id = ticket.waiting[0].id
        begun = [ticket.front_id] if ticket.front_id else []
        reason = ticket.park_reason or ""
        tail = records.tail("", "", ticket.attempt, begun, self.now_ms(), reason, ticket.losses, ticket.lost)
        ticket.record = records.record(records.PARKED, tail)
        batch.records += (ticket.id, ticket.record)
        self.forget_waiting(ticket)
        ticket.due_ms = 0
        ticket.park_reason = None
        ticket.parked = True
        ticket.consumer = None
        self.spilled.discard(ticket)
        self.stranded.drop(ticket)
        self._forget(ticket)
        self.parked[ticket.id] = ticket
        batch.count("parked")

    def unpark(self, ticket: Ticket, batch: Batch) -> None:
        """Releases the ticket. Its messages are pending under the master's name again, and count as spilled."""
        del self.parked[ticket.id]
        ticket.parked = False
        self.tickets[ticket.id] = ticket
        self.older.add(ticket)
        if ticket.parked_from is not None:
            ticket.spilled_from = min(ticket.parked_from, ticket.spilled_from or ticket.parked_from)
        ticket.parked_from = None
        ticket.shelved = 0
        if ticket.front_id:
            # Even when it is not pending: someone acknowledged it by hand, and the refill finds that out.
            front = id_key(ticket.front_id)
            ticket.spilled_from = min(front, ticket.spilled_from or front)
        if ticket.spilled_from is not None:
            self.spilled.add(ticket)
        self.touch(ticket, batch)

    # -- building a batch --------------------------------------------------------------------------------------------

    def touch(self, ticket: Ticket, batch: Batch) -> None:
        """Notes that the batch changes the record of ``ticket``, and which text the record must have until then."""
        if ticket not in self._touched:
            self._touched[ticket] = None
            batch.expected[ticket.id] = ticket.record

    def close(self, batch: Batch, dispatched: set[Ticket]) -> None:
        """Writes the new records of all touched tickets into the batch."""
        for ticket in self._touched:
            if ticket in dispatched:
                continue
            if ticket.run:
                self._close_run(ticket, batch)
            elif ticket.park_reason is not None:
                self._stand_still(ticket, batch)
            elif (ticket.due_ms and (ticket.waiting or ticket.front_id)) or ticket.begun:
                # Even when it is due and no consumer has room: its attempts and losses must outlive this leader.
                front = ticket.front_id or ticket.waiting[0].id
                why = (ticket.cause, ticket.losses, ticket.lost)
                tail = records.tail("", "", ticket.attempt, [front], self.now_ms(), *why)
                ticket.record = records.record(records.AWAITING, tail)
                batch.records += (ticket.id, ticket.record)
                batch.retries += (ticket.due_ms or self.now_ms(), ticket.id)
                if ticket.begun:
                    self.resting.rest(ticket)
            else:
                if ticket.record:
                    batch.released.append(ticket.id)
                    if ticket.record.startswith(AWAITING):
                        batch.due.append(ticket.id)
                ticket.record = ""
                self.drop_if_done(ticket)

    def _close_run(self, ticket: Ticket, batch: Batch) -> None:
        consumer = ticket.consumer
        assert consumer is not None
        ids = [message.id for message in ticket.run]
        cause = "" if ticket.park_reason is None else records.PARK_AFTER + ticket.park_reason
        why = (cause, ticket.losses, ticket.lost)
        ticket.tail = records.tail(consumer.name, consumer.incarnation, ticket.attempt, ids, ticket.dispatched_ms, *why)
        ticket.record = records.record(ticket.fence, ticket.tail)
        batch.records += (ticket.id, ticket.record)

    def committed(self, dispatched: dict[Ticket, int], base: int) -> None:
        """Takes the fences of a written batch into the picture. ``dispatched`` maps tickets to fence offsets."""
        self._touched.clear()
        for ticket, offset in dispatched.items():
            ticket.fence = ticket.run_fence = base + offset
            ticket.record = records.record(ticket.fence, ticket.tail)

    def drop_if_done(self, ticket: Ticket) -> None:
        """Forgets the ticket if it has no undone message."""
        if not (ticket.waiting or ticket.run or ticket.due_ms or ticket.spilled_from or ticket.front_id):
            self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self.tickets.pop(ticket.id, None)
        self.older.discard(ticket)
        self.stranded.drop(ticket)
