"""Reads a lane from Redis into a new leader's picture (invariant I6).

In this order, since each step needs the one before:

1. The group and the streams are there, or are made. A group that was there before and is not any more has lost which
   entries were pending, and so has one without the master's name, or one that was set back: those after the *floor*
   that are not known to be done are (`bridge.regroup`).
2. Consumers, with their leases.
3. Ticket records: what is in flight (with the bodies of those messages), what awaits a retry, what is parked.
4. Pending entries that no record names, under whatever name: claimed back to the master.
5. The master's own pending entries, in id order: what waits. Their order is the stream's order.
6. Records that name a message which is not pending: it is pending again, or, when its entry is gone, dead.

Outcomes need no step: whatever is in the outcome stream was not settled, since settling trims it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.connect import is_full
from bridge.lane import PARK_AFTER
from bridge.picture import Consumer, Parcel, Ticket, id_key
from bridge.regroup import HALF_MADE, regroup_lane
from routing import records
from routing.errors import ConfigurationError
from routing.messages import Message, Refusal, Refused
from routing.transitions import Batch, adopt

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Entries in one page.
PAGE = 1000


class Rebuild:
    """One reading of the lane."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane
        self._keys = leader.settings.keys
        self._wire = leader.wire
        #: Ticket -> id of the message that its record says comes again.
        self._fronts: dict[Ticket, str] = {}

    def run(self) -> None:
        self._make_group()
        self._leader.recovery.find_consumers()
        self._read_records()
        master = self._leader.settings.master
        stray = stray_entries(self._leader)
        if stray:
            logger.warning("%d pending entries belong to no record: claimed back", len(stray))
            batch = Batch()
            batch.count("tampered", len(stray))
            fronts = {*self._fronts.values(), *(ticket.front_id for ticket in self._lane.parked.values())}
            claim_back(self._leader, master, stray, batch, spared=fronts)
            self._leader.advance(batch)
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
            there = is_full(exc) and self._read_to() is not None
            if str(exc).startswith("WRONGTYPE"):
                raise ConfigurationError(
                    f"the key {self._keys.stream} is not a stream; name another one with bridge_stream, or delete it"
                ) from None
            if not there and not str(exc).startswith("BUSYGROUP"):
                raise
        names = self._wire.call("XINFO", "CONSUMERS", self._keys.stream, self._keys.group)
        if floor is not None:
            self._mend_group(floor.decode(), {dict(_pairs(told))[b"name"].decode(errors="replace") for told in names})
        # Whatever is pending was read: a refill may take all of it.
        self._lane.read_to = id_key(self._read_to() or "0-0")

    def _mend_group(self, floor: str, names: set[str]) -> None:
        read_to = self._read_to() or HALF_MADE
        if id_key(read_to) < id_key(floor) or id_key(read_to) <= id_key(HALF_MADE):
            regroup_lane(self._leader, floor, "was destroyed, or set back")
            return
        if self._leader.settings.master not in names:
            # With its name went what was pending under it; how far the group had read is still known.
            regroup_lane(self._leader, floor, "has lost the master's name", read_to)

    def _read_to(self) -> str | None:
        """How far the group has read; None: there is no group."""
        try:
            groups = [dict(_pairs(told)) for told in self._wire.call("XINFO", "GROUPS", self._keys.stream)]
        except ResponseError:
            return None
        found = [told[b"last-delivered-id"] for told in groups if told[b"name"] == self._keys.group.encode()]
        return found[0].decode() if found else None

    def _read_records(self) -> None:
        lane = self._lane
        due = dict(_pairs(self._wire.call("ZRANGE", self._keys.retries, 0, -1, "WITHSCORES")))
        cursor: Any = b"0"
        while True:
            cursor, flat = self._wire.call("HSCAN", self._keys.tickets, cursor, "COUNT", PAGE)
            for name, text in _pairs(flat):
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
        words = (self._keys.stream, self._keys.group, "-", "+", 1, lane.parked_name(ticket.id))
        for id_, *_ in self._wire.call("XPENDING", *words):
            ticket.parked_from = id_key(id_.decode())

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
            ticket.run.append(self._body_of(ticket.id, id_))
            lane.in_flight[id_] = ticket
            lane.held += 1

    def _body_of(self, ticket: str, id_: str) -> Message:
        """The message ``id_``; without payload when its entry was deleted from the stream."""
        return body_of(self._leader, ticket, id_)

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
        batch = Batch()
        for ticket, id_ in self._fronts.items():
            if ticket.front_id or not any(message.id == id_ for message in ticket.waiting):
                logger.warning("message %s awaits a retry, and was not pending", id_)
                batch.count("tampered")
                find_front(self._leader, ticket, id_, batch)
        self._leader.advance(batch)
        batch = Batch()
        for ticket in [t for t in self._lane.tickets.values() if t.begun and t.waiting and not t.run]:
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


def claim_back(leader: Leader, name: str, ids: list[str], batch: Batch, spared: Collection[str] = ()) -> int:
    """Makes ``ids`` pending under ``name``; how many could be. Newer servers forget those whose entries were deleted
    when they are claimed: they are dead letters, or nobody would ever hear of them; but for ``spared``, which are
    missed elsewhere.
    """
    claimed = 0
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        count = adopt(leader.redis, leader.leadership, name, page)
        claimed += count
        if count < len(page):
            for id_ in page:
                if id_ not in spared and not leader.wire.call("XRANGE", leader.settings.keys.stream, id_, id_):
                    leader.lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
    return claimed


def own_pending(leader: Leader, after: str) -> Any:
    """Pages of the master's own pending entries with ids greater than ``after``, in id order."""
    keys = leader.settings.keys
    master = leader.settings.master
    while True:
        reply = leader.wire.call(
            "XREADGROUP", "GROUP", keys.group, master, "COUNT", PAGE, "STREAMS", keys.stream, after
        )
        entries = reply[0][1] if reply else []
        if entries:
            yield entries
        if len(entries) < PAGE:
            return
        after = entries[-1][0].decode()


def stray_entries(leader: Leader) -> list[str]:
    """Ids that are pending under another name than the master's or a parked ticket's, and in flight in no record."""
    keys = leader.settings.keys
    summary = leader.wire.call("XPENDING", keys.stream, keys.group)
    stray = []
    parked = {leader.lane.parked_name(ticket).encode() for ticket in leader.lane.parked}
    for name, _ in summary[3] or ():
        if name == leader.settings.master.encode() or name in parked:
            continue
        start = "-"
        while True:
            page = leader.wire.call("XPENDING", keys.stream, keys.group, start, "+", PAGE, name)
            stray += [id_.decode() for id_, *_ in page if id_.decode() not in leader.lane.in_flight]
            if len(page) < PAGE:
                break
            start = "(" + page[-1][0].decode()
    return stray


def _pairs(flat: Any) -> list[tuple[bytes, bytes]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
