"""Reads a lane from Redis into a new leader's picture (invariant I6).

In this order, since each step needs the one before:

1. The group and the streams are there, or are made. A group that was there before and is not any more has lost which
   entries were pending, and so has one without the master's name, or one that was set back: those after the *floor*
   that are not known to be done are (`bridge.leader.repair.group`).
2. Consumers, with their leases.
3. Ticket records: what is in flight (with the bodies of those messages), what awaits a retry, what is parked.
4. Records that name a message which is not pending: it is pending again, or, when its entry is gone, dead.

That is `Rebuild.run`, and its cost is that of what is in flight, rests or is parked. What waits may be millions, and is
taken in between the turns of the leader's loop, a page at a time, as if it were read from the stream just now; nothing
newer is read until then. Each page has three steps:

5. Entries that were acknowledged by hand: pending again (`bridge.leader.takeover.acknowledged`).
6. Pending entries that no record names, under whatever name: claimed back to the master.
7. The master's own pending entries, in id order: what waits. Their order is the stream's order.

Outcomes need no step: whatever is in the outcome stream was not settled, since settling trims it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.leader.picture.pieces import Consumer, Parcel, Ticket
from bridge.leader.repair.group import HALF_MADE, repair_group
from bridge.leader.stream.by_id import message_of, read_messages
from bridge.leader.stream.pending import NEVER, PAGE, pairs
from bridge.leader.takeover.acknowledged import Acknowledged
from bridge.link.connections import is_full
from bridge.routing import records
from bridge.routing.errors import ConfigurationError
from bridge.routing.ids import id_before, id_key, id_text, key_after
from bridge.routing.messages import ticket_of
from bridge.routing.transitions import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.leader.consumers.membership import Consumers
    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.manual_changes import ManualChanges
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.first_messages import FirstMessages
    from bridge.leader.stream.pending import PendingList
    from bridge.leader.stream.reading import Reading


logger = get_logger(__name__)


class Rebuild:
    """One reading of the lane: `run`, and then `read_on` for as long as the lane is behind (`Lane.behind`)."""

    def __init__(
        self,
        term: Term,
        lane: Lane,
        steps: Steps,
        reading: Reading,
        pending: PendingList,
        first_messages: FirstMessages,
        manual_changes: ManualChanges,
        consumers: Consumers,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._reading = reading
        self._pending = pending
        self._first_messages = first_messages
        self._manual_changes = manual_changes
        self._consumers = consumers
        self._keys = term.keys
        self._wire = term.wire
        #: Id -> ticket, of what records name: in flight, or to come again.
        self._named: dict[str, Ticket] = {}
        #: Those of these that await a retry, were not begun, and were not read yet.
        self._front_ids: set[str] = set()
        #: Those that await a retry, are read by their ids when they are due, and were not seen to be pending yet.
        self._unseen: dict[str, Ticket] = {}
        #: Name in the group -> entries that are pending under it.
        self._owners: dict[str, int] = {}
        #: Up to there all was done; None: that was never noted.
        self._floor: tuple[int, int] | None = None
        #: How far the group has read.
        self._group_to = (0, 0)
        #: None: nobody can tell what was acknowledged by hand.
        self._acknowledged: Acknowledged | None = None
        self._slices = self._take_in()
        lane.behind = True

    def run(self) -> None:
        """What must be known before anything is settled or dispatched."""
        self._make_group()
        self._consumers.find()
        self._read_records()
        self._find_first_messages()
        self._pending.count_anew()
        lane = self._lane
        logger.info(
            "read the records: %d messages in flight, %d tickets await a retry, %d consumers",
            len(lane.in_flight),
            sum(1 for ticket in lane.tickets.values() if ticket.due_ms),
            sum(1 for consumer in lane.consumers.values() if consumer.alive),
        )

    def read_on(self) -> None:
        """Takes in a slice of what waits. Anything may happen between two, but for new reads of the stream."""
        self._lane.behind = next(self._slices, None) is not None
        if not self._lane.behind:
            self._named.clear()
            logger.info("read the lane: %d messages in memory", self._lane.held)

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
            there = is_full(exc) and self._pending.read_to() is not None
            if str(exc).startswith("WRONGTYPE"):
                raise ConfigurationError(
                    f"the key {self._keys.stream} is not a stream; name another one with bridge_stream, or delete it"
                ) from None
            if not there and not str(exc).startswith("BUSYGROUP"):
                raise
        # Asked in any case: then it is seen at once when the permission for it is not there.
        names = self._pending.names()
        if floor is not None:
            self._floor = id_key(floor.decode())
            self._mend_group(floor.decode(), names)
        self._group_to = id_key(self._pending.read_to() or "0-0")

    def _mend_group(self, floor: str, names: set[str]) -> None:
        read_to = self._pending.read_to() or HALF_MADE
        if id_key(read_to) < id_key(floor) or id_key(read_to) <= id_key(HALF_MADE):
            repair_group(self._term, floor, "was destroyed, or set back")
            return
        if self._term.master not in names:
            # With its name went what was pending under it; how far the group had read is still known.
            repair_group(self._term, floor, "has lost the master's name", read_to)

    def _read_records(self) -> None:
        lane = self._lane
        self._owners = self._pending.owners()
        due = dict(pairs(self._wire.call("ZRANGE", self._keys.retries, 0, -1, "WITHSCORES")))
        cursor: Any = b"0"
        while True:
            cursor, flat = self._wire.call("HSCAN", self._keys.tickets, cursor, "COUNT", PAGE)
            flying: list[tuple[Ticket, str]] = []
            for name, text in pairs(flat):
                ticket = Ticket(name.decode())
                if ticket.id in lane.tickets or ticket.id in lane.parked:
                    # HSCAN may give one twice.
                    continue
                lane.tickets[ticket.id] = ticket
                ticket.record = text.decode()
                record = records.parse(text)
                ticket.attempt = record.attempt
                ticket.losses, ticket.lost, ticket.cause = record.losses, record.lost, record.cause
                if record.parked:
                    self._put_aside(ticket, record)
                elif record.in_flight:
                    self._put_in_flight(ticket, record)
                    flying += [(ticket, id_) for id_ in record.ids]
                else:
                    front = record.ids[0]
                    if ticket.begun:
                        lane.resting.put(ticket, front)
                        self._unseen[front] = ticket
                    else:
                        self._front_ids.add(front)
                    lane.hold_back(ticket, int(float(due.get(name, b"0"))))
                self._named.update(dict.fromkeys(record.ids, ticket))
            named = [(ticket.id, id_) for ticket, id_ in flying]
            for (ticket, _), message in zip(flying, read_messages(self._term, named), strict=True):
                assert ticket.consumer is not None
                lane.held += 1
                lane.bytes += message.size
                lane.put_in_flight(ticket, ticket.consumer, message)
            if cursor == b"0":
                break
        self._find_parked_from()

    def _put_aside(self, ticket: Ticket, record: records.Record) -> None:
        lane = self._lane
        del lane.tickets[ticket.id]
        lane.parked[ticket.id] = ticket
        ticket.parked = True
        ticket.front_id = record.ids[0] if record.ids else ""
        ticket.shelved = self._owners.get(lane.parked_name(ticket.id), 0)

    def _find_parked_from(self) -> None:
        shelved = [ticket for ticket in self._lane.parked.values() if ticket.shelved]
        for start in range(0, len(shelved), PAGE):
            page = shelved[start : start + PAGE]
            names = [self._lane.parked_name(ticket.id).encode(errors="surrogateescape") for ticket in page]
            commands = [("XPENDING", self._keys.stream, self._keys.group, "-", "+", 1, name) for name in names]
            for ticket, found in zip(page, self._wire.call_many(commands), strict=True):
                ticket.parked_from = id_key(found[0][0].decode()) if found else None

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
        if record.cause.startswith(records.PARK_AFTER):
            ticket.park_reason = record.cause.removeprefix(records.PARK_AFTER)
        parcel = ticket.parcel = Parcel(consumer, len(record.ids), float(len(record.ids)))
        consumer.parcels += 1
        consumer.backlog_ms += parcel.share_ms * len(record.ids)
        consumer.tickets.add(ticket)

    def _take_in(self) -> Iterator[bool]:
        """Takes in what is pending under the master's name, in id order: as a read of the stream would, and as slowly.

        Each slice ends in a step of the leader's, so that the server and the picture agree when the next one begins.
        What a record named at the beginning may come into the picture before its place is reached; nothing else can.
        """
        lane = self._lane
        for end in self._mended():
            yield True
            while self._take_page(end):
                yield True
        lane.read_to = max(lane.read_to, self._group_to)
        self._find_unseen()
        self._find_parked()

    def _mended(self) -> Iterator[tuple[int, int]]:
        """Up to where the pending list is as it must be, step by step."""
        if self._term.settings.history and self._floor is not None:
            floor, read_to = id_text(self._floor), id_text(self._group_to)
            self._acknowledged = Acknowledged(self._term, self._steps, self._pending, floor, read_to, self._named)
            for id_ in self._acknowledged.mend():
                yield id_key(id_)
        yield NEVER

    def _take_page(self, end: tuple[int, int]) -> bool:
        """Takes in a page of what is pending up to ``end``; whether there may be more."""
        lane = self._lane
        after = id_text(lane.read_to)
        if end != NEVER:
            to = id_text(end)
            if not self._is_any_pending(after, to) and not self._mended_since(after, to):
                lane.read_to = max(lane.read_to, end)
                return False
        batch = Batch()
        full = lane.full
        page = self._reading.read_on(after=after, names=full)
        # Now, and not before: so whatever is missing in the page is found.
        last = min(end, id_key(page.entries[-1][0].decode()) if page.more and page.entries else NEVER)
        strange, reached = self._pending.strange_between(after, last)
        if self._claimed(strange) or self._mended_since(after, id_text(min(reached, self._group_to))):
            # They have their places in this page: it is read again.
            return True
        for entry in page.entries:
            key = id_key(entry[0].decode())
            if key > reached:
                break
            self._take(entry, full, batch)
            lane.read_to = key
        # Also when it is empty: what is ready now may have nothing else to wake the leader for it.
        self._steps.advance(batch)
        if reached != NEVER:
            lane.read_to = max(lane.read_to, reached)
        return page.more or reached != last

    def _claimed(self, strange: list[str]) -> bool:
        """Whether anything is pending where no record says so: it is the master's again."""
        if strange:
            logger.warning("%d pending entries belong to no record: claimed back", len(strange))
            batch = Batch()
            batch.count("tampered", len(strange))
            self._pending.claim_back(self._term.master, strange, batch, spared=self._named)
            self._steps.advance(batch)
        return bool(strange)

    def _mended_since(self, after: str, upto: str) -> bool:
        """Whether somebody acknowledged what lies there since it was looked at: it is pending again."""
        return self._acknowledged is not None and self._acknowledged.mend_since(after, upto)

    def _is_any_pending(self, after: str, to: str) -> bool:
        return bool(self._wire.call("XPENDING", self._keys.stream, self._keys.group, f"({after}", to, 1))

    def _take(self, entry: Any, full: bool, batch: Batch) -> None:
        id_, fields = entry[0].decode(), entry[1]
        lane = self._lane
        if id_ in self._named and self._is_known(id_, fields, batch):
            return
        name = ticket_of(fields)
        if name is not None and (full or self._is_spilled(name)):
            # It is read when there is room for it; now it counts only that its ticket has it.
            lane.leave(name, id_, batch)
        elif len(entry) == 2 or not full:
            self._reading.ingest(entry, batch)
        else:
            # Its ticket is not among its first fields, if it has one at all.
            self._reading.ingest(self._reading.read_on(after=id_before(id_key(id_))).entries[0], batch)

    def _is_known(self, id_: str, fields: Any, batch: Batch) -> bool:
        """Whether the message, which a record named, is in the picture already; one whose entry is gone is taken."""
        lane = self._lane
        self._unseen.pop(id_, None)
        ticket = lane.tickets.get(self._named[id_].id)
        # In flight and pending here: moved by hand, or the group was made anew. `ManualChanges` puts it right.
        if id_ in lane.in_flight or id_ in lane.resting.tickets:
            return True
        if ticket is not None and any(message.id == id_ for message in ticket.waiting):
            return True
        if ticket is not None and id_ in self._front_ids and not fields:
            self._first_messages.find(ticket, id_, batch)
            return True
        return False

    def _is_spilled(self, name: str) -> bool:
        ticket = self._lane.tickets.get(name)
        return ticket is not None and ticket.spilled_from is not None

    # -- what records say, and the pending list does not: somebody acknowledged or deleted it ------------------------

    def _find_first_messages(self) -> None:
        """What awaits a retry and was not begun is read in its place, if it is pending."""
        batch = Batch()
        for id_ in self._missing(list(self._front_ids)):
            logger.warning("message %s awaits a retry, and was not pending", id_)
            batch.count("tampered")
            self._first_messages.find(self._named[id_], id_, batch)
        self._steps.advance(batch)

    def _find_unseen(self) -> None:
        """What rests, and was not among what is pending."""
        lane = self._lane
        taken = self._missing([id_ for id_ in self._unseen if id_ in lane.resting.tickets])
        if taken:
            logger.warning("%d messages await a retry, and were not pending: they are again", len(taken))
            batch = Batch()
            batch.count("tampered", len(taken))
            # What is deleted, too, is dead when its time comes.
            self._pending.claim_back(self._term.master, taken, batch, spared=taken)
            self._steps.advance(batch)

    def _find_parked(self) -> None:
        """The message that was begun before its ticket was parked."""
        begun = {ticket.front_id: ticket for ticket in self._lane.parked.values() if ticket.front_id}
        for id_ in self._missing(list(begun)):
            ticket = begun[id_]
            if message_of(self._term, ticket.id, id_).payload:
                # What else was taken, and from where on, nobody knows: all of it comes after the floor.
                ticket.parked_from = min(id_key(id_), ticket.parked_from or id_key(id_))
                if self._term.settings.history and self._floor is not None:
                    ticket.parked_from = min(ticket.parked_from, key_after(self._floor))
                self._manual_changes.mend_parked({ticket: 1})

    def _missing(self, ids: list[str]) -> list[str]:
        """Those of ``ids`` that are pending under no name."""
        found: list[str] = []
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            commands = [("XPENDING", self._keys.stream, self._keys.group, id_, id_, 1) for id_ in page]
            found += [id_ for id_, rows in zip(page, self._wire.call_many(commands), strict=True) if not rows]
        return found
