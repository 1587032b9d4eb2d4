"""Decides which tickets go to which consumer in one step.

A ticket without a consumer gets one by the lane's policy, among those with room (`bridge.leader.picture.capacity`). A
ticket that has one stays there; only when it waits for room while another consumer has an idle process does it move:
nothing of it is in flight then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bridge.leader.picture.capacity import Room, Tasks
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.routing.messages import Message
from bridge.routing.policies import PolicyName, Ring

#: Tickets at the end of a consumer's queue among which one is looked for that an idle consumer can run.
LOOKED_AT = 64


class Assignment:
    """Works on one lane. ``cost`` tells what a message is expected to cost, in ms."""

    def __init__(self, lane: Lane, ahead_ms: float, cost: Callable[[Message], float]) -> None:
        self._lane = lane
        self._cost = cost
        self.room = Room(lane, ahead_ms)
        self._pinned = lane.settings.policy is PolicyName.RENDEZVOUS
        self._ring = Ring()
        #: `Consumer.changes` when it was brought up to date.
        self._ringed = -1
        self._turn = 0
        #: Task -> consumers at which its tickets may wait, and `Room.seen` when they were looked for.
        self._able: dict[str, list[Consumer]] = {}
        self._able_seen = -1

    def run(self) -> dict[Consumer, list[Ticket]]:
        """What each consumer gets now. To be followed by `sent`."""
        lane, room = self._lane, self.room
        room.begin()
        if not (lane.ready or lane.crowded):
            # What changed is looked at when somebody wants room.
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
            # Those that were behind a ticket without a consumer, when there is room left for them.
            self._take(changed)
        if lane.crowded and room.idle and not self._pinned:
            self._move()
        return room.chosen

    def sent(self) -> None:
        """What `run` chose is on its way."""
        self.room.clear()

    def _take(self, consumers: Iterable[Consumer]) -> None:
        """Those of ``consumers`` that have room take from what waits for them."""
        lane, room = self._lane, self.room
        unassigned = lane.ready
        for consumer in consumers:
            ready = consumer.ready
            if not ready:
                lane.crowded.pop(consumer, None)
                continue
            while ready and room.has(consumer):
                if unassigned and not self._pinned and unassigned[0].turn < ready[0].turn:
                    # Tickets that always have work must not keep out one that waits for any consumer at all.
                    break
                if not room.fits():
                    lane.room_changed[consumer] = None
                    break
                ticket = ready.popleft()
                room.choose(consumer, ticket, self._cost(ticket.waiting[0]))

    def _spread(self) -> None:
        lane, room = self._lane, self.room
        ready = lane.ready
        while ready and room.fits() and (consumer := room.for_ticket(ready[0])) is not None:
            ticket = ready.popleft()
            room.choose(consumer, ticket, self._cost(ticket.waiting[0]))

    def _spread_by_task(self) -> None:
        """The same where consumers differ in what they can run. No ticket stays without a consumer: it would stand
        before others that somebody else has room for. Without room it waits at one that can run it.
        """
        lane, room = self._lane, self.room
        ready = lane.ready
        while ready and room.fits():
            ticket = ready.popleft()
            consumer = room.for_ticket(ticket)
            if consumer is not None:
                room.choose(consumer, ticket, self._cost(ticket.waiting[0]))
                continue
            those = self._able_to_wait_at(ticket.waiting[0].task)
            if not those:
                ticket.queued = False
                lane.stranded.add(ticket)
                continue
            # The less crowded of two, in turn: nobody asks all of them for each ticket.
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
            # One that is kept for a message alone takes others again, by and by.
            those = those or [c for c in self._lane.consumers.values() if c.serving and c.runs(task)]
            self._able[task] = those
        return those

    def _pin(self) -> dict[Consumer, None]:
        """The policy names one consumer whatever its load, and the ticket waits for that one; who got tickets."""
        lane, room = self._lane, self.room
        ready = lane.ready
        if self._ringed != Consumer.changes:
            self._ringed = Consumer.changes
            self._ring.update(c.name for c in lane.consumers.values())
        named: dict[str, dict[str, Consumer]] = {}
        got: dict[Consumer, None] = {}
        while ready and room.open:
            ticket = ready.popleft()
            task = ticket.waiting[0].task
            among = room.open
            if lane.stranded.mixed:
                if task not in named:
                    named[task] = {c.name: c for c in self._able_to_wait_at(task)}
                among = named[task]
                if not among:
                    ticket.queued = False
                    lane.stranded.add(ticket)
                    continue
            consumer = among[self._ring.owner(ticket.id, among)]
            self._wait_at(consumer, ticket)
            got[consumer] = None
        return {consumer: None for consumer in got if consumer.open}

    def _wait_at(self, consumer: Consumer, ticket: Ticket) -> None:
        ticket.consumer = consumer
        if ticket.turn <= 0:
            consumer.ready.appendleft(ticket)
        else:
            consumer.ready.append(ticket)
        self._lane.crowded[consumer] = None

    def _move(self) -> None:
        """Tickets that wait for room at one consumer go to another that has an idle slot."""
        lane, room = self._lane, self.room
        crowded = sorted(lane.crowded, key=lambda c: len(c.ready), reverse=True)
        #: What idle consumers can run, of whom it is known that nothing waits elsewhere.
        vain: set[Tasks] = set()
        for idle in list(room.idle):
            while idle in room.idle and idle.tasks not in vain and room.fits():
                ticket = self._movable(idle, crowded)
                if ticket is None:
                    # Another idle consumer might take what waits at this one.
                    if not idle.ready:
                        vain.add(idle.tasks)
                    break
                room.choose(idle, ticket, self._cost(ticket.waiting[0]))

    def _movable(self, idle: Consumer, crowded: list[Consumer]) -> Ticket | None:
        """Of the last tickets that wait at others, one that ``idle`` can run."""
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
