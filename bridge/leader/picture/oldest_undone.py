"""Finds the oldest undone message of a lane: all messages before it are done or dead. No I/O.

This runs every few seconds on the leader's only thread, and a lane may have a whole window of tickets. So it looks at
as few tickets as possible. The tickets of a lane are in the order in which they came, and each came with a message that
was the newest of all. So no message of a ticket is older than the one that the ticket came with. The search can stop at
the first ticket that came with a message younger than the oldest one found so far.

Tickets with replayed or released messages are an exception, because those messages are older. They are few
(`Lane.older`, `Lane.parked`), and the search looks at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import IdKey, first_id_from, id_key

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.routing.messages import Message


def oldest_undone(lane: Lane) -> IdKey | None:
    """The id of the oldest undone message that was read, and is not delayed or late; None: there is none."""
    places = [
        first_id_from(place)
        for ticket in lane.parked.values()
        for place in (ticket.parked_from, ticket.spilled_from)
        if place is not None
    ]
    places += [place for ticket in lane.older if (place := oldest_of(ticket)) is not None]
    return _oldest_in(lane.tickets.values(), min(places, default=None), oldest_of)


def oldest_behind(lane: Lane) -> IdKey | None:
    """The same without the tickets that stand still by themselves: parked ones, and those that are retried or wait for
    the end of a backoff. The lane is not late with these.
    """
    places = [place for ticket in lane.older if (place := _oldest_behind_of(ticket)) is not None]
    return _oldest_in(lane.tickets.values(), min(places, default=None), _oldest_behind_of)


def _oldest_behind_of(ticket: Ticket) -> IdKey | None:
    return None if ticket.due_ms or ticket.begun else oldest_of(ticket)


def _oldest_in(tickets: Iterable[Ticket], oldest: IdKey | None, of: Callable[[Ticket], IdKey | None]) -> IdKey | None:
    """The oldest message of ``tickets``, in the order in which these came; or ``oldest``, if that is older."""
    for ticket in tickets:
        if oldest is not None and ticket.since and id_key(ticket.since) > oldest:
            break
        place = of(ticket)
        if place is not None and (oldest is None or place < oldest):
            oldest = place
    return oldest


def oldest_of(ticket: Ticket) -> IdKey | None:
    """The id of the oldest undone message of one ticket that is not parked; None: there is none. Late ones need not
    count, because the sorted set `late` names them. One of which only the id is known here does.
    """
    ids = [id_key(message.id) for message in islice(filter(_counts, ticket.run), 1)]
    # A message that was begun comes first, before an older one that was replayed.
    ids += [id_key(message.id) for message in islice(filter(_counts, ticket.waiting), 2)]
    if ticket.front_id:
        ids.append(id_key(ticket.front_id))
    if ticket.spilled_from is not None:
        ids.append(first_id_from(ticket.spilled_from))
    return min(ids, default=None)


def _counts(message: Message) -> bool:
    return message.options is None or not message.options.overtakes
