"""Reads spilled messages again, for tickets that have used up most of their messages in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.routing.batch import Batch
from bridge.routing.ids import id_before, id_key, key_after
from bridge.routing.messages import LeftOut, Message, Refusal, ticket_of

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.manual_changes import ManualChanges
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.first_messages import FirstMessages
    from bridge.leader.stream.pending import PendingList
    from bridge.leader.stream.reading import Reading


class Refill:
    """Reads spilled messages of one lane, on the leader's thread."""

    def __init__(
        self,
        term: Term,
        lane: Lane,
        steps: Steps,
        reading: Reading,
        pending: PendingList,
        first_messages: FirstMessages,
        manual_changes: ManualChanges,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._reading = reading
        self._pending = pending
        self._first_messages = first_messages
        self._manual_changes = manual_changes

    @property
    def waits(self) -> bool:
        """Whether there is a page to read, and room for it."""
        return bool(self._need_page())

    def _need_page(self) -> list[Ticket]:
        """The tickets that still need messages. Empty when few need some yet, or when there is no room."""
        lane = self._lane
        if not lane.spilled or lane.full:
            return []
        few, little = lane.cap // 4, lane.byte_cap // 4
        tickets = [
            t for t in lane.spilled if len(t.waiting) <= few and t.bytes <= little and not (t.front_id and t.run)
        ]
        # One page serves many tickets. So it is read when many need it, or when one has no message left.
        if len(tickets) > len(lane.spilled) // 4 or any(not t.waiting for t in tickets):
            return tickets
        return []

    def run(self) -> None:
        """Reads one page of spilled messages, if tickets need it.

        Each ticket notes how far it was read (`Ticket.spilled_from`). So other steps may happen between two pages.
        """
        lane = self._lane
        tickets = self._need_page()
        if not tickets:
            return
        batch = Batch()
        for ticket in tickets:
            if ticket.front_id and not ticket.run:
                # This message comes first, even before replayed ones, and even if it was acknowledged by hand.
                self._first_messages.find(ticket, ticket.front_id, batch)
                lane.make_ready(ticket)
        start = min((t.spilled_from for t in tickets if t.spilled_from is not None and t in lane.spilled), default=None)
        if start is not None:
            self._read_page(start, batch)
        # Even when the batch is empty: no other event may wake the leader for tickets that are ready now.
        self._steps.advance(batch)

    def _read_page(self, start: tuple[int, int], batch: Batch) -> None:
        lane = self._lane
        # Only these tickets are read from their first spilled message on.
        served = {t for t in lane.spilled if t.spilled_from is not None and t.spilled_from >= start and not t.front_id}
        satisfied: set[Ticket] = set()
        trimmed: list[Refusal | LeftOut] = []
        found = self._reading.read_on(after=id_before(start))
        if self._manual_changes.mend_taken():
            # Some messages may not have been pending. They are pending now, so the page is read again.
            return
        last = id_key(found.entries[-1][0].decode()) if found.more and found.entries else lane.read_to
        strange, reached = self._pending.strange_between(id_before(start), min(last, lane.read_to))
        if strange:
            # These entries were claimed by hand, so they are not in this page. Later ones must not be taken before
            # them.
            self._manual_changes.compare()
            return
        # Stop at the last entry that was read. A later entry would be taken in again by the next read.
        entries = [entry for entry in found.entries if id_key(entry[0].decode()) <= reached]
        for entry in entries:
            id_, fields = entry[0].decode(), entry[1]
            if id_ in lane.in_flight or id_ in lane.resting.tickets:
                continue
            name = ticket_of(fields)
            if name is not None and name not in lane.parked and lane.tickets.get(name) not in served:
                continue
            message = self._term.parser.parse_entry(entry)
            if not isinstance(message, Message):
                trimmed.append(message)
                continue
            ticket = lane.tickets.get(message.ticket)
            if ticket is None and message.ticket in lane.parked:
                # The message was spilled when its ticket was parked. Put it aside, so that it is not read again.
                lane.shelve(lane.parked[message.ticket], [id_], batch)
                continue
            if ticket not in served or ticket in satisfied or ticket.spilled_from is None:
                continue
            if id_key(id_) < ticket.spilled_from or (ticket.waiting and ticket.waiting[0].id == id_):
                # The first message may have been read by its id before.
                continue
            if lane.has_enough(ticket, message.size):
                ticket.spilled_from = id_key(id_)
                satisfied.add(ticket)
                continue
            lane.append(ticket, message)
            lane.make_ready(ticket)
            if not ticket.waiting:
                # No consumer can run this message, or another version goes first. It and the later ones are read again.
                ticket.waiting_known += 1
                satisfied.add(ticket)
        if reached < min(last, lane.read_to) or (found.more and last <= lane.read_to):
            next_one = key_after(reached)
            for ticket in served - satisfied:
                ticket.spilled_from = max(ticket.spilled_from or (0, 0), next_one)
        else:
            # Read to the end: all messages of the tickets that are not satisfied are in memory.
            for ticket in served - satisfied:
                ticket.spilled_from = None
                lane.spilled.discard(ticket)
                lane.drop_if_done(ticket)
        self._refuse_trimmed(trimmed, batch)

    def _refuse_trimmed(self, refusals: list[Refusal | LeftOut], batch: Batch) -> None:
        """Makes messages dead letters whose entries were deleted from the stream while they were spilled.

        Leaves those out that the lane does not want any more, since its filter changed.

        Messages that are in memory are handled as usual.
        """
        if not refusals:
            return
        known = {message.id for ticket in self._lane.tickets.values() for message in ticket.waiting}
        for refusal in refusals:
            if refusal.id in known:
                continue
            if isinstance(refusal, LeftOut):
                self._lane.leave_out(refusal.id, batch)
            else:
                self._lane.refuse(refusal, batch)
