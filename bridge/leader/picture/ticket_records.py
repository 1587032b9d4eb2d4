"""The records of a lane's tickets: which of them a batch changes, and what it writes. No I/O.

A record says that a run is in flight, that a ticket awaits a retry, or that it is parked. The messages of a parked
ticket are not in memory. They are pending under a name of their own until the ticket is released.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bridge.leader.picture.ready import Ready
from bridge.routing import records
from bridge.routing.ids import Place, id_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.picture.times import Times
    from bridge.routing.batch import Batch
    from bridge.settings.lane import LaneSettings

#: How the record of a ticket that awaits a retry begins.
AWAITING = f"[{records.AWAITING},"
#: After so many ms of steps of the server's clock, all backoffs are written again.
WRITTEN_AGAIN_MS = 1000
#: Most records that a step writes because of what they do not say yet.
UNRECORDED_AT_ONCE = 2000


class TicketRecords(Ready):
    """The records of tickets, and the parked tickets. A base class of `bridge.leader.picture.lane.Lane`."""

    def __init__(self, settings: LaneSettings, clock: Times) -> None:
        super().__init__(settings, clock)
        #: Tickets with a replayed or released message. It may be older than `Ticket.since` says.
        self.older: set[Ticket] = set()
        #: Parked tickets by id. They are not in ``tickets``.
        self.parked: dict[str, Ticket] = {}
        #: Tickets whose record the next batch changes.
        self._touched: dict[Ticket, None] = {}
        #: The steps of the server's clock that the backoffs in the records have (ms).
        self._written_steps_ms = self.steps_ms

    def touch(self, ticket: Ticket, batch: Batch) -> None:
        """Notes that the batch changes the record of ``ticket``, and which text the record must have until then."""
        if ticket not in self._touched:
            self._touched[ticket] = None
            batch.expected[ticket.id] = ticket.record

    def close(self, batch: Batch, dispatched: set[Ticket]) -> None:
        """Writes the new records of all touched tickets into the batch."""
        if abs(self.steps_ms - self._written_steps_ms) >= WRITTEN_AGAIN_MS:
            self._note_steps()
        if self.unrecorded:
            for ticket in list(islice(self.unrecorded, UNRECORDED_AT_ONCE)):
                del self.unrecorded[ticket]
                if self.tickets.get(ticket.id) is ticket:
                    self.touch(ticket, batch)
        for ticket in self._touched:
            if ticket in dispatched:
                continue
            if ticket.run:
                self._close_run(ticket, batch)
            elif ticket.park_reason is not None:
                self._stand_still(ticket, batch)
            elif (ticket.due_ms and (ticket.waiting or ticket.front_id)) or ticket.begun:
                # Even when it is due and no consumer has room: its attempts and losses must outlive this leader.
                front = ticket.front_id or ticket.waiting[0].id
                why = (records.HELD if ticket.holding else ticket.cause, ticket.losses, ticket.lost)
                tail = records.tail("", "", ticket.attempt, [front], self.clock.server_ms(), *why)
                ticket.record = records.record(records.AWAITING, tail)
                batch.records += (ticket.id, ticket.record)
                batch.retries += (ticket.due_ms or self.clock.settled_ms(), ticket.id)
                if ticket.begun or ticket.holding:
                    self.resting.rest(ticket)
            else:
                if ticket.record:
                    batch.released.append(ticket.id)
                    if ticket.record.startswith(AWAITING):
                        batch.due.append(ticket.id)
                ticket.record = ""
                self.drop_if_done(ticket)

    def _note_steps(self) -> None:
        """The server's clock was set, and a new leader goes by it. So all backoffs are written again.

        Also those that are over, of tickets that wait for room: a clock that was set back may say that they go on.
        """
        self._written_steps_ms = self.steps_ms
        for ticket in self.tickets.values():
            if ticket.record.startswith(AWAITING) and not (ticket.holding or ticket.run):
                self.unrecorded[ticket] = None

    def _close_run(self, ticket: Ticket, batch: Batch) -> None:
        consumer = ticket.consumer
        assert consumer is not None
        ids = [message.id for message in ticket.run]
        cause = ticket.cause if ticket.nacked else ""
        if ticket.park_reason is not None:
            cause = records.PARK_AFTER + ticket.park_reason
        why = (cause, ticket.losses, ticket.lost)
        ticket.tail = records.tail(consumer.name, consumer.incarnation, ticket.attempt, ids, ticket.dispatched_ms, *why)
        ticket.record = records.record(ticket.fence, ticket.tail)
        batch.records += (ticket.id, ticket.record)

    def written(self, dispatched: dict[Ticket, int], base: int) -> None:
        """Takes the fences of a written batch into the picture. ``dispatched`` maps tickets to fence offsets."""
        self._touched.clear()
        for ticket, offset in dispatched.items():
            ticket.fence = ticket.run_fence = base + offset
            ticket.record = records.record(ticket.fence, ticket.tail)

    def drop_if_done(self, ticket: Ticket) -> None:
        """Forgets the ticket if it has no undone message."""
        if not (ticket.waiting or ticket.run or ticket.due_ms or ticket.spilled_from or ticket.front_id):
            self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self.tickets.pop(ticket.id, None)
        self.older.discard(ticket)
        self.stranded.drop(ticket)

    # -- parked tickets --------------------------------------------------------------------------------------------

    def park(self, ticket: Ticket, reason: str, batch: Batch) -> None:
        """Parks the ticket as soon as no message of it is in flight."""
        self.touch(ticket, batch)
        self.unqueue(ticket)
        ticket.park_reason = reason

    def shelve(self, ticket: Ticket, places: Mapping[str, Place], batch: Batch) -> None:
        """Puts messages of a parked ticket aside: they become pending under the ticket's own name. ``places``: message
        id -> a place that the message does not come before.
        """
        batch.shelve(self.parked_name(ticket.id), list(places))
        ticket.shelved += len(places)
        oldest = min(places.values(), default=None)
        if oldest is not None and (ticket.parked_from is None or oldest < ticket.parked_from):
            ticket.parked_from = oldest

    def unshelve(self, ticket: Ticket, is_shelved: bool) -> None:
        """Counts off a message of a parked ticket that is acknowledged. ``is_shelved``: it was put aside."""
        ticket.shelved -= is_shelved

    def _stand_still(self, ticket: Ticket, batch: Batch) -> None:
        """Writes into the batch that the ticket is parked, and removes its messages from memory."""
        # The record has the reason of the parking in the place where it had the refusals.
        ticket.nacked = 0
        places = {message.id: message.place for message in ticket.waiting}
        if self.resting.rests(ticket):
            # By its id, no message comes too late.
            places = {id_: id_key(id_) for id_ in self.resting.known(ticket)}
            self.resting.drop(ticket)
        self.shelve(ticket, places, batch)
        if ticket.record.startswith(AWAITING):
            batch.due.append(ticket.id)
        if not ticket.begun:
            ticket.front_id = ""
        elif ticket.waiting and not ticket.front_id:
            # If ``front_id`` is set, the message was not read again after the last release.
            ticket.front_id = ticket.waiting[0].id
        begun = [ticket.front_id] if ticket.front_id else []
        reason = ticket.park_reason or ""
        tail = records.tail("", "", ticket.attempt, begun, self.clock.server_ms(), reason, ticket.losses, ticket.lost)
        ticket.record = records.record(records.PARKED, tail)
        batch.records += (ticket.id, ticket.record)
        self.forget_waiting(ticket)
        ticket.due_ms = 0
        ticket.holding = False
        ticket.park_reason = None
        ticket.parked = True
        ticket.consumer = None
        self.spilled.discard(ticket)
        self.stranded.drop(ticket)
        self._forget(ticket)
        self.parked[ticket.id] = ticket
        batch.count("parked")

    def unpark(self, ticket: Ticket, batch: Batch) -> None:
        """Releases the ticket. Its messages are pending under the master's name again, and count as spilled."""
        del self.parked[ticket.id]
        ticket.parked = False
        self.tickets[ticket.id] = ticket
        self.older.add(ticket)
        if ticket.parked_from is not None:
            ticket.spilled_from = min(ticket.parked_from, ticket.spilled_from or ticket.parked_from)
        ticket.parked_from = None
        ticket.shelved = 0
        if ticket.front_id:
            # Even when it is not pending: someone acknowledged it by hand, and the refill finds that out.
            front = id_key(ticket.front_id)
            ticket.spilled_from = min(front, ticket.spilled_from or front)
        if ticket.spilled_from is not None:
            self.spilled.add(ticket)
        self.touch(ticket, batch)

    def parked_name(self, ticket_id: str) -> str:
        """The name under which the messages of a parked ticket are pending."""
        return self.settings.keys.parked_consumer(self.settings.master, ticket_id)
