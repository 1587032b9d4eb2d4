"""Reads a lane from Redis into a new leader's picture (invariant I6).

`Rebuild.run` does the first four steps, in this order, because each step needs the one before:

1. The group and the stream are made if they are missing. A group that was destroyed or set back, or that lost the
   master's name, has lost its pending list. It is repaired: entries after the *floor* that are not known to be done
   become pending (`bridge.leader.repair.group`).
2. The consumers and their leases are read.
3. The ticket records are read (`bridge.leader.takeover.record_reader`).
4. A message that a record names and that is not pending becomes pending again. If its entry is gone, it is dead.

The cost of `run` grows with the number of messages in flight, resting tickets and parked tickets. There may be millions
of waiting messages. `Rebuild.read_on` takes them in between the turns of the leader's loop, one page at a time, like
new entries of the stream. No newer entries are read until that is done. Each page takes three steps:

5. Entries that were acknowledged by hand become pending again (`bridge.leader.takeover.acknowledged`).
6. Pending entries that no record names are claimed back to the master, whatever name they are pending under.
7. The master's own pending entries are taken in, in id order. They are the waiting messages, in stream order.

Outcomes need no step. A settled outcome is trimmed from the outcome stream, so all that are there are unsettled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.leader.repair.group import HALF_MADE, repair_group
from bridge.leader.stream.by_id import message_of
from bridge.leader.stream.pending import NEVER, PAGE
from bridge.leader.takeover.acknowledged import Acknowledged
from bridge.leader.takeover.record_reader import RecordReader
from bridge.link.connections import is_full
from bridge.routing.batch import Batch
from bridge.routing.errors import ConfigurationError
from bridge.routing.ids import id_before, id_key, id_text, key_after
from bridge.routing.messages import ticket_of
from bridge.routing.transitions import floor as note_floor
from bridge.routing.transitions import last_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bridge.leader.consumers.membership import Consumers
    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.manual_changes import ManualChanges
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.delayed import Delayed
    from bridge.leader.stream.first_messages import FirstMessages
    from bridge.leader.stream.pending import PendingList
    from bridge.leader.stream.reading import Reading


logger = get_logger(__name__)


class Rebuild:
    """Reads the lane once: call `run`, then `read_on` as long as `Lane.behind` is set."""

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
        delayed: Delayed,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._reading = reading
        self._pending = pending
        self._first_messages = first_messages
        self._manual_changes = manual_changes
        self._consumers = consumers
        self._delayed = delayed
        self._keys = term.keys
        self._wire = term.wire
        self._records = RecordReader(term, lane, pending)
        #: Message id in a ticket record -> its ticket.
        self._named = self._records.named
        #: The floor: all entries up to it are done or dead; None: it was never noted.
        self._floor: tuple[int, int] | None = None
        #: How far the group has read.
        self._group_to = (0, 0)
        #: None: there is no history to find entries that were acknowledged by hand.
        self._acknowledged: Acknowledged | None = None
        self._slices = self._take_in()
        lane.behind = True

    def run(self) -> None:
        """Reads all that must be known before anything is settled or dispatched."""
        self._make_group()
        self._consumers.find()
        deleted = self._delayed.begin(self._group_to)
        self._records.read()
        self._find_first_messages()
        batch = self._records.replacing
        if deleted:
            self._delayed.refuse_deleted(deleted, batch)
        if batch:
            self._steps.advance(batch)
        self._pending.count_again()
        lane = self._lane
        logger.info(
            "read the records: %d messages in flight, %d tickets await a retry, %d consumers",
            len(lane.in_flight),
            sum(1 for ticket in lane.tickets.values() if ticket.due_ms),
            sum(1 for consumer in lane.consumers.values() if consumer.alive),
        )

    def read_on(self) -> None:
        """Takes in a slice of the waiting messages.

        Any step may happen between two slices, except reads of new entries.
        """
        self._lane.behind = next(self._slices, None) is not None
        if not self._lane.behind:
            self._named.clear()
            logger.info("read the lane: %d messages in memory", self._lane.held)

    def _make_group(self) -> None:
        floor = self._wire.call("GET", self._keys.floor)
        if floor is None and self._wire.call("EXISTS", self._keys.fence):
            # Messages were dispatched before, but the floor was never noted.
            floor = b"0-0"
        # Begin at 0, because messages that were pushed before the first master ran must be handled too.
        start = "0" if floor is None else HALF_MADE
        try:
            self._wire.call("XGROUP", "CREATE", self._keys.stream, self._keys.group, start, "MKSTREAM")
        except ResponseError as exc:
            # A full server refuses this even when the group exists. The lane must go on, so that it frees memory.
            there = is_full(exc) and self._pending.read_to() is not None
            if str(exc).startswith("WRONGTYPE"):
                raise ConfigurationError(
                    f"the key {self._keys.stream} is not a stream; name another one with bridge_stream, or delete it"
                ) from None
            if not there and not str(exc).startswith("BUSYGROUP"):
                raise
        # Ask in any case, so that a missing permission is found at once.
        names = self._pending.names()
        if floor is not None:
            known = self._mend_group(floor.decode(), names)
            self._floor = None if known is None else id_key(known)
        self._group_to = id_key(self._pending.read_to() or "0-0")
        if floor is None:
            self._note_first_floor()

    def _note_first_floor(self) -> None:
        """Nothing was dispatched yet. The group may begin behind older entries, which are none of its messages: a
        leader that finds no floor later would take them for messages that somebody acknowledged by hand.
        """
        oldest = self._wire.call("XPENDING", self._keys.stream, self._keys.group)[1]
        first = self._group_to if oldest is None else id_key(id_before(id_key(oldest.decode())))
        if min(first, self._group_to) > (0, 0):
            note_floor(self._term.redis, self._term.leadership, id_text(min(first, self._group_to)))

    def _mend_group(self, floor: str, names: set[str]) -> str | None:
        """Repairs the group, if it must be. Returns the floor; None: it is not known any more."""
        read_to = self._pending.read_to() or HALF_MADE
        keys = self._keys
        last = last_id(self._term.redis, keys.stream)
        if read_to == floor == "0-0" and (last == "0-0" or not self._wire.call("EXISTS", keys.history, keys.tickets)):
            # A stream without an entry so far: one that was made again, or a new partition, which has the fence of the
            # older ones (`leave_layout.lua`).
            return floor
        if id_key(read_to) < id_key(floor) or id_key(read_to) <= id_key(HALF_MADE):
            return repair_group(self._term, floor, read_to, "was destroyed, or set back")
        if id_key(read_to) > id_key(last):
            return repair_group(self._term, floor, read_to, "stands beyond the end of the stream")
        if self._term.master not in names:
            # The entries under the master's name are not pending any more. The position of the group is still known.
            return repair_group(self._term, floor, read_to, "has lost the master's name")
        return floor

    def _take_in(self) -> Iterator[bool]:
        """Takes in the entries that are pending under the master's name, in id order, like new entries.

        Each slice ends with a step of the leader, so that the server and the picture agree when the next one begins.
        Messages in ticket records may come into the picture before their place is reached. No other messages can.
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
        """Yields, step by step, the key up to which the pending list is repaired."""
        if self._term.settings.history and self._floor is not None:
            floor, read_to = id_text(self._floor), id_text(self._group_to)
            self._acknowledged = Acknowledged(self._term, self._steps, self._pending, floor, read_to, self._named)
            for id_ in self._acknowledged.mend():
                yield id_key(id_)
        yield NEVER

    def _take_page(self, end: tuple[int, int]) -> bool:
        """Takes in a page of pending entries up to ``end``. Returns whether there may be more."""
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
        # Look after the page was read, so that every entry that is missing in the page is found.
        last = min(end, id_key(page.entries[-1][0].decode()) if page.more and page.entries else NEVER)
        stray, reached = self._pending.stray_between(after, last)
        if self._claimed(stray) or self._mended_since(after, id_text(min(reached, self._group_to))):
            # These entries belong into this page, so it is read again.
            return True
        ids = [entry[0].decode() for entry in page.entries]
        late, lane.held_until_ms = self._delayed.late_among(ids), self._delayed.held_among(ids)
        for entry in page.entries:
            key = id_key(entry[0].decode())
            if key > reached:
                break
            self._take(entry, full, late, batch)
            lane.read_to = key
        lane.held_until_ms = {}
        # Even when the batch is empty: no other event may wake the leader for tickets that are ready now.
        self._steps.advance(batch)
        if reached != NEVER:
            lane.read_to = max(lane.read_to, reached)
        return page.more or reached != last

    def _claimed(self, stray: list[str]) -> bool:
        """Claims entries back to the master that no record explains. Returns whether there were any."""
        if stray:
            logger.warning("%d pending entries belong to no record: claimed back", len(stray))
            batch = Batch()
            batch.count("tampered", len(stray))
            self._pending.claim_back(self._term.master, stray, batch, spared=self._named)
            self._steps.advance(batch)
        return bool(stray)

    def _mended_since(self, after: str, upto: str) -> bool:
        """Makes entries pending again that were acknowledged by hand after the last look. Returns whether there were
        any.
        """
        return self._acknowledged is not None and self._acknowledged.mend_since(after, upto)

    def _is_any_pending(self, after: str, to: str) -> bool:
        return bool(self._wire.call("XPENDING", self._keys.stream, self._keys.group, f"({after}", to, 1))

    def _take(self, entry: Any, full: bool, late: Mapping[str, int], batch: Batch) -> None:
        id_, fields = entry[0].decode(), entry[1]
        lane = self._lane
        if id_ in self._named and self._take_named(id_, fields, batch):
            return
        name = ticket_of(fields)
        if id_ in late and name is not None:
            # Its place is further on. It is read when the scan has come past it.
            lane.note_late(name, id_, late[id_], batch)
        elif name is not None and (full or self._is_spilled(name)):
            # The message is read when there is room for it. Now it is only counted.
            lane.note_spilled(name, id_, batch)
        elif len(entry) == 2 or not full:
            self._reading.ingest(entry, batch)
        else:
            # The ticket is not in the first fields of the entry, or the entry has none.
            self._reading.ingest(self._reading.read_on(after=id_before(id_key(id_))).entries[0], batch)

    def _take_named(self, id_: str, fields: Any, batch: Batch) -> bool:
        """Takes in a message that a record names, if its entry is gone. Returns whether it is in the picture now."""
        lane = self._lane
        self._records.unseen.pop(id_, None)
        ticket = lane.tickets.get(self._named[id_].id)
        # A message in flight is pending under the master's name: it was moved by hand, or the group was made again.
        # `ManualChanges` repairs that.
        if id_ in lane.in_flight or id_ in lane.resting.tickets:
            return True
        if ticket is not None and any(message.id == id_ for message in ticket.waiting):
            return True
        if ticket is not None and id_ in self._records.front_ids and not fields:
            self._first_messages.find(ticket, id_, batch)
            return True
        return False

    def _is_spilled(self, name: str) -> bool:
        ticket = self._lane.tickets.get(name)
        return ticket is not None and ticket.spilled_from is not None

    # -- messages in records that are not pending: they were acknowledged or deleted by hand --------------------------

    def _find_first_messages(self) -> None:
        """Repairs messages that await a retry, were not begun, and are not pending. Pending ones are read in order."""
        batch = Batch()
        for id_ in self._missing(list(self._records.front_ids)):
            logger.warning("message %s awaits a retry and was not pending", id_)
            batch.count("tampered")
            self._first_messages.find(self._named[id_], id_, batch)
        self._steps.advance(batch)

    def _find_unseen(self) -> None:
        """Makes messages of resting tickets pending again that were not in the pending list."""
        lane = self._lane
        taken = self._missing([id_ for id_ in self._records.unseen if id_ in lane.resting.tickets])
        if taken:
            logger.warning("%d messages await a retry and were not pending: they are pending again", len(taken))
            batch = Batch()
            batch.count("tampered", len(taken))
            # A message whose entry was deleted becomes a dead letter when its backoff is over.
            self._pending.claim_back(self._term.master, taken, batch, spared=taken)
            self._steps.advance(batch)

    def _find_parked(self) -> None:
        """Makes messages pending again that were begun before their ticket was parked."""
        begun = {ticket.front_id: ticket for ticket in self._lane.parked.values() if ticket.front_id}
        for id_ in self._missing(list(begun)):
            ticket = begun[id_]
            if message_of(self._term, ticket.id, id_).payload:
                # More messages of the ticket may be missing. All of them come after the floor.
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
