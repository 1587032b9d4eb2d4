"""Gives up messages that other programs take again and again (``bridge_max_deliveries``).

Redis counts the deliveries of a pending entry: each read by XREADGROUP, and each XCLAIM or XAUTOCLAIM without JUSTID.
The bridge claims with JUSTID, and counts its own attempts elsewhere. So the number grows by one when a new leader reads
the message again, and else only by what others do: an old consumer that still runs, or a job with XAUTOCLAIM.

Such a message is claimed back each time (`bridge.leader.repair.manual_changes`). It may have ended the program that
took it, or have been handled there. So beyond the limit a person decides: it becomes a dead letter, in its ticket's
turn.

A message is judged only at a moment when it was found under a foreign name, and when it is the oldest undone one of its
ticket, is not in flight, and its ticket is not parked. What is only read again by leaders, or by the consumer that it
was dispatched to, is never given up for that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.messages import Refused

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch

logger = get_logger(__name__)

#: Messages that are judged at once.
AT_ONCE = 500


class ForeignDeliveries:
    """Judges messages of one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._settling = settling
        self._most = term.settings.max_deliveries

    def give_up(self, found: Collection[str], batch: Batch) -> int:
        """Gives up those of ``found`` that were delivered too often. They were just claimed back. Returns how many."""
        most = self._most
        if most is None:
            return 0
        first = {ticket.waiting[0].id: ticket for ticket in self._lane.tickets.values() if _can_be_judged(ticket)}
        judged = [id_ for id_ in found if id_ in first][:AT_ONCE]
        keys = self._term.keys
        replies = self._term.wire.call_many([("XPENDING", keys.stream, keys.group, id_, id_, 1) for id_ in judged])
        given_up = 0
        for id_, rows in zip(judged, replies, strict=True):
            deliveries = rows[0][3] if rows else 0
            if deliveries <= most:
                continue
            given_up += 1
            error = f"delivered {deliveries} times by other means than the bridge (bridge_max_deliveries is {most})"
            self._settling.give_up(first[id_], batch, error, reason=Refused.DELIVERED.value)
        return given_up


def _can_be_judged(ticket: Ticket) -> bool:
    """Whether the first message in memory is the ticket's oldest, and nothing of it is in flight."""
    if not ticket.waiting or ticket.run or ticket.parked or ticket.front_id or ticket.stranded:
        return False
    return ticket.spilled_from is None or ticket.spilled_from > ticket.waiting[0].place
