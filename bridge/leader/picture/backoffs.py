"""Tickets that wait out a backoff: each costs the picture a ticket without messages. No I/O.

None of a resting ticket's messages is in memory: its oldest one is known by its id, as the ticket's record names it,
and the later ones are spilled. So however many rest, they fill no window, and reading goes on past them. When a
ticket's time has come it is *rising*, until its oldest message was read again (`bridge.leader.stream.backoffs_over`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.leader.picture.window import Window

#: What is due sooner than this, in ms, is not worth reading again.
NEAR_MS = 1000
#: Ids of later messages that are kept of one ticket: should it be parked, these are put aside with it.
LATER = 16


class Resting:
    """Works on one lane."""

    def __init__(self, window: Window, now_ms: Callable[[], int]) -> None:
        self._window = window
        self._now_ms = now_ms
        #: Id of the oldest message -> ticket.
        self.tickets = window.rested
        #: Ids of the next messages of some; there may be more that are not named.
        self._later: dict[Ticket, list[str]] = {}
        #: Those whose time has come, in that order.
        self.due: dict[Ticket, None] = {}

    def rests(self, ticket: Ticket) -> bool:
        return self.tickets.get(ticket.front_id) is ticket

    def put(self, ticket: Ticket, front_id: str) -> None:
        """``ticket``, of which nothing is in memory, rests; the id of its oldest message is ``front_id``."""
        ticket.front_id = front_id
        self.tickets[front_id] = ticket

    def rest(self, ticket: Ticket) -> None:
        """``ticket``, whose oldest message was begun before and is in memory, rests if it has to wait for long."""
        window = self._window
        if ticket.front_id or not ticket.waiting or ticket.due_ms <= self._now_ms() + NEAR_MS:
            return
        self.put(ticket, window.drop_first(ticket).id)
        if ticket.waiting:
            self._later[ticket] = [message.id for message in islice(ticket.waiting, LATER)]
        window.let_go(ticket)
        window.spilled.discard(ticket)

    def known(self, ticket: Ticket) -> list[str]:
        """Ids of the messages of a resting ticket, as far as they are known."""
        return [ticket.front_id, *self._later.get(ticket, ())]

    def wake(self, ticket: Ticket) -> bool:
        """The backoff of ``ticket`` is over; whether it rested, and has to be read first."""
        if not self.rests(ticket):
            return False
        self.due[ticket] = None
        return True

    def drop(self, ticket: Ticket) -> bool:
        """``ticket`` rests no more; whether it did. Its oldest message is not in memory yet."""
        if not self.rests(ticket):
            return False
        del self.tickets[ticket.front_id]
        self._later.pop(ticket, None)
        self.due.pop(ticket, None)
        if ticket.spilled_from is not None:
            self._window.spilled.add(ticket)
        return True

    def leave(self, ticket: Ticket, from_id: str) -> bool:
        """A message of ``ticket`` was read, or put back; whether it rests, and the message is left where it is."""
        if not self.rests(ticket):
            return False
        later = self._later.setdefault(ticket, [])
        if len(later) < LATER:
            later.append(from_id)
        key = id_key(from_id)
        ticket.spilled_from = min(key, ticket.spilled_from or key)
        return True
