"""Reads the message that must come first of its ticket by its id, when a read of pending entries did not return it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.stream.by_id import message_of

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList
    from bridge.routing.batch import Batch


class FirstMessages:
    """Reads first messages in one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, pending: PendingList, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._pending = pending
        self._settling = settling

    def find(self, ticket: Ticket, id_: str, batch: Batch) -> None:
        """Puts message ``id_`` first, and makes it pending under the master's name.

        The message becomes a dead letter when its entry is gone.
        """
        message = message_of(self._term, ticket.id, id_)
        self._lane.put_first(ticket, message)
        if message.payload:
            self._pending.make_pending(self._term.master, [id_])
        else:
            self._settling.give_up(ticket, batch, "its entry was deleted while it awaited a retry")
