"""The messages of a lane that are in flight, and the consumers that have them. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import STRETCH_FIRST
from bridge.leader.picture.window import Window

if TYPE_CHECKING:
    from bridge.leader.picture.pieces import Consumer, Ticket
    from bridge.leader.picture.times import Times
    from bridge.routing.messages import Message
    from bridge.settings.lane import LaneSettings

#: One of this many consumers may be kept for suspects while other work waits (`bridge.leader.picture.suspects`).
SUSPECTS_SHARE = 4


class Flight(Window):
    """The runs in flight, and what each consumer has of them. A base class of `bridge.leader.picture.lane.Lane`."""

    def __init__(self, settings: LaneSettings, clock: Times) -> None:
        super().__init__(settings)
        self.clock = clock
        #: For durations alone.
        self.now_ms = clock.lane_ms
        #: Id of a message in flight -> its ticket.
        self.in_flight: dict[str, Ticket] = {}
        self.consumers: dict[str, Consumer] = {}
        #: Consumers whose room, or whose queue here, changed since the planner looked.
        self.room_changed: dict[Consumer, None] = {}
        #: Those of whose work in flight something landed or went out since `bridge.leader.picture.outcome_pause`
        #: looked.
        self.flight_changed: dict[Consumer, None] = {}
        #: Unix ms until when other work goes before suspects.
        self.rest_until = 0

    def put_in_flight(self, ticket: Ticket, consumer: Consumer, message: Message) -> None:
        """Adds ``message`` to the run of ``ticket`` at ``consumer``. Its bytes are in memory."""
        size = message.size
        self.bytes_in_flight += size
        consumer.messages += 1
        consumer.bytes += size
        ticket.run.append(message)
        self.in_flight[message.id] = ticket

    def put_first_in_flight(self, ticket: Ticket, consumer: Consumer, count: int) -> list[str]:
        """Moves the first ``count`` waiting messages of ``ticket`` to its run at ``consumer``. Returns their ids."""
        waiting, run, in_flight = ticket.waiting, ticket.run, self.in_flight
        ids = []
        size = 0
        for _ in range(count):
            message = waiting.popleft()
            size += message.size
            run.append(message)
            in_flight[message.id] = ticket
            ids.append(message.id)
        ticket.bytes -= size
        self.bytes_in_flight += size
        consumer.messages += count
        consumer.bytes += size
        return ids

    def take_back(self, ticket: Ticket) -> None:
        """Puts the rest of the run back, before the waiting messages."""
        count = len(ticket.run)
        while ticket.run:
            message = ticket.run.pop()
            self.take_from_flight(ticket, message)
            ticket.own_waiting().appendleft(message)
            self.keep(ticket, message)
        self.run_over(ticket)
        if count and len(ticket.waiting) > count and ticket.waiting[count].place < ticket.waiting[count - 1].place:
            # An older message was replayed while these were in flight. It goes before those that were not begun.
            first = [ticket.waiting.popleft()] if ticket.begun else []
            rest = sorted(ticket.waiting, key=lambda message: message.place)
            ticket.waiting = deque([*first, *rest])
        if ticket.spilled_from is not None:
            # A message was replayed in the meantime and spilled. It goes before those that were not begun, too.
            while len(ticket.waiting) > ticket.begun and ticket.waiting[-1].place > ticket.spilled_from:
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
                consumer.stretch = max(consumer.stretch, STRETCH_FIRST)

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
