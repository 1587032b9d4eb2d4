"""Finds the oldest undone message of a lane: all messages before it are done or dead. No I/O.

This runs every few seconds on the leader's only thread, and a lane may have a whole window of tickets. So it looks at
as few tickets as possible. The tickets of a lane are in the order in which they came, and each came with a message that
was the newest of all. So no message of a ticket is older than the one that the ticket came with. The search can stop at
the first ticket that came with a message younger than the oldest one found so far.

Tickets with replayed or released messages are an exception, because those messages are older. They are few
(`Lane.older`, `Lane.parked`), and the search looks at all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane


def oldest_undone(lane: Lane) -> tuple[int, int] | None:
    """The id of the oldest undone message that was read; None: there is none."""
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
    """The id of the oldest undone message of one ticket that is not parked; None: there is none."""
    ids = [id_key(queue[0].id) for queue in (ticket.run, ticket.waiting) if queue]
    if len(ticket.waiting) > 1:
        # A message that was begun comes first, before an older one that was replayed.
        ids.append(id_key(ticket.waiting[1].id))
    if ticket.front_id:
        ids.append(id_key(ticket.front_id))
    if ticket.spilled_from is not None:
        ids.append(ticket.spilled_from)
    return min(ids, default=None)
