"""Reads the oldest messages of resting tickets again, by their ids, when their backoffs are over."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.leader.stream.by_id import AT_ONCE, messages_of
from bridge.routing.batch import Batch
from bridge.routing.transitions import READ_BYTES

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.term import Term


class BackoffsOver:
    """Reads for the tickets of one lane that are due, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._settling = settling
        #: How many messages to read at once. It follows the sizes of the last ones.
        self._count = 4

    @property
    def waits(self) -> bool:
        """Whether a message is due to be read, and there is room for it."""
        return bool(self._lane.resting.due) and not self._lane.full

    def run(self, batch: Batch) -> None:
        """Reads the next messages. One without an attempt left, or without an entry, becomes a dead letter."""
        if not self.waits:
            return
        lane, settling = self._lane, self._settling
        tickets: list[Ticket] = list(islice(lane.resting.due, self._count))
        found = messages_of(self._term, [(ticket.id, ticket.front_id) for ticket in tickets])
        largest = max(message.size for message in found)
        self._count = max(1, min(AT_ONCE, self._count * 2, READ_BYTES // largest))
        for ticket, message in zip(tickets, found, strict=True):
            lane.resting.drop(ticket)
            lane.put_first(ticket, message)
            if settling.exhausted(ticket):
                error = ticket.cause if message.payload else "its entry was deleted while it awaited a retry"
                settling.give_up(ticket, batch, error)
            lane.make_ready(ticket, first=True)
