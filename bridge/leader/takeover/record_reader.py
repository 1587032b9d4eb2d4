"""Reads the ticket records into a new leader's picture: messages in flight (with their payloads), messages that await a
retry, parked tickets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer, Parcel, Ticket
from bridge.leader.stream.by_id import read_messages
from bridge.leader.stream.pending import PAGE, pairs
from bridge.protocol.unreadable import SHOWN_CHARS, skip
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.ids import id_key
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList

logger = get_logger(__name__)


class RecordReader:
    """The records of a lane, read once."""

    def __init__(self, term: Term, lane: Lane, pending: PendingList) -> None:
        self._term = term
        self._lane = lane
        self._pending = pending
        self._keys = term.keys
        self._wire = term.wire
        #: Message id in a ticket record -> its ticket.
        self.named: dict[str, Ticket] = {}
        #: Ids of messages that await a retry and have no counted attempt or loss.
        self.front_ids: set[str] = set()
        #: Id of a resting ticket's oldest message that was not seen in the pending list yet -> its ticket.
        self.unseen: dict[str, Ticket] = {}
        #: To be written behind `read`: new records of tickets whose records cannot be read.
        self.replacing = Batch()

    def read(self) -> None:
        """Reads all records. Called once."""
        lane = self._lane
        owners = self._pending.owners()
        due = dict(pairs(self._wire.call("ZRANGE", self._keys.retries, 0, -1, "WITHSCORES")))
        cursor: Any = b"0"
        while True:
            cursor, flat = self._wire.call("HSCAN", self._keys.tickets, cursor, "COUNT", PAGE)
            flying: list[tuple[Ticket, str]] = []
            for name, text in pairs(flat):
                try:
                    ticket = Ticket(name.decode())
                except UnicodeDecodeError:
                    # No message is of such a ticket.
                    skip(self._keys.tickets, name, text)
                    continue
                if ticket.id in lane.tickets or ticket.id in lane.parked:
                    # HSCAN may return a ticket twice.
                    continue
                lane.tickets[ticket.id] = ticket
                try:
                    record, ticket.record = records.parse(text), text.decode()
                except ValueError as exc:
                    record = self._replace(ticket, text, exc)
                ticket.attempt = record.attempt
                ticket.losses, ticket.lost, ticket.cause = record.losses, record.lost, record.cause
                ticket.nacked, ticket.nacked_since_ms = records.nacks_in(record.cause)
                if record.parked:
                    self._put_aside(ticket, record, owners)
                elif record.in_flight:
                    self._put_in_flight(ticket, record)
                    flying += [(ticket, id_) for id_ in record.ids]
                else:
                    front = record.ids[0]
                    ticket.holding = not ticket.begun and record.cause == records.HELD
                    if ticket.begun or ticket.holding:
                        lane.resting.put(ticket, front)
                        self.unseen[front] = ticket
                    else:
                        self.front_ids.add(front)
                    lane.hold_back(ticket, int(float(due.get(name, b"0"))))
                self.named.update(dict.fromkeys(record.ids, ticket))
            named = [(ticket.id, id_) for ticket, id_ in flying]
            for (ticket, _), message in zip(flying, read_messages(self._term, named), strict=True):
                assert ticket.consumer is not None
                lane.held += 1
                lane.bytes += message.size
                lane.put_in_flight(ticket, ticket.consumer, message)
            if cursor == b"0":
                break
        self._find_parked_from()

    def _replace(self, ticket: Ticket, text: bytes, exc: ValueError) -> records.Record:
        """The record of a parked ticket, in place of ``text``, which cannot be read: nobody knows what of it runs, and
        which attempt is the next. It goes on when an operator releases it.
        """
        shown = one_line(text.decode(errors="replace"), SHOWN_CHARS)
        logger.error(
            "the field %r of the key %s cannot be read (%s): %r; nobody knows what of this ticket runs, so it is "
            "parked: release it when no consumer runs a message of it",
            *(ticket.id, self._keys.tickets, exc, shown),
        )
        tail = records.tail("", "", 1, [], self._lane.clock.server_ms(), f"its record could not be read: {shown}")
        ticket.record = records.record(records.PARKED, tail)
        batch = self.replacing
        batch.expected[ticket.id] = text
        batch.records += (ticket.id, ticket.record)
        batch.due.append(ticket.id)
        batch.count("parked")
        return records.parse(ticket.record)

    def _put_aside(self, ticket: Ticket, record: records.Record, owners: dict[str, int]) -> None:
        lane = self._lane
        del lane.tickets[ticket.id]
        lane.parked[ticket.id] = ticket
        ticket.parked = True
        ticket.front_id = record.ids[0] if record.ids else ""
        ticket.shelved = owners.get(lane.parked_name(ticket.id), 0)

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
            # The consumer is not registered any more. Its lease decides whether it lives.
            queue = self._keys.queue(record.consumer)
            consumer = Consumer(record.consumer, record.incarnation, queue, 1, None)
            consumer.alive = False
            lane.consumers[record.incarnation] = consumer
        ticket.consumer = consumer
        ticket.fence = ticket.run_fence = record.fence
        ticket.dispatched_ms = record.at_ms
        ticket.cause = record.cause if ticket.nacked else ""
        if record.cause.startswith(records.PARK_AFTER):
            ticket.park_reason = record.cause.removeprefix(records.PARK_AFTER)
        parcel = ticket.parcel = Parcel(consumer, len(record.ids), float(len(record.ids)))
        consumer.parcels += 1
        consumer.backlog_ms += parcel.share_ms * len(record.ids)
        consumer.tickets.add(ticket)
