"""Tickets with spilled messages, in the order of the places where these begin. No I/O.

There may be as many as tickets wait: all that waited for one task come at once when a consumer of it arrives. A page of
messages concerns few of them, so it must not cost a look at all.

- The order is a heap. Its entries may be outdated, since a ticket's place changes at many spots. One that is found with
  another place than its ticket's is put back with that one. A place that became smaller makes a ticket wait, and passes
  over no message: what decides is the ticket's own place.
- Tickets that were read to the same place share it (`Scan`): the next page moves all of them on at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from itertools import count

from bridge.leader.picture.pieces import Scan, Ticket
from bridge.routing.ids import Place

#: Outdated entries from which on the heap is made again, beside as many as there are tickets.
OUTDATED = 1000


class Served:
    """The tickets that a page of messages may serve."""

    def __init__(self, tickets: set[Ticket], scans: Collection[Scan] = ()) -> None:
        self.tickets = tickets
        self.scans = scans

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self.tickets or ticket.scan in self.scans


class Spilled(set[Ticket]):
    """A set that also knows which of its tickets come first."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Place, int, Ticket | Scan]] = []
        self._sequence = count()
        #: Tickets that were added or changed, and are not in the heap with their place yet.
        self._changed: dict[Ticket, None] = {}
        #: Tickets with a message that must be read first, by its id (`Ticket.front_id`).
        self._fronts: dict[Ticket, None] = {}

    def add(self, ticket: Ticket) -> None:
        super().add(ticket)
        self._changed[ticket] = None

    def discard(self, ticket: object) -> None:
        if isinstance(ticket, Ticket):
            ticket.leave_scan()
            # Nothing may read here for long, and the ticket may be forgotten.
            self._changed.pop(ticket, None)
            self._fronts.pop(ticket, None)
        super().discard(ticket)

    def fronts(self, most: int) -> list[Ticket]:
        """At most ``most`` tickets whose first message must be read by its id, and which have nothing in flight."""
        self._sort_in()
        found: list[Ticket] = []
        for ticket in list(self._fronts):
            if ticket not in self or not ticket.front_id:
                del self._fronts[ticket]
            elif not ticket.run:
                found.append(ticket)
                if len(found) == most:
                    break
        return found

    def first(self, wanted: Callable[[Ticket], bool]) -> Place | None:
        """The place where the messages of the first of the ``wanted`` tickets begin; None: there is none."""
        self._sort_in()
        passed = []
        found = None
        while self._heap:
            place, _, item = self._heap[0]
            if not self._is_here(item):
                heapq.heappop(self._heap)
            elif item.spilled_from != place:
                heapq.heappop(self._heap)
                self._push(item)
            elif any(map(wanted, item.members)):
                if isinstance(item, Ticket) and item.front_id:
                    self._fronts[item] = None
                found = place
                break
            else:
                passed.append(heapq.heappop(self._heap))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def between(self, start: Place, end: Place | None) -> Served:
        """The tickets whose messages begin at ``start`` or later, and before ``end``; None: all of these. Not those
        whose first message must be read by its id. With an ``end``, `read_to` must follow.
        """
        if end is None:
            return Served(
                {t for t in self if t.spilled_from is not None and t.spilled_from >= start and not t.front_id}
            )
        self._sort_in()
        tickets: set[Ticket] = set()
        scans: set[Scan] = set()
        others = []
        while self._heap and self._heap[0][0] < end:
            _, _, item = heapq.heappop(self._heap)
            place = item.spilled_from
            if not self._is_here(item):
                continue
            if place is None or not start <= place < end or (isinstance(item, Ticket) and item.front_id):
                others.append(item)
            elif isinstance(item, Scan):
                scans.add(item)
            else:
                tickets.add(item)
        for item in others:
            self._push(item)
        return Served(tickets, scans)

    def read_to(self, place: Place, served: Served, but: Collection[Ticket]) -> None:
        """The messages of the ``served`` tickets were read to ``place``, without those of ``but``."""
        for ticket in but:
            ticket.leave_scan()
            if ticket in served.tickets and ticket in self:
                self._changed[ticket] = None
        scan = max(served.scans, key=lambda one: len(one.members), default=None) or Scan(self._changed)
        for other in served.scans:
            if other is not scan:
                for ticket in other.members:
                    ticket.scan = scan
                scan.members |= other.members
                other.members.clear()
        for ticket in served.tickets.difference(but):
            ticket.scan = scan
            scan.members.add(ticket)
        scan.spilled_from = place
        self._push(scan)

    def _is_here(self, item: Ticket | Scan) -> bool:
        """Whether an entry of the heap still stands for something."""
        return bool(item.members) if isinstance(item, Scan) else item in self and item.scan is None

    def _push(self, item: Ticket | Scan) -> None:
        if item.spilled_from is not None:
            heapq.heappush(self._heap, (item.spilled_from, next(self._sequence), item))
        elif isinstance(item, Ticket):
            self._changed[item] = None

    def _sort_in(self) -> None:
        if len(self._heap) > 2 * len(self) + OUTDATED:
            self._heap.clear()
            self._changed.update(dict.fromkeys(self))
            for scan in {ticket.scan for ticket in self if ticket.scan is not None}:
                self._push(scan)
        if not self._changed:
            return
        changed = list(self._changed)
        self._changed.clear()
        for ticket in changed:
            if not self._is_here(ticket):
                continue
            if ticket.front_id:
                self._fronts[ticket] = None
            self._push(ticket)
