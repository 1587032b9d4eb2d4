"""The tickets that have a record: in flight, awaiting a retry, held, or parked. For `bridge ticket list`. Never writes.

The lane may change between two pages. A ticket whose record is written or deleted meanwhile may be in the list or not.
A ticket whose record stays is in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bridge.inspect.roster import Pending
from bridge.inspect.ticket_state import TicketState
from bridge.protocol.unreadable import read_all
from bridge.routing import records
from bridge.routing.groups import unless_missing

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings

#: Records in one page, about.
PAGE = 1000


@dataclass(frozen=True)
class Recorded:
    """One ticket. ``since_ms``: age of its record. ``cause``: why it is parked, or awaits a retry."""

    ticket_id: str
    stream: str
    state: TicketState
    since_ms: int
    consumer: str
    cause: str
    #: The messages that its record names: in flight, or awaiting a retry. Of a parked ticket: those that were begun.
    message_ids: tuple[str, ...]
    #: Shelved messages of a parked ticket. None if it is not parked: other waiting messages are not counted by ticket.
    waiting: int | None


def recorded_in(redis: Redis, lanes: Sequence[AppLane], *, parked_only: bool) -> Iterator[Recorded]:
    """As `recorded`, over several lanes. The ids name the partition."""
    for lane in lanes:
        for one in recorded(redis, lane.settings, parked_only=parked_only):
            yield replace(one, message_ids=tuple(id_ + lane.id_suffix for id_ in one.message_ids))


def recorded(redis: Redis, lane: LaneSettings, *, parked_only: bool) -> Iterator[Recorded]:
    """All tickets with a record that can be read, in no order; the log names others. Raises redis errors."""
    keys = lane.keys
    seconds, micros = redis.time()
    now_ms = seconds * 1000 + micros // 1000
    aside = _aside(redis, lane)
    known: set[bytes] = set()
    cursor = 0
    while True:
        found: Any = redis.hscan(keys.tickets, cursor, count=PAGE)
        cursor, page = found
        due = _due(redis, lane, [name for name, text in page.items() if records.is_held(text)], now_ms)
        # A scan may give a field twice.
        new = {name: text for name, text in page.items() if name not in known}
        known |= new.keys()
        for name, record in read_all(keys.tickets, new, lambda _name, text: records.parse(text)).items():
            if parked_only and not record.parked:
                continue
            yield Recorded(
                ticket_id=name.decode(),
                stream=lane.stream,
                state=_state(record, name in due),
                since_ms=max(0, now_ms - record.at_ms),
                consumer=record.consumer,
                cause=record.cause,
                message_ids=record.ids,
                waiting=aside.get(name.decode(), 0) if record.parked else None,
            )
        if cursor == 0:
            return


def _due(redis: Redis, lane: LaneSettings, held: Sequence[bytes], now_ms: int) -> set[bytes]:
    """Those of the tickets ``held`` whose message is due: no longer delayed."""
    with redis.pipeline(transaction=False) as pipe:
        for ticket in held:
            pipe.zscore(lane.keys.retries, ticket)
        return {ticket for ticket, due in zip(held, pipe.execute(), strict=True) if due is None or due <= now_ms}


def _state(record: records.Record, due: bool) -> TicketState:
    if record.parked:
        return TicketState.PARKED
    if record.cause == records.HELD and not record.in_flight:
        return TicketState.WAITING if due else TicketState.DELAYED
    return TicketState.IN_FLIGHT if record.in_flight else TicketState.AWAITING_RETRY


def _aside(redis: Redis, lane: LaneSettings) -> dict[str, int]:
    keys = lane.keys
    with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        pipe.hkeys(keys.consumers)
        # There may be records and no group: somebody destroyed it, and no master has made it again.
        summary, names = [unless_missing(reply) for reply in pipe.execute(raise_on_error=False)]
    return Pending.of(summary, lane, {name.decode(errors="replace") for name in names}).of_parked
