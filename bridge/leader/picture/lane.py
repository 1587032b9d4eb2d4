"""The leader's picture of its lane: tickets, waiting messages, messages in flight. No I/O.

Everything here can be rebuilt from Redis (invariant I6): messages in flight from the ticket records, waiting messages
from the master's own pending entries. The leader fills a `Batch` from this picture and writes it with one script. Only
then does it take the new fences into the picture (`written`). When the script is refused, or its reply is lost, the
leader throws the whole picture away and reads the lane again. It never repairs the picture by guessing.

The picture has four base classes, one for each thing that it keeps: the messages in memory (`Window`), the messages in
flight (`Flight`), the tickets that can be dispatched (`Ready`), and the records of tickets (`TicketRecords`). They are
base classes, not parts, because every message uses all of them several times. `Lane` adds the messages that come in.

The messages of a ticket are in the order of their ids, with one exception. A message that was begun stays first, even
when an older message is replayed (`replay`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.ticket_records import TicketRecords
from bridge.protocol import dead_letters
from bridge.routing.history import What, row
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.routing.batch import Batch
    from bridge.routing.messages import Message, Refusal
    from bridge.settings.lane import LaneSettings


class Lane(TicketRecords):
    """The picture of one lane. ``now_ms``: Unix time by the leader's clock."""

    def __init__(self, settings: LaneSettings, *, now_ms: Callable[[], int]) -> None:
        super().__init__(settings, now_ms)
        #: Whether the history of the lane is kept.
        self._historical = settings.history > 0
        #: Id up to which entries are in the picture. A refill takes no newer ones: they would be handled twice.
        self.read_to = (0, 0)
        #: Whether some entries that were read before this term are not in the picture yet: those after `read_to`.
        self.behind = False
        #: Measured service time of each task, in ms.
        self.service_ms: dict[str, float] = {}

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

    def leave_out(self, id_: str, batch: Batch) -> None:
        """Acknowledges a message that the lane does not want. Its ticket does not wait for it."""
        batch.acknowledged.append(id_)
        batch.count("left_out")
        if self._historical:
            batch.history.append(row(id_, What.LEFT_OUT))

    def skip(self, id_: str, batch: Batch) -> None:
        """Acknowledges a message that the lane does not handle, since it is too far behind."""
        batch.acknowledged.append(id_)
        batch.count("skipped")
        if self._historical:
            batch.history.append(row(id_, What.SKIPPED))
