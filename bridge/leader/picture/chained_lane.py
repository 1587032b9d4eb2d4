"""The picture of a lane whose stream has other versions. Tickets may be *deferred*: a message of another version goes
first (`bridge.leader.picture.chain`). No I/O.

The messages of deferred tickets may use half of the lane's memory. The others are spilled. So the leader reads on,
however many tickets are deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket

if TYPE_CHECKING:
    from bridge.leader.picture.times import Times
    from bridge.routing.batch import Batch
    from bridge.settings.lane import LaneSettings


class ChainedLane(Lane):
    """The picture of one lane of a chain. ``defers``: whether other lanes say that a ticket must wait."""

    def __init__(self, settings: LaneSettings, defers: Callable[[str], bool], clock: Times) -> None:
        super().__init__(settings, clock)
        self._defers = defers
        #: Deferred tickets by id. A ticket may have ended since.
        self.deferred: dict[str, Ticket] = {}
        #: Tickets that left the picture since the last turn, or whose run ended since then.
        self.ended: list[str] = []

    def make_ready(self, ticket: Ticket, *, first: bool = False, fresh: bool = False) -> None:
        """Queues the ticket, or defers it when a message of another version goes first."""
        free = not (ticket.queued or ticket.run or ticket.due_ms or ticket.front_id) and ticket.park_reason is None
        if free and ticket.waiting and self._defers(ticket.id):
            self.defer(ticket)
        else:
            super().make_ready(ticket, first=first, fresh=fresh)

    def defer(self, ticket: Ticket) -> None:
        """Keeps the ticket out of the queues, and no consumer for it."""
        self.deferred[ticket.id] = ticket
        if ticket.suspect:
            for consumer in self.consumers.values():
                if consumer.alone is ticket:
                    self.end_solitude(consumer)
        settings = self.settings
        if self.held * 2 > settings.window or self.bytes * 2 > settings.window_bytes:
            ticket.waiting_known = len(ticket.waiting) + (ticket.spilled_from is not None)
            self.let_go(ticket)
            self.spilled.discard(ticket)

    def try_again(self, ids: Iterable[str]) -> None:
        """Queues these deferred tickets, but those that still wait. Something of them ended in another lane."""
        for id_ in ids:
            if self._defers(id_):
                # Its messages may be spilled. To read them again would be in vain.
                continue
            ticket = self.deferred.pop(id_, None)
            if ticket is None or self.tickets.get(id_) is not ticket:
                continue
            if ticket.spilled_from is not None and not self.resting.rests(ticket):
                self.spilled.add(ticket)
            self.make_ready(ticket)

    def admitted(self, chosen: dict[Consumer, list[Ticket]]) -> dict[Consumer, list[Ticket]]:
        """Those of the ``chosen`` tickets that may go out. The others are deferred: a message of another version came
        after they were queued.
        """
        found: dict[Consumer, list[Ticket]] = {}
        for consumer, tickets in chosen.items():
            free = [ticket for ticket in tickets if self.admits(ticket)]
            if free:
                found[consumer] = free
        return found

    def admits(self, ticket: Ticket) -> bool:
        """Whether the ticket, which was taken from its queue, may go out. Else it is deferred."""
        if not self._defers(ticket.id):
            return True
        self.left_queue(ticket)
        self.defer(ticket)
        return False

    def run_over(self, ticket: Ticket) -> None:
        """Ends the run, and notes that for the other lanes."""
        super().run_over(ticket)
        self.ended.append(ticket.id)

    def withdraw(self, tickets: Collection[Ticket], refused: Collection[str], batch: Batch) -> None:
        """Takes planned dispatches of ``tickets`` back: they were not sent. ``refused``: those that must wait."""
        for ticket in reversed(list(tickets)):
            self.take_back(ticket)
        self._touched = dict.fromkeys(tickets)
        self.close(batch, set())
        for ticket in reversed(list(tickets)):
            if ticket.id in refused:
                self.defer(ticket)
            else:
                self.make_ready(ticket, first=True)

    def _forget(self, ticket: Ticket) -> None:
        super()._forget(ticket)
        self.deferred.pop(ticket.id, None)
        self.ended.append(ticket.id)
