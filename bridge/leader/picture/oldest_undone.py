"""How far all is done: the oldest message of a lane that was read, and is not done. No I/O.

Asked every few seconds, of up to a window's worth of tickets, on the leader's only thread: so it looks at no more of
them than it must. The tickets of a lane are in the order in which they came, each with a message that was then the
newest of all. So nothing of a ticket is older than the message it came with, and behind a ticket that came with a
younger message than the oldest found so far nothing older is left. Except among those that an operator had a hand in,
since a message that is put back, or released, is as old as it is: `Lane.older` and `Lane.parked` are few, and all are
looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane


def oldest_undone(lane: Lane) -> tuple[int, int] | None:
    """The id of the oldest undone message that was read; None: all is done."""
    oldest: tuple[int, int] | None = None
    places = [place for ticket in lane.parked.values() for place in (ticket.parked_from, ticket.spilled_from)]
    places += [oldest_of(ticket) for ticket in lane.older]
    for place in places:
        if place is not None and (oldest is None or place < oldest):
            oldest = place
    for ticket in lane.tickets.values():
        if oldest is not None and ticket.since and id_key(ticket.since) > oldest:
            break
        place = oldest_of(ticket)
        if place is not None and (oldest is None or place < oldest):
            oldest = place
    return oldest


def oldest_of(ticket: Ticket) -> tuple[int, int] | None:
    """The same of one ticket that is not parked."""
    ids = [id_key(queue[0].id) for queue in (ticket.run, ticket.waiting) if queue]
    if len(ticket.waiting) > 1:
        # What was begun before stands before an older one that was put back.
        ids.append(id_key(ticket.waiting[1].id))
    if ticket.front_id:
        ids.append(id_key(ticket.front_id))
    if ticket.spilled_from is not None:
        ids.append(ticket.spilled_from)
    return min(ids, default=None)
