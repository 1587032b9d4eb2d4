"""Says whether a ticket waits for another version of its stream. For `bridge ticket show`. Never writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.inspect.ticket_state import TicketState
from bridge.routing import records
from bridge.routing.numbers import count

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.ticket_facts import TicketFacts
    from bridge.settings.lane import LaneSettings

#: States in which a message could go out, if it were not for another version.
_COULD_GO = (TicketState.UNREAD, TicketState.WAITING, TicketState.AWAITING_RETRY)
#: States of a ticket that has an undone message, or stands still.
_UNDONE = (*_COULD_GO, TicketState.IN_FLIGHT, TicketState.PARKED)


def with_versions(
    redis: Redis, lane: AppLane, found: TicketFacts, locate: Callable[[LaneSettings], TicketFacts]
) -> TicketFacts:
    """``found``, with the reason if the ticket waits for another version. ``locate``: finds it in another lane."""
    if found.state not in _COULD_GO:
        return found
    why = _older(lane, found, locate) or _newer(redis, lane, found.ticket)
    return replace(found, why=why) if why else found


def _older(lane: AppLane, found: TicketFacts, locate: Callable[[LaneSettings], TicketFacts]) -> str:
    for older in lane.older:
        there = locate(older)
        version = f"the older version {older.stream}"
        if there.state in _UNDONE and there.state is not None:
            return f"it waits for {version}, where the ticket is {there.state.value}: {there.why}"
        if found.leader is None and there.leader is not None:
            return (
                f"no master leads this version, and {there.leader} leads {version}: if its app does not name both, "
                "stop it; messages of this version wait until one master leads both"
            )
        if not there.unread.complete:
            unread = count(there.unread.looked_at, "message")
            return f"it waits until {version} is read: more than {unread} are unread there, of any ticket"
    return ""


def _newer(redis: Redis, lane: AppLane, ticket: str) -> str:
    for newer in lane.newer:
        text = redis.hget(newer.keys.tickets, ticket)
        if text is not None and records.parse(text).in_flight:
            led = "" if redis.exists(newer.keys.leader) else ", which no master leads: start one that follows this one"
            return f"it waits for a message in flight in the newer version {newer.stream}{led}"
    return ""
