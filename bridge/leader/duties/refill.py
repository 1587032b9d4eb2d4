"""Reads spilled messages again, for tickets that have used up most of their messages in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bridge.leader.picture.pieces import Ticket
from bridge.leader.stream.by_id import AT_ONCE, set_due_times
from bridge.routing.batch import Batch
from bridge.routing.ids import Place, first_id_from, id_before, id_key, key_after, member_of
from bridge.routing.messages import LeftOut, Message, Refusal, ticket_of
from bridge.routing.transitions import READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.manual_changes import ManualChanges
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.delayed import Delayed
    from bridge.leader.stream.first_messages import FirstMessages
    from bridge.leader.stream.pending import PendingList
    from bridge.leader.stream.reading import Reading
    from bridge.routing.message_options import MessageOptions

#: Most late messages in one page.
LATE = 500
#: Most messages that are read by their ids before a page.
FRONTS = 500


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
        delayed: Delayed,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._reading = reading
        self._pending = pending
        self._first_messages = first_messages
        self._manual_changes = manual_changes
        self._delayed = delayed

    @property
    def waits(self) -> bool:
        """Whether there is a page to read, and room for it."""
        lane = self._lane
        if not lane.spilled or lane.full:
            return False
        needs = self._needs()
        # One page serves many tickets. So it is read when many need it, or when one has no message left. If none is
        # found without one, there are no more tickets than messages in memory.
        if any(not ticket.waiting and needs(ticket) for ticket in lane.spilled):
            return True
        return sum(map(needs, lane.spilled)) > len(lane.spilled) // 4

    def _needs(self) -> Callable[[Ticket], bool]:
        """Whether a spilled ticket needs messages, and can be given some."""
        lane = self._lane
        few, little = lane.cap // 4, lane.byte_cap // 4
        is_apart = lane.behind and lane.has_late

        def needs(ticket: Ticket) -> bool:
            if len(ticket.waiting) > few or ticket.bytes > little or (ticket.front_id and ticket.run):
                return False
            place = ticket.spilled_from
            return not is_apart or bool(ticket.front_id) or (place is not None and self._is_reached(place))

        return needs

    def _is_reached(self, place: Place) -> bool:
        """Whether the messages at ``place`` may be read. A new leader must have read those before it, first."""
        return not self._lane.behind or place <= self._lane.read_to

    def run(self) -> None:
        """Reads one page of spilled messages, if tickets need it.

        Each ticket notes how far it was read (`Ticket.spilled_from`). So other steps may happen between two pages.
        """
        lane = self._lane
        if not self.waits:
            return
        batch = Batch()
        for ticket in lane.spilled.fronts(FRONTS):
            # This message comes first, even before replayed ones, and even if it was acknowledged by hand.
            self._first_messages.find(ticket, ticket.front_id, batch)
            lane.make_ready(ticket)
        start = lane.spilled.first(self._needs())
        if start is not None and self._is_reached(start):
            self._read_page(start, batch)
        # Even when the batch is empty: no other event may wake the leader for tickets that are ready now.
        self._steps.advance(batch)

    def _read_page(self, start: Place, batch: Batch) -> None:
        lane = self._lane
        first = first_id_from(start)
        satisfied: set[Ticket] = set()
        trimmed: list[Refusal | LeftOut] = []
        found = self._reading.read_on(after=id_before(first))
        if self._manual_changes.mend_taken():
            # Some messages may not have been pending. They are pending now, so the page is read again.
            return
        last = id_key(found.entries[-1][0].decode()) if found.more and found.entries else lane.read_to
        stray, reached = self._pending.stray_between(id_before(first), min(last, lane.read_to))
        if stray:
            # These entries were claimed by hand, so they are not in this page. Later ones must not be taken before
            # them.
            self._manual_changes.compare()
            return
        # Stop at the last entry that was read. A later entry would be taken in again by the next read.
        ended = not (reached < min(last, lane.read_to) or (found.more and last <= lane.read_to))
        # A later message of any kind than those of this page.
        next_one: Place | None = None if ended else key_after(reached)
        entries: list[tuple[Place, Any]] = [(id_key(entry[0].decode()), entry) for entry in found.entries]
        if lane.has_late:
            if lane.behind and next_one is None:
                next_one = key_after(lane.read_to)
            late, after_late = self._delayed.late_from(start, LATE)
            if after_late is not None and (next_one is None or after_late < next_one):
                next_one = after_late
            known = self._delayed.late_among([entry[0].decode() for _, entry in entries])
            entries = [pair for pair in entries if pair[1][0].decode() not in known]
            mine, after_mine = self._late_entries([one for one in late if next_one is None or one[0] < next_one])
            next_one = after_mine or next_one
            entries = sorted([*entries, *mine], key=lambda pair: pair[0])
        # Only these tickets are read from their first spilled message on.
        served = lane.spilled.between(start, next_one)
        for place, entry in entries:
            if (next_one is not None and place >= next_one) or (len(place) == 2 and place > reached):
                continue
            id_, fields = entry[0].decode(), entry[1]
            if id_ in lane.in_flight or id_ in lane.resting.tickets:
                continue
            name = ticket_of(fields)
            ticket = None if name is None else lane.tickets.get(name)
            if name is not None and name not in lane.parked and (ticket is None or ticket not in served):
                continue
            message = self._term.parser.parse_entry(entry)
            if not isinstance(message, Message):
                trimmed.append(message)
                continue
            if message.options is not None and not self._set_due_time(message, message.options, place, batch):
                continue
            ticket = lane.tickets.get(message.ticket)
            if ticket is None and message.ticket in lane.parked:
                # The message was spilled when its ticket was parked. Put it aside, so that it is not read again.
                lane.shelve(lane.parked[message.ticket], {id_: place}, batch)
                continue
            if ticket is None or ticket not in served or ticket in satisfied or ticket.spilled_from is None:
                continue
            if place < ticket.spilled_from or (ticket.waiting and ticket.waiting[0].id == id_):
                # The first message may have been read by its id before.
                continue
            if lane.has_enough(ticket, message.size):
                ticket.spilled_from = place
                satisfied.add(ticket)
                continue
            lane.append(ticket, message)
            lane.make_ready(ticket)
            if not ticket.waiting:
                # No consumer can run this message, or another version goes first. It and the later ones are read again.
                ticket.waiting_known += 1
                satisfied.add(ticket)
        if next_one is not None:
            lane.spilled.read_to(next_one, served, but=satisfied)
        else:
            # Read to the end: all messages of the tickets that are not satisfied are in memory.
            for ticket in served.tickets - satisfied:
                ticket.spilled_from = None
                lane.spilled.discard(ticket)
                # A new leader may not have come to the message that the ticket's record names.
                if not (lane.behind and ticket.record):
                    lane.drop_if_done(ticket)
        self._refuse_trimmed(trimmed, batch)

    def _late_entries(self, late: list[tuple[Place, str]]) -> tuple[list[tuple[Place, Any]], Place | None]:
        """Those of these late messages that wait under the master's name, in the form of a read; and the place before
        which it stopped, because they were large.
        """
        keys, call_many = self._term.keys, self._term.wire.call_many
        rows = call_many([("XPENDING", keys.stream, keys.group, id_, id_, 1) for _, id_ in late])
        master = self._term.master.encode()
        mine = [one for one, found in zip(late, rows, strict=True) if found and found[0][1] == master]
        entries: list[tuple[Place, Any]] = []
        at, count, total = 0, 4, 0
        while at < len(mine):
            if total >= READ_BYTES:
                return entries, mine[at][0]
            some = mine[at : at + count]
            replies = call_many([("XRANGE", keys.stream, id_, id_) for _, id_ in some])
            largest = 1
            for (place, id_), found in zip(some, replies, strict=True):
                entry = found[0] if found else [id_.encode(), []]
                size = sum(map(len, entry[1]))
                total, largest = total + size, max(largest, size)
                entries.append((place, entry))
            at += count
            count = max(1, min(AT_ONCE, count * 2, READ_BYTES // largest))
        return entries, None

    def _set_due_time(self, message: Message, options: MessageOptions, place: Place, batch: Batch) -> bool:
        """Sets when the message was due as the lane knows it. Returns False for one that is delayed again: an earlier
        leader died before it had noted that.
        """
        if len(place) > 2:
            message.options = replace(options, due_ms=place[0], hold=False)
        elif options.overtakes:
            self._lane.delay(message, options.due_ms, batch)
            return False
        else:
            set_due_times(self._term, [message])
        return True

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
                batch.over.append(member_of(refusal.id))
                self._lane.leave_out(refusal.id, batch)
            else:
                self._lane.refuse(refusal, batch)
