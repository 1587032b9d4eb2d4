"""Says whether a ticket waits for another version of its stream, or is there alone. For `bridge ticket show`. Never
writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.app.lanes import subscriptions_of
from bridge.inspect.dropped import waits_for_dropped
from bridge.inspect.scans import MUCH_UNREAD
from bridge.inspect.ticket_search import locate
from bridge.inspect.ticket_state import TicketState
from bridge.protocol.unreadable import read_one
from bridge.routing import records
from bridge.routing.keys import LaneKeys
from bridge.routing.numbers import count
from bridge.routing.versions import newer_versions, not_led

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.advice import Advice
    from bridge.inspect.ticket_facts import TicketFacts
    from bridge.settings.lane import LaneSettings

#: States in which a message could go out, if it were not for another version.
_COULD_GO = (TicketState.UNREAD, TicketState.WAITING, TicketState.AWAITING_RETRY)
#: States in which nothing of a ticket is undone.
_AT_REST = (None, TicketState.DONE, TicketState.DEAD)


def find_ticket(
    app: Celery, redis: Redis, lane: AppLane, ticket_id: str, commands: Callable[[LaneSettings], Advice]
) -> TicketFacts:
    """Searches for a ticket in ``lane``, and in other versions when it waits for them, or nothing of it waits in
    ``lane``. The app's tasks must be loaded. ``commands``: writes commands about a lane. Raises redis errors.
    """
    own = lane.tasks if lane.is_subscription else None

    def max_attempts(name: str | None) -> int:
        task = app.tasks.get(name or lane.settings.default_task or "")
        return int(getattr(task, "bridge_max_attempts", None) or lane.settings.max_attempts)

    # The ids of each stream have an ending of their own.
    suffixes = {one.settings.stream: one.id_suffix for one in subscriptions_of(app).get(lane.name, (lane,))}

    def located(one: LaneSettings) -> TicketFacts:
        return locate(redis, one, ticket_id, max_attempts, commands(one), suffixes[one.stream], own)

    return with_versions(redis, lane, located(lane.settings), located)


def with_versions(
    redis: Redis, lane: AppLane, found: TicketFacts, locate: Callable[[LaneSettings], TicketFacts]
) -> TicketFacts:
    """``found``, with the reason if the ticket waits for another version. If it is parked in ``lane``: with the older
    lanes in which it is not. If it is at rest or delayed there, and an older lane has more of it: what that lane has.
    ``locate``: finds it in another lane.
    """
    if found.state in _AT_REST or found.state is TicketState.DELAYED:
        return _elsewhere(lane, found, locate)
    if found.state is TicketState.PARKED:
        return replace(found, why="; ".join((found.why, *_not_parked(lane, locate))))
    if found.state not in _COULD_GO:
        return found
    why = (
        _older(lane, found, locate) or waits_for_dropped(redis, lane, found.ticket) or _newer(redis, lane, found.ticket)
    )
    return replace(found, why=why) if why else found


def _not_parked(lane: AppLane, locate: Callable[[LaneSettings], TicketFacts]) -> Iterator[str]:
    for older in lane.older:
        there = locate(older)
        if there.state is not None and _holds_up(there) and there.state is not TicketState.PARKED:
            yield f"in {_named(lane, older)} it is {there.state.value}"


def _elsewhere(lane: AppLane, found: TicketFacts, locate: Callable[[LaneSettings], TicketFacts]) -> TicketFacts:
    """``found``; or what the oldest lane has in which something of the ticket is undone; or, of a ticket that is not
    known in ``lane``, what the newest has that knows it.
    """
    known = []
    for older in lane.older:
        there = locate(older)
        there = replace(there, why=f"in {_named(lane, older)}: {there.why}")
        if there.state not in _AT_REST:
            more = f"; in {lane.settings.stream} it is delayed" if found.state is TicketState.DELAYED else ""
            return replace(there, why=there.why + more)
        if there.state is not None:
            known.append(there)
    return known[-1] if known and found.state is None else found


def _holds_up(there: TicketFacts) -> bool:
    """Whether later messages of the ticket wait: something is undone, beside what they overtake."""
    overtaken = there.state is TicketState.DELAYED and there.retry is None
    return there.state not in _AT_REST and not overtaken


def _named(lane: AppLane, older: LaneSettings) -> str:
    """How sentences name one of the older lanes of ``lane``."""
    kind = "old partition" if older.stream in lane.partition_streams else "older version"
    return f"the {kind} {older.stream}"


def _older(lane: AppLane, found: TicketFacts, locate: Callable[[LaneSettings], TicketFacts]) -> str:
    for older in lane.older:
        there = locate(older)
        version = _named(lane, older)
        if there.state is not None and _holds_up(there):
            return f"it waits for {version}, where the ticket is {there.state.value}: {there.why}"
        if found.leader is None and there.leader is not None:
            return not_led(there.leader, older.stream)
        if there.unread.looked_at >= MUCH_UNREAD:
            unread = f"{'' if there.unread.complete else 'more than '}{count(there.unread.looked_at, 'message')}"
            stop = f"; {there.reading_stop}" if there.reading_stop else ""
            return f"it waits until {version} is read: {unread} are unread there, of any ticket{stop}"
    return ""


def _newer(redis: Redis, lane: AppLane, ticket: str) -> str:
    known = [newer.stream for newer in lane.newer]
    with suppress(NoPermissionError):
        # An app of before a deploy does not name them.
        known += sorted(newer_versions(redis, lane.settings.stream) - {*known})
        for stream in known:
            keys = LaneKeys(stream, lane.name)
            text: Any = redis.hget(keys.tickets, ticket)
            record = read_one(keys.tickets, ticket.encode(), text, records.parse)
            if record is not None and record.in_flight:
                led = "" if redis.exists(keys.leader) else ", which no master leads: start one that follows this one"
                return f"it waits for a message in flight in the newer version {stream}{led}"
    return ""
