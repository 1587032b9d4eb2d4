"""Decides which tickets go to which consumer in one step.

A ticket without a consumer gets one by the lane's policy, among those with room (`bridge.leader.picture.capacity`). A
ticket with a consumer stays there. It moves only when it waits for room while another consumer has an idle slot. No
message of it is in flight then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from bridge.leader.picture.capacity import Room, Tasks
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.leader.picture.ready import queue_by_turn
from bridge.routing.policies import PolicyName, Ring, Rings

#: Most tickets at the end of a consumer's queue that are searched for one that an idle consumer can run.
LOOKED_AT = 64


class Assignment:
    """Assigns the tickets of one lane. ``cost``: ticket -> the expected cost of its next run, in ms."""

    def __init__(self, lane: Lane, ahead_ms: float, bundle_ms: float, cost: Callable[[Ticket], float]) -> None:
        self._lane = lane
        self._cost = cost
        self.room = Room(lane, ahead_ms, bundle_ms)
        self._pinned = lane.settings.policy is PolicyName.RENDEZVOUS
        self._rings = Rings()
        #: `Consumer.changes` when the rings were updated last.
        self._ringed = -1
        #: Task -> the consumers, by name, that can own its tickets, and the ring that chooses the owner.
        self._owners: dict[str, tuple[dict[str, Consumer], Ring]] = {}
        self._turn = 0
        #: Task -> consumers at which its tickets may wait, and `Room.seen` when that was found out.
        self._able: dict[str, list[Consumer]] = {}
        self._able_seen = -1

    def run(self) -> dict[Consumer, list[Ticket]]:
        """The tickets that each consumer gets now. To be followed by `sent`."""
        lane, room = self._lane, self.room
        room.begin()
        if not (lane.ready or lane.crowded):
            # No ticket needs room now. The next run looks at what changed.
            return {}
        changed: Iterable[Consumer] = room.look()
        self._take(changed)
        if lane.ready:
            if self._pinned:
                changed = self._pin()
            elif lane.stranded.mixed:
                self._spread_by_task()
            else:
                self._spread()
            # Tickets that were behind one without a consumer, if there is room left for them.
            self._take(changed)
        if lane.crowded and room.idle and not self._pinned:
            self._move()
        if lane.fresh_ready:
            self._send_beyond()
        return room.chosen

    def sent(self) -> None:
        """The tickets that `run` chose are sent."""
        self.room.clear()

    def _send_beyond(self) -> None:
        """Assigns tickets with fresh messages, which are few, although no consumer has room: a worker runs them before
        what it has.
        """
        lane, room = self._lane, self.room
        chosen = {ticket for tickets in room.chosen.values() for ticket in tickets}
        for ticket in lane.fresh_ready:
            if ticket in chosen:
                continue
            if not room.fits():
                return
            consumer = room.beyond(ticket)
            if consumer is not None:
                (lane.ready if ticket.consumer is None else ticket.consumer.ready).remove(ticket)
                room.choose(consumer, ticket, self._cost(ticket))

    def _take(self, consumers: Iterable[Consumer]) -> None:
        """Gives those of ``consumers`` that have room the tickets that wait for them."""
        lane, room = self._lane, self.room
        unassigned = lane.ready
        for consumer in consumers:
            ready = consumer.ready
            if not ready:
                lane.crowded.pop(consumer, None)
                continue
            before = len(ready)
            while ready and room.has(consumer):
                if unassigned and not self._pinned and unassigned[0].turn < ready[0].turn:
                    # Tickets that always have work must not keep out one without a consumer that has waited longer.
                    break
                if not room.fits():
                    lane.room_changed[consumer] = None
                    break
                ticket = ready.popleft()
                room.choose_next(consumer, ticket, self._cost(ticket))
            if len(ready) < before:
                room.rate(consumer)

    def _spread(self) -> None:
        lane, room = self._lane, self.room
        ready = lane.ready
        while ready and room.fits() and (consumer := room.for_ticket(ready[0])) is not None:
            ticket = self._first_of(ready, consumer.ready).popleft()
            room.choose(consumer, ticket, self._cost(ticket))

    @staticmethod
    def _first_of(ready: deque[Ticket], waiting: deque[Ticket]) -> deque[Ticket]:
        """The queue whose first ticket is next: ``ready``, or that of the tickets that wait at a consumer."""
        return waiting if waiting and waiting[0].turn < ready[0].turn else ready

    def _spread_by_task(self) -> None:
        """Like `_spread`, where consumers differ in the tasks that they can run.

        No ticket stays without a consumer, because it could block tickets that another consumer has room for. When no
        consumer has room for it, it waits at one that can run it.
        """
        lane, room = self._lane, self.room
        ready = lane.ready
        while ready and room.fits():
            consumer = room.for_ticket(ready[0])
            if consumer is not None:
                ticket = self._first_of(ready, consumer.ready).popleft()
                room.choose(consumer, ticket, self._cost(ticket))
                continue
            ticket = ready.popleft()
            those = self._able_to_wait_at(ticket.waiting[0].task)
            if not those:
                lane.left_queue(ticket)
                lane.stranded.add(ticket)
                continue
            # The one of two with the shorter queue. Asking all consumers for each ticket would cost too much.
            self._turn += 1
            pair = (those[self._turn % len(those)], those[(self._turn * 7 + 3) % len(those)])
            self._wait_at(min(pair, key=lambda c: len(c.ready) / c.slots), ticket)

    def _able_to_wait_at(self, task: str) -> list[Consumer]:
        if self._able_seen != self.room.seen:
            self._able_seen = self.room.seen
            self._able = {}
        those = self._able.get(task)
        if those is None:
            those = [c for c in self.room.open.values() if c.runs(task)]
            # A consumer that is kept for a suspect takes other tickets again later.
            those = those or [c for c in self._lane.consumers.values() if c.serving and c.runs(task)]
            self._able[task] = those
        return those

    def _pin(self) -> dict[Consumer, None]:
        """Assigns each ticket to its owner by rendezvous hashing, whatever the load of that consumer. Returns the
        consumers that got tickets and are open.

        Consumers that cannot run the ticket's task are skipped: the ticket goes to the next in its own order.
        """
        lane, room = self._lane, self.room
        ready = lane.ready
        if self._ringed != Consumer.changes:
            self._ringed = Consumer.changes
            self._rings.update(c.name for c in lane.consumers.values())
            self._owners = {}
        got: dict[Consumer, None] = {}
        while ready and room.open:
            ticket = ready.popleft()
            among, ring = self._owners_of(ticket.waiting[0].task)
            if not among:
                lane.left_queue(ticket)
                lane.stranded.add(ticket)
                continue
            consumer = among[ring.owner(ticket.id, among)]
            self._wait_at(consumer, ticket)
            got[consumer] = None
        return {consumer: None for consumer in got if consumer.open}

    def keeps(self, ticket: Ticket, consumer: Consumer, task: str) -> bool:
        """Whether a message of ``ticket`` with this task may follow in a run at ``consumer``, which can run it."""
        if not (self._pinned and self._lane.stranded.mixed):
            return True
        among, ring = self._owners_of(task)
        return bool(among) and among[ring.owner(ticket.id, among)] is consumer

    def _owners_of(self, task: str) -> tuple[dict[str, Consumer], Ring]:
        """The consumers that can own a ticket whose oldest message has this task, and their ring."""
        if not self._lane.stranded.mixed:
            task = ""
        found = self._owners.get(task)
        if found is None:
            among = {c.name: c for c in self._able_to_wait_at(task)} if task else self.room.open
            found = self._owners[task] = (among, self._rings.ring_for(among))
        return found

    def _wait_at(self, consumer: Consumer, ticket: Ticket) -> None:
        ticket.consumer = consumer
        if ticket.turn <= 0:
            consumer.ready.appendleft(ticket)
        elif self._lane.out_of_turn:
            queue_by_turn(consumer.ready, ticket)
        else:
            consumer.ready.append(ticket)
        self._lane.crowded[consumer] = None

    def _move(self) -> None:
        """Moves tickets that wait for room at one consumer to another one that has an idle slot."""
        lane, room = self._lane, self.room
        crowded = sorted(lane.crowded, key=lambda c: len(c.ready), reverse=True)
        #: Sets of tasks for which no ticket waits elsewhere.
        vain: set[Tasks] = set()
        for idle in list(room.idle):
            while idle in room.idle and idle.tasks not in vain and room.fits():
                ticket = self._movable(idle, crowded)
                if ticket is None:
                    # Another idle consumer may take a ticket that waits at this one.
                    if not idle.ready:
                        vain.add(idle.tasks)
                    break
                # It did not wait for its turn. Others must not, either.
                ticket.turn = 0
                room.choose(idle, ticket, self._cost(ticket))

    def _movable(self, idle: Consumer, crowded: list[Consumer]) -> Ticket | None:
        """A ticket that ``idle`` can run, from the end of another consumer's queue; None: there is none."""
        lane = self._lane
        at_others = 0
        while at_others < len(crowded):
            other = crowded[at_others]
            if not other.ready:
                lane.crowded.pop(other, None)
                del crowded[at_others]
                continue
            at_others += 1
            if other is idle:
                continue
            if not lane.stranded.mixed:
                return other.ready.pop()
            for at in range(len(other.ready) - 1, max(-1, len(other.ready) - 1 - LOOKED_AT), -1):
                ticket = other.ready[at]
                if idle.runs(ticket.waiting[0].task):
                    del other.ready[at]
                    return ticket
        return None
