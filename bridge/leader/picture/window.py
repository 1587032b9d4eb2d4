"""What of a lane is in memory, and how much that may be: in messages and in bytes. No I/O.

A ticket keeps only its oldest messages here (`Window.has_enough`). The later ones are *spilled*: they stay pending in
Redis, and are read again, by id, when the ticket has worked off most of what it has here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.routing.messages import Message
    from bridge.settings.lane import LaneSettings

#: Most messages of one ticket in memory.
TICKET_CAP = 1000
#: Fewest, when many tickets are blocked.
TICKET_FLOOR = 16
#: Bytes of one ticket that may be in memory, when many tickets are blocked.
TICKET_FLOOR_BYTES = 64 * 1024


class Window:
    """The base of `bridge.leader.picture.lane.Lane`: its tickets, and the account of their messages. A base and not a
    part, since each message uses it several times.
    """

    def __init__(self, settings: LaneSettings) -> None:
        self.settings = settings
        #: In the order in which they came: by their `Ticket.since`.
        self.tickets: dict[str, Ticket] = {}
        #: Id of the oldest message -> ticket that waits out a backoff, with nothing in memory
        #: (`bridge.leader.picture.backoffs`).
        self.rested: dict[str, Ticket] = {}
        #: Messages in memory, what they cost there, and what those of them that are in flight do.
        self.held = 0
        self.bytes = 0
        self.bytes_in_flight = 0
        #: Those of whose messages the later ones are not in memory.
        self.spilled: set[Ticket] = set()

    # -- how much there may be -------------------------------------------------------------------------------------

    @property
    def cap(self) -> int:
        """Messages that one ticket may have in memory now."""
        return max(TICKET_FLOOR, min(TICKET_CAP, self.settings.window // self._awake))

    @property
    def _awake(self) -> int:
        """Tickets that want to have messages in memory, and the next one."""
        return len(self.tickets) - len(self.rested) + 1

    @property
    def byte_cap(self) -> int:
        """Bytes that the messages of one ticket may have in memory now, beside the first one."""
        window = self.settings.window_bytes
        return max(TICKET_FLOOR_BYTES, min(window // 4, window // self._awake))

    def has_enough(self, ticket: Ticket, size: int) -> bool:
        """Whether one more message, of ``size`` bytes, of the ticket shall not be in memory."""
        count = len(ticket.waiting)
        if count >= TICKET_FLOOR and count >= self.cap:
            return True
        return ticket.bytes > TICKET_FLOOR_BYTES and ticket.bytes + size > self.byte_cap

    @property
    def full(self) -> bool:
        """Whether no more may be in memory."""
        return self.held >= self.settings.window or self.bytes >= self.settings.window_bytes

    # -- what comes, and goes --------------------------------------------------------------------------------------

    def append(self, ticket: Ticket, message: Message) -> None:
        """The next message of ``ticket``, by its id, takes its place."""
        if ticket.front_id == message.id:
            self.put_first(ticket, message)
            return
        ticket.waiting.append(message)
        self.keep(ticket, message)

    def keep(self, ticket: Ticket, message: Message) -> None:
        """A message that waits is in memory now."""
        size = message.size
        self.held += 1
        self.bytes += size
        ticket.bytes += size

    def drop_first(self, ticket: Ticket) -> Message:
        """Takes the first message that waits out of the picture."""
        message = ticket.waiting.popleft()
        self.drop(ticket, message)
        return message

    def drop(self, ticket: Ticket, message: Message) -> None:
        """A message that waited is not in memory any more."""
        size = message.size
        self.held -= 1
        self.bytes -= size
        ticket.bytes -= size

    def put_first(self, ticket: Ticket, message: Message) -> None:
        """The message that was begun before comes first, whatever was put back meanwhile."""
        ticket.front_id = ""
        ticket.waiting.appendleft(message)
        self.keep(ticket, message)

    def spill(self, ticket: Ticket, from_id: str) -> None:
        """Leaves the messages of ``ticket`` from ``from_id`` on in Redis."""
        ticket.spilled_from = id_key(from_id)
        self.spilled.add(ticket)

    def let_go(self, ticket: Ticket) -> None:
        """No message of ``ticket`` that waits is in memory any more: they are spilled, all of them."""
        ids = [id_key(message.id) for message in ticket.waiting]
        if not ids:
            return
        if ticket.begun and not ticket.front_id:
            ticket.front_id = ticket.waiting[0].id
        if ticket.spilled_from is not None:
            ids.append(ticket.spilled_from)
        ticket.spilled_from = min(ids)
        self.spilled.add(ticket)
        self.forget_waiting(ticket)

    def forget_waiting(self, ticket: Ticket) -> None:
        """No message that waits of ``ticket`` is in memory any more."""
        self.held -= len(ticket.waiting)
        self.bytes -= ticket.bytes
        ticket.bytes = 0
        ticket.waiting.clear()
