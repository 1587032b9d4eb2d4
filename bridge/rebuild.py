"""Reads a lane from Redis into a new leader's picture (invariant I6).

In this order, since each step needs the one before:

1. The group and the streams are there, or are made. A group that was there before and is not any more has lost which
   entries were pending, and so has one without the master's name, or one that was set back: those after the *floor*
   that are not known to be done are (`bridge.regroup`).
2. Consumers, with their leases.
3. Ticket records: what is in flight (with the bodies of those messages), what awaits a retry, what is parked.
4. Pending entries that no record names, under whatever name: claimed back to the master.
5. Entries that were acknowledged by hand while nobody led: pending again (`bridge.acknowledged`).
6. The master's own pending entries, in id order: what waits. Their order is the stream's order.
7. Records that name a message which is not pending: it is pending again, or, when its entry is gone, dead.

Outcomes need no step: whatever is in the outcome stream was not settled, since settling trims it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.acknowledged import acknowledged_by_hand
from bridge.connect import is_full
from bridge.lane import PARK_AFTER
from bridge.pending import (
    PAGE,
    claim_back,
    group_read_to,
    names_in_group,
    own_pending,
    owners,
    pairs,
    pending_elsewhere,
    pending_under,
)
from bridge.picture import Consumer, Parcel, Ticket, id_key, key_after
from bridge.regroup import HALF_MADE, regroup_lane
from routing import records
from routing.errors import ConfigurationError
from routing.messages import Message
from routing.transitions import Batch, adopt

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)


class Rebuild:
    """One reading of the lane."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane
        self._keys = leader.settings.keys
        self._wire = leader.wire
        #: Ticket -> id of the message that its record says comes again.
        self._fronts: dict[Ticket, str] = {}
        #: Name in the group -> entries that are pending under it.
        self._owners: dict[str, int] = {}
        #: Up to there all was done; None: that was never noted.
        self._floor: tuple[int, int] | None = None

    def run(self) -> None:
        self._make_group()
        self._leader.recovery.find_consumers()
        self._read_records()
        master = self._leader.settings.master
        elsewhere = pending_elsewhere(self._leader, self._owners)
        stray = [id_ for id_ in elsewhere if id_ not in self._lane.in_flight]
        if stray:
            logger.warning("%d pending entries belong to no record: claimed back", len(stray))
            batch = Batch()
            batch.count("tampered", len(stray))
            fronts = {*self._fronts.values(), *(ticket.front_id for ticket in self._lane.parked.values())}
            claim_back(self._leader, master, stray, batch, spared=fronts)
            self._leader.advance(batch)
        self._find_acknowledged()
        self._read_waiting()
        self._find_missing()
        lane = self._lane
        logger.info(
            "read the lane: %d messages in flight, %d tickets await a retry, %d messages wait in memory, %d consumers",
            len(lane.in_flight),
            sum(1 for ticket in lane.tickets.values() if ticket.due_ms),
            lane.held - len(lane.in_flight),
            sum(1 for consumer in lane.consumers.values() if consumer.alive),
        )

    def _make_group(self) -> None:
        floor = self._wire.call("GET", self._keys.floor)
        if floor is None and self._wire.call("EXISTS", self._keys.fence):
            # Something was dispatched before, and it was never noted how far all is done.
            floor = b"0-0"
        # From 0: messages that were pushed before the first master ever ran are messages, too.
        start = "0" if floor is None else HALF_MADE
        try:
            self._wire.call("XGROUP", "CREATE", self._keys.stream, self._keys.group, start, "MKSTREAM")
        except ResponseError as exc:
            # A full server refuses before it looks: and the lane must go on, or room never comes.
            there = is_full(exc) and group_read_to(self._leader) is not None
            if str(exc).startswith("WRONGTYPE"):
                raise ConfigurationError(
                    f"the key {self._keys.stream} is not a stream; name another one with bridge_stream, or delete it"
                ) from None
            if not there and not str(exc).startswith("BUSYGROUP"):
                raise
        # Asked in any case: then it is seen at once when the permission for it is not there.
        names = names_in_group(self._leader)
        if floor is not None:
            self._floor = id_key(floor.decode())
            self._mend_group(floor.decode(), names)
        # Whatever is pending was read: a refill may take all of it.
        self._lane.read_to = id_key(group_read_to(self._leader) or "0-0")

    def _mend_group(self, floor: str, names: set[str]) -> None:
        read_to = group_read_to(self._leader) or HALF_MADE
        if id_key(read_to) < id_key(floor) or id_key(read_to) <= id_key(HALF_MADE):
            regroup_lane(self._leader, floor, "was destroyed, or set back")
            return
        if self._leader.settings.master not in names:
            # With its name went what was pending under it; how far the group had read is still known.
            regroup_lane(self._leader, floor, "has lost the master's name", read_to)

    def _read_records(self) -> None:
        lane = self._lane
        self._owners = owners(self._leader)
        due = dict(pairs(self._wire.call("ZRANGE", self._keys.retries, 0, -1, "WITHSCORES")))
        cursor: Any = b"0"
        while True:
            cursor, flat = self._wire.call("HSCAN", self._keys.tickets, cursor, "COUNT", PAGE)
            for name, text in pairs(flat):
                ticket = lane.tickets.get(name.decode()) or Ticket(name.decode())
                lane.tickets[ticket.id] = ticket
                ticket.record = text.decode()
                record = records.parse(text)
                ticket.attempt = record.attempt
                ticket.losses, ticket.lost, ticket.cause = record.losses, record.lost, record.cause
                if record.parked:
                    self._put_aside(ticket, record)
                elif record.in_flight:
                    self._put_in_flight(ticket, record)
                else:
                    self._fronts[ticket] = record.ids[0]
                    if ticket.begun:
                        ticket.front_id = record.ids[0]
                    lane.hold_back(ticket, int(float(due.get(name, b"0"))))
            if cursor == b"0":
                return

    def _put_aside(self, ticket: Ticket, record: records.Record) -> None:
        lane = self._lane
        del lane.tickets[ticket.id]
        lane.parked[ticket.id] = ticket
        ticket.parked = True
        ticket.front_id = record.ids[0] if record.ids else ""
        shelf = lane.parked_name(ticket.id)
        ticket.shelved = self._owners.get(shelf, 0)
        oldest = next(pending_under(self._leader, shelf, at_once=1), None) if ticket.shelved else None
        ticket.parked_from = id_key(oldest) if oldest is not None else None

    def _put_in_flight(self, ticket: Ticket, record: records.Record) -> None:
        lane = self._lane
        consumer = lane.consumers.get(record.incarnation)
        if consumer is None:
            # Not registered any more; its lease says whether it lives, as ever.
            queue = self._keys.queue(record.consumer)
            consumer = Consumer(record.consumer, record.incarnation, queue, 1, b"")
            consumer.alive = False
            lane.consumers[record.incarnation] = consumer
        ticket.consumer = consumer
        ticket.fence = ticket.run_fence = record.fence
        ticket.dispatched_ms = record.at_ms
        ticket.cause = ""
        if record.cause.startswith(PARK_AFTER):
            ticket.park_reason = record.cause.removeprefix(PARK_AFTER)
        parcel = ticket.parcel = Parcel(consumer, len(record.ids), float(len(record.ids)))
        consumer.parcels += 1
        consumer.messages += len(record.ids)
        consumer.backlog_ms += parcel.share_ms * len(record.ids)
        consumer.tickets.add(ticket)
        for id_ in record.ids:
            ticket.run.append(body_of(self._leader, ticket.id, id_))
            lane.in_flight[id_] = ticket
            lane.held += 1

    def _find_acknowledged(self) -> None:
        leader, lane = self._leader, self._lane
        if not leader.settings.history or self._floor is None:
            return
        floor, read_to = (f"{ms}-{sequence}" for ms, sequence in (self._floor, lane.read_to))
        # What a record says comes again is looked for by its id (`_find_missing`).
        fronts = {*self._fronts.values(), *(ticket.front_id for ticket in lane.parked.values())}
        ids = [id_ for id_ in acknowledged_by_hand(leader, floor, read_to) if id_ not in fronts]
        if not ids:
            return
        logger.warning("%d entries were acknowledged by hand, and not done: they are pending again", len(ids))
        batch = Batch()
        batch.count("tampered", len(ids))
        claim_back(leader, leader.settings.master, ids, batch)
        leader.advance(batch)

    def _read_waiting(self) -> None:
        fronts = set(self._fronts.values())
        for entries in own_pending(self._leader, "0-0"):
            batch = Batch()
            for raw_id, fields in entries:
                id_ = raw_id.decode()
                # In flight and pending here: moved by hand, or the group was made anew. `Strays` puts it right.
                if id_ in self._lane.in_flight or (id_ in fronts and not fields):
                    continue
                self._leader.ingest(id_, fields, batch)
            if batch:
                self._leader.advance(batch)

    def _find_missing(self) -> None:
        """Messages that records say come again, and that are not pending: somebody acknowledged or deleted them."""
        lane = self._lane
        batch = Batch()
        for ticket, id_ in self._fronts.items():
            if ticket.front_id or not any(message.id == id_ for message in ticket.waiting):
                logger.warning("message %s awaits a retry, and was not pending", id_)
                batch.count("tampered")
                find_front(self._leader, ticket, id_, batch)
        self._leader.advance(batch)
        for ticket in lane.parked.values():
            id_ = ticket.front_id
            if not id_ or self._wire.call("XPENDING", self._keys.stream, self._keys.group, id_, id_, 1):
                continue
            if body_of(self._leader, ticket.id, id_).payload:
                # What else was taken, and from where on, nobody knows: all of it comes after the floor.
                ticket.parked_from = min(id_key(id_), ticket.parked_from or id_key(id_))
                if self._leader.settings.history and self._floor is not None:
                    ticket.parked_from = min(ticket.parked_from, key_after(self._floor))
                self._leader.strays.mend_parked({ticket: 1})
        batch = Batch()
        for ticket in [t for t in lane.tickets.values() if t.begun and t.waiting and not t.run]:
            if self._leader.settling.exhausted(ticket):
                # The leader before this one took it back from a consumer that ended, and then ended itself.
                self._leader.settling.condemn(ticket, batch, ticket.cause)
        self._leader.advance(batch)


def find_front(leader: Leader, ticket: Ticket, id_: str, batch: Batch) -> None:
    """The message that must come first was not among the pending entries that were read: it is read by its id, and goes
    first. It is dead when its entry is gone.
    """
    message = body_of(leader, ticket.id, id_)
    leader.lane.put_first(ticket, message)
    if message.payload:
        adopt(leader.redis, leader.leadership, leader.settings.master, [id_])
    else:
        leader.settling.condemn(ticket, batch, "its entry was deleted while it awaited a retry")


def body_of(leader: Leader, ticket: str, id_: str) -> Message:
    """The message ``id_``; without payload when its entry was deleted from the stream."""
    entries = leader.wire.call("XRANGE", leader.settings.keys.stream, id_, id_)
    if entries:
        found = leader.parser.parse(id_, entries[0][1])
        if isinstance(found, Message):
            return found
    return Message(id_, ticket, "", b"")
