"""The messages of a lane that are in memory, and their bounds: a number of messages and a number of bytes. No I/O.

A ticket keeps only its oldest messages in memory (`Window.has_enough`). The later ones are *spilled*: they stay pending
in Redis. They are read again, by place, when the ticket has used up most of the messages that it has in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import NONE_IN_MEMORY, Ticket
from bridge.leader.picture.spilled import Spilled

if TYPE_CHECKING:
    from bridge.routing.ids import Place
    from bridge.routing.messages import Message
    from bridge.settings.lane import LaneSettings

#: Most messages of one ticket in memory.
TICKET_CAP = 1000
#: Messages that one ticket may always have in memory, even when many tickets wait for a message in flight.
TICKET_FLOOR = 16
#: Bytes that one ticket may always have in memory, even when many tickets wait for a message in flight.
TICKET_FLOOR_BYTES = 64 * 1024


class Window:
    """The first base class of `bridge.leader.picture.lane.Lane`: its tickets, and how much memory their messages use.

    It is a base class, not a part, because every message uses it several times.
    """

    def __init__(self, settings: LaneSettings) -> None:
        self.settings = settings
        #: Tickets by id, in the order in which they came (`Ticket.since`).
        self.tickets: dict[str, Ticket] = {}
        #: Id of the oldest message -> resting ticket (`bridge.leader.picture.backoffs`).
        self.rested: dict[str, Ticket] = {}
        #: Messages in memory, their bytes, and the bytes of those in flight.
        self.held = 0
        self.bytes = 0
        self.bytes_in_flight = 0
        #: Tickets with spilled messages.
        self.spilled = Spilled()

    # -- bounds of the memory --------------------------------------------------------------------------------------

    @property
    def cap(self) -> int:
        """Most messages that one ticket may have in memory now."""
        return max(TICKET_FLOOR, min(TICKET_CAP, self.settings.window // self._awake))

    @property
    def _awake(self) -> int:
        """Number of tickets that need messages in memory, plus one for the next ticket."""
        return len(self.tickets) - len(self.rested) + 1

    @property
    def byte_cap(self) -> int:
        """Most bytes that one ticket may have in memory now, not counting its first message."""
        window = self.settings.window_bytes
        return max(TICKET_FLOOR_BYTES, min(window // 4, window // self._awake))

    def has_enough(self, ticket: Ticket, size: int) -> bool:
        """Whether the ticket must not have one more message, of ``size`` bytes, in memory."""
        count = len(ticket.waiting)
        if count >= TICKET_FLOOR and count >= self.cap:
            return True
        return ticket.bytes > TICKET_FLOOR_BYTES and ticket.bytes + size > self.byte_cap

    @property
    def full(self) -> bool:
        """Whether the memory bounds of the lane are reached."""
        return self.held >= self.settings.window or self.bytes >= self.settings.window_bytes

    # -- messages come and go --------------------------------------------------------------------------------------

    def append(self, ticket: Ticket, message: Message) -> None:
        """Adds the next message of ``ticket``, in id order."""
        if ticket.front_id == message.id:
            self.put_first(ticket, message)
            return
        ticket.own_waiting().append(message)
        self.keep(ticket, message)

    def keep(self, ticket: Ticket, message: Message) -> None:
        """Counts a waiting message that is in memory now."""
        size = message.size
        self.held += 1
        self.bytes += size
        ticket.bytes += size

    def drop_first(self, ticket: Ticket) -> Message:
        """Removes the first waiting message from the picture, and returns it."""
        message = ticket.waiting.popleft()
        self.drop(ticket, message)
        return message

    def drop(self, ticket: Ticket, message: Message) -> None:
        """Counts off a waiting message that is not in memory any more."""
        size = message.size
        self.held -= 1
        self.bytes -= size
        ticket.bytes -= size

    def put_first(self, ticket: Ticket, message: Message) -> None:
        """Puts the message that was begun before first, even before older ones that were replayed."""
        ticket.front_id = ""
        ticket.own_waiting().appendleft(message)
        self.keep(ticket, message)

    def spill(self, ticket: Ticket, place: Place) -> None:
        """Spills the messages of ``ticket`` from ``place`` on: they stay in Redis only."""
        ticket.spilled_from = place
        self.spilled.add(ticket)

    def let_go(self, ticket: Ticket) -> None:
        """Spills all waiting messages of ``ticket``."""
        places = [message.place for message in ticket.waiting]
        if not places:
            return
        if ticket.begun and not ticket.front_id:
            ticket.front_id = ticket.waiting[0].id
        if ticket.spilled_from is not None:
            places.append(ticket.spilled_from)
        ticket.spilled_from = min(places)
        self.spilled.add(ticket)
        self.forget_waiting(ticket)

    def forget_waiting(self, ticket: Ticket) -> None:
        """Removes all waiting messages of ``ticket`` from memory."""
        self.held -= len(ticket.waiting)
        self.bytes -= ticket.bytes
        ticket.bytes = 0
        ticket.waiting = NONE_IN_MEMORY
