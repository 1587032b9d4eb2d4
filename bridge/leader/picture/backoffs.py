"""Resting tickets: they wait for the end of a backoff, with no message in memory. No I/O.

The ticket's record names its oldest message, so only the id of that message is kept here. The later messages are
spilled. So resting tickets do not use up the window, however many there are, and reading goes on past them. When its
backoff is over, a ticket is *due* until its oldest message was read again (`bridge.leader.stream.backoffs_over`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket

if TYPE_CHECKING:
    from bridge.leader.picture.window import Window
    from bridge.routing.ids import Place

#: Shortest backoff, in ms, for which a ticket rests. A shorter one does not justify reading its messages again.
NEAR_MS = 1000
#: Most ids of later messages that are kept for one ticket. When the ticket is parked, these messages are put aside too.
LATER = 16


class Resting:
    """The resting tickets of one lane."""

    def __init__(self, window: Window, settled_ms: Callable[[], int]) -> None:
        self._window = window
        self._settled_ms = settled_ms
        #: Id of the oldest message -> ticket.
        self.tickets = window.rested
        #: Ticket -> ids of its next messages. It may have more messages than these.
        self._later: dict[Ticket, list[str]] = {}
        #: Tickets whose backoff is over, in that order.
        self.due: dict[Ticket, None] = {}

    @property
    def messages(self) -> int:
        """Known messages of these tickets. A ticket of which some were spilled before has more."""
        return sum(ticket.waiting_known for ticket in self.tickets.values())

    def rests(self, ticket: Ticket) -> bool:
        return self.tickets.get(ticket.front_id) is ticket

    def put(self, ticket: Ticket, front_id: str) -> None:
        """Makes ``ticket`` rest. No message of it is in memory; ``front_id`` is the id of its oldest one."""
        ticket.front_id = front_id
        ticket.waiting_known = 1
        self.tickets[front_id] = ticket

    def rest(self, ticket: Ticket) -> None:
        """Makes ``ticket`` rest, if its backoff is long. Its oldest message is in memory, and was begun before or is
        not due.
        """
        window = self._window
        if ticket.front_id or not ticket.waiting or ticket.due_ms <= self._settled_ms() + NEAR_MS:
            return
        self.put(ticket, window.drop_first(ticket).id)
        if ticket.waiting:
            ticket.waiting_known += len(ticket.waiting)
            self._later[ticket] = [message.id for message in islice(ticket.waiting, LATER)]
        window.let_go(ticket)
        window.spilled.discard(ticket)

    def known(self, ticket: Ticket) -> list[str]:
        """The known ids of the messages of a resting ticket."""
        return [ticket.front_id, *self._later.get(ticket, ())]

    def forget(self, ticket: Ticket, id_: str) -> None:
        """A later message of ``ticket`` is at its end."""
        later = self._later.get(ticket)
        if later is not None and id_ in later:
            later.remove(id_)

    def wake(self, ticket: Ticket) -> bool:
        """The backoff of ``ticket`` is over. Returns whether it rested: then its oldest message must be read first."""
        if not self.rests(ticket):
            return False
        self.due[ticket] = None
        return True

    def drop(self, ticket: Ticket) -> bool:
        """Ends the rest of ``ticket``, and returns whether it rested. Its oldest message is not in memory yet."""
        if not self.rests(ticket):
            return False
        del self.tickets[ticket.front_id]
        self._later.pop(ticket, None)
        self.due.pop(ticket, None)
        if ticket.spilled_from is not None:
            self._window.spilled.add(ticket)
        return True

    def leave(self, ticket: Ticket, id_: str, place: Place) -> bool:
        """A message of ``ticket`` was read or replayed. Returns whether the ticket rests, so that the message stays
        spilled.
        """
        if not self.rests(ticket):
            return False
        later = self._later.setdefault(ticket, [])
        if len(later) < LATER:
            later.append(id_)
        ticket.waiting_known += 1
        ticket.spilled_from = min(place, ticket.spilled_from or place)
        return True
