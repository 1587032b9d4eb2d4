"""Reads spilled messages again: those of tickets that have worked off most of what they had in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.pending import own_pending
from bridge.picture import Ticket, id_before, id_key, key_after
from bridge.rebuild import find_front
from routing.messages import Refusal
from routing.transitions import Batch

if TYPE_CHECKING:
    from bridge.leader import Leader


class Refill:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane

    def run(self) -> None:
        """Reads spilled messages of tickets that have worked off most of what they had in memory."""
        lane = self._lane
        hungry = [t for t in lane.spilled if len(t.waiting) <= lane.cap // 4]
        starving = any(not t.waiting for t in hungry)
        # One pass over the pending entries serves all: so it waits until it serves many, or somebody has nothing left.
        if lane.full or not (starving or len(hungry) > len(lane.spilled) // 4):
            return
        start = min(t.spilled_from for t in hungry if t.spilled_from is not None)
        # Only these are read from their first spilled message on.
        served = {t for t in lane.spilled if t.spilled_from is not None and t.spilled_from >= start}
        cursor = id_before(start)
        cap = lane.cap
        satisfied: set[Ticket] = set()
        trimmed: list[Refusal] = []
        fronts = {t.front_id for t in served if t.front_id}
        batch = Batch()
        for page in own_pending(self._leader, cursor):
            # What is newer was not taken in by a read yet; taken here, before it, it could be handled twice.
            entries = [entry for entry in page if id_key(entry[0].decode()) <= lane.read_to]
            for raw_id, fields in entries:
                id_ = raw_id.decode()
                if id_ in lane.in_flight or (id_ in fronts and not fields):
                    continue
                found = self._leader.parser.parse(id_, fields or ())
                if isinstance(found, Refusal):
                    trimmed.append(found)
                    continue
                ticket = lane.tickets.get(found.ticket)
                if ticket is None and found.ticket in lane.parked:
                    # It was spilled when its ticket was parked: nobody shall have to read it again until then.
                    lane.shelve(lane.parked[found.ticket], [id_], batch)
                    continue
                if ticket not in served or ticket in satisfied or ticket.spilled_from is None:
                    continue
                if id_key(id_) < ticket.spilled_from or (ticket.waiting and ticket.waiting[0].id == id_):
                    # The one that comes first may have been read by its id before.
                    continue
                if len(ticket.waiting) >= cap:
                    ticket.spilled_from = id_key(id_)
                    satisfied.add(ticket)
                    continue
                lane.append(ticket, found)
                lane.make_ready(ticket)
            if entries and satisfied.issuperset(hungry):
                # Those that are not satisfied have been read up to here only.
                next_one = key_after(id_key(entries[-1][0].decode()))
                for ticket in served - satisfied:
                    ticket.spilled_from = max(ticket.spilled_from or (0, 0), next_one)
                break
        else:
            # Read to the end: what was not satisfied has all it has in memory.
            for ticket in served - satisfied:
                ticket.spilled_from = None
                lane.spilled.discard(ticket)
                lane.drop_if_done(ticket)
        for ticket in served:
            if ticket.front_id and not ticket.run:
                # It is behind more messages that were put back than may be in memory, or not pending any more.
                find_front(self._leader, ticket, ticket.front_id, batch)
                lane.make_ready(ticket)
        self._refuse_trimmed(trimmed, batch)
        # Also when it is empty: what is ready now may have nothing else to wake the leader for it.
        self._leader.advance(batch)

    def _refuse_trimmed(self, refusals: list[Refusal], batch: Batch) -> None:
        """Entries that were deleted from the stream while they were spilled are dead letters; those that are in memory
        are handled as if they were there.
        """
        if not refusals:
            return
        known = {message.id for ticket in self._lane.tickets.values() for message in ticket.waiting}
        for refusal in refusals:
            if refusal.id not in known:
                self._lane.refuse(refusal, batch)
