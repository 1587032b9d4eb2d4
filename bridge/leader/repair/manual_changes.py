"""Finds changes that were made to the lane by hand or by a restore. Repairs them where possible, counts and logs them.

Only the leader changes the pending list. So a difference between the pending list and the picture is a change from
outside:

- Entries are pending under a name that no record explains (XCLAIM, an old consumer). They are claimed back to the
  master. Those that were taken very often are given up (`bridge.leader.repair.foreign_deliveries`).
- Entries in flight are pending under another name, or not at all (XACK, XGROUP DELCONSUMER). They become pending again
  where they belong. An XACK by hand does not make a message done: only its outcome does. (An HTTP consumer may XACK
  what it was given: `bridge.leader.repair.own_acknowledgements`.)
- Waiting entries are not pending any more (XGROUP DELCONSUMER of the master's name). They become pending again.
- Delayed entries are not pending under their own name, or not in the sorted set that says when they are due. They are
  both again. One that the set lost has the due time of its entry.
- Entries of a parked ticket are not pending under its own name any more. They become pending there again. The picture
  knows how many there must be. A new leader knows only about the message that was begun, if there is one.
- The group is gone (XGROUP DESTROY, a deleted stream). It is made again, and `Rebuild` decides which entries are
  undone.
- The group was set back or forward (XGROUP SETID). It is put back, so that no done message runs again and none is
  skipped. To run a message again, push it again, or replay it if it is dead.

Each change is counted as ``tampered``; a group that was made again is counted as ``regrouped``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.oldest_undone import oldest_undone
from bridge.leader.picture.pieces import Ticket
from bridge.leader.repair.delayed_entries import DelayedEntries
from bridge.leader.repair.group import HALF_MADE, ended_after
from bridge.leader.repair.own_acknowledgements import take_own_acknowledgements
from bridge.leader.stream.delay_sets import due_times
from bridge.leader.stream.pending import NEVER
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import Place, first_id_from, id_before, id_key, id_text, younger_than
from bridge.routing.transitions import Advanced, floor, last_id, set_read_to, survey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.foreign_deliveries import ForeignDeliveries
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList


logger = get_logger(__name__)

#: Seconds between two comparisons of the pending list with the picture.
COMPARE_S = 2.0


class ManualChanges:
    """Finds and repairs changes to one lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, pending: PendingList, foreign: ForeignDeliveries) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._pending = pending
        self._foreign = foreign
        self._keys = term.keys
        self._delayed_entries = DelayedEntries(term, lane, steps, pending)
        steps.after_write.append(self.check_written)
        self._compare_at = time.monotonic() + COMPARE_S
        #: Whether the picture was complete at the last look, and agreed with the pending list.
        self.agreed = False
        self._floor = ""
        self._tampered = 0
        #: Entries in flight that were deleted from the stream. They cannot become pending again.
        self._deleted: set[str] = set()
        #: Number of waiting entries that were deleted from the stream.
        self._deleted_waiting = 0

    def check_written(self, done: Advanced, batch: Batch) -> None:
        """Counts entries that were not pending when a batch was written, but should have been."""
        self._pending.expected += done.mended - done.acknowledged
        # Replayed messages were not pending before, and did not have to be.
        tampered = max(0, done.mended - len(batch.replayed))
        if done.acknowledged < len(batch.acknowledged):
            # An id may be in the batch twice, but is acknowledged once.
            tampered += len(set(batch.acknowledged)) - done.acknowledged
        if tampered:
            logger.warning("%d entries had been removed from the pending list by hand", tampered)
            self._tampered += tampered

    def was_read(self, count: int) -> None:
        """Adds ``count`` new entries, which the leader has read, to the expected number."""
        self._pending.expected += count

    def mend_taken(self) -> bool:
        """Makes undone entries pending again, if fewer entries are pending in all than the leader's own steps left.

        Returns whether some were missing. This number is the only sign that a spilled entry is missing. So code that
        reads spilled entries must call this first. Otherwise it could continue with a later message of the ticket.
        """
        pending = self._pending.count()
        expected, self._pending.expected = self._pending.expected, pending
        if pending >= expected:
            return False
        self._adopt_waiting()
        self._delayed_entries.adopt_late()
        # Entries of parked tickets are counted by name in `compare`.
        self._shelve({t.id: t.spilled_from for t in self._lane.parked.values() if t.spilled_from is not None})
        if (mended := self._pending.expected - pending) > 0:
            self._say("%d waiting entries were removed from the pending list: they are pending again", mended)
        return True

    def look(self) -> None:
        """Compares the pending list with the picture every `COMPARE_S`, and notes the floor."""
        if self._tampered:
            batch = Batch()
            self._count(batch)
            self._steps.advance(batch)
        if time.monotonic() < self._compare_at:
            return
        self._compare_at = time.monotonic() + COMPARE_S
        self.agreed = self.compare() and not self._lane.behind
        self._note_floor()

    def compare(self) -> bool:
        """Compares the pending list with the picture, and repairs it. Returns whether there was nothing to repair."""
        taken = self.mend_taken()
        found = self._pending.owners()
        if changed := self._delayed_entries.mend(found.get(self._pending.delayed_name, 0)):
            # The numbers that were read before are outdated now.
            self._say("%d delayed entries were changed by hand: they are delayed again", changed)
            return False
        if self._mend_in_flight(found):
            # The numbers that were read before are outdated now. The next call checks the rest.
            return False
        waiting = self._lane.held - len(self._lane.in_flight)
        missing = waiting - self._deleted_waiting - found.get(self._term.master, 0)
        if missing > 0:
            self._mend_waiting(missing)
        short = {
            ticket: ticket.shelved - left
            for ticket in self._lane.parked.values()
            if (left := found.get(self._lane.parked_name(ticket.id), 0)) < ticket.shelved
        }
        if short:
            self.mend_parked(short)
        return missing <= 0 and not short and not taken

    def mend_parked(self, short: dict[Ticket, int]) -> None:
        """Makes the undone entries of parked tickets pending again. ``short``: ticket -> number of missing entries.

        The ids of the missing entries are not in memory. So all undone entries of the ticket are made pending.
        """
        if taken := sum(short.values()):
            self._say("%d entries of parked tickets were removed from the pending list: they are pending again", taken)
        # Messages that were spilled when their ticket was parked may still be pending under the master's name.
        starts = {t.id: [key for key in (t.parked_from, t.spilled_from) if key is not None] for t in short}
        self._shelve({name: min(keys) if keys else NEVER for name, keys in starts.items()})

    def _shelve(self, since: dict[str, Place]) -> None:
        """Makes undone entries of the parked tickets in ``since``, from the given key on, pending under their names."""
        lane = self._lane
        for name, ids in self._undone({name: key for name, key in since.items() if key != NEVER}):
            self._pending.make_pending(lane.parked_name(name), ids)
        for name in since:
            ticket = lane.parked[name]
            # Entries that were also deleted from the stream cannot become pending.
            ids = list(self._pending.under(lane.parked_name(name)))
            ticket.shelved = len(ids)
            ticket.parked_from = id_key(ids[0]) if ids else ticket.parked_from

    def put_group_back(self, why: str) -> None:
        """Puts the group back to the entry that this leader has read up to.

        Raises `LaneConflict` when the group was changed in another way as well. The lane is read again then.
        """
        stream, group = self._keys.stream, self._keys.group
        read_to = id_text(self._lane.read_to)
        known = self._pending.names()
        further = self._term.wire.call("XPENDING", stream, group, *younger_than(read_to), 1)
        if further or id_key(last_id(self._term.redis, stream)) < self._lane.read_to:
            # In the second case it is another stream, or its server lost the last writes.
            raise LaneConflict(why)
        if self._term.master not in known or self._lane.parked:
            # It may be a new group, in which no entry of a parked ticket is pending.
            set_read_to(self._term.redis, self._term.leadership, HALF_MADE)
            raise LaneConflict(why)
        logger.warning("%s: it is put back to %s", why, read_to)
        self._tampered += 1
        set_read_to(self._term.redis, self._term.leadership, read_to)

    def _count(self, batch: Batch) -> None:
        if self._tampered:
            batch.count("tampered", self._tampered)
            self._tampered = 0

    def _mend_in_flight(self, names: Iterable[str]) -> bool:
        """Repairs entries in flight that are pending under a wrong name. Returns whether there were any."""
        lane = self._lane
        master = self._term.master
        found = self._pending.elsewhere(names)
        stray = [id_ for id_ in found if id_ not in lane.in_flight]
        if stray:
            self._say("%d pending entries belong to no record: claimed back", len(stray))
            batch = Batch()
            self._pending.claim_back(master, stray, batch)
            self._count(batch)
            self._steps.advance(batch)
            known = {message.id for ticket in lane.tickets.values() for message in ticket.waiting}
            known.update(lane.in_flight)
            if self._lane.behind:
                known.update(id_ for id_ in stray if id_key(id_) > lane.read_to)
            if not known.issuperset(stray):
                # They belong to parked tickets, to tickets with spilled messages, or to unknown tickets.
                raise LaneConflict("entries were claimed back that the picture does not have")
            batch = Batch()
            if self._foreign.give_up(stray, batch):
                self._steps.advance(batch)
                return True
        misplaced: dict[str, list[str]] = {}
        self._deleted &= lane.in_flight.keys()
        for id_, ticket in lane.in_flight.items():
            if id_ in self._deleted:
                continue
            consumer = ticket.consumer.name if ticket.consumer is not None else master
            if found.get(id_) != consumer:
                misplaced.setdefault(consumer, []).append(id_)
        acknowledged = self._own_acknowledgements(
            [id_ for ids in misplaced.values() for id_ in ids if id_ not in found]
        )
        for consumer, ids in misplaced.items():
            if taken := sum(1 for id_ in ids if id_ not in acknowledged):
                self._say("%d entries in flight were not pending under their consumer: they are again", taken)
            if self._pending.make_pending(consumer, ids) < len(ids):
                self._deleted.update(self._pending.deleted(ids))
        return bool(stray or misplaced)

    def _own_acknowledgements(self, ids: list[str]) -> Collection[str]:
        """Takes in what HTTP consumers acknowledged in the stream themselves. ``ids``: in flight, and not pending.

        Returns the ids of these messages. They are made pending again until their outcomes are settled.
        """
        tickets = [(id_, self._lane.in_flight[id_]) for id_ in ids]
        if all(ticket.consumer is None or ticket.consumer.takes_bundles for _, ticket in tickets):
            return ()
        return take_own_acknowledgements(self._term, tickets, self._pending.names())

    def _mend_waiting(self, missing: int) -> None:
        """Makes waiting entries pending again: ``missing`` of them are not pending under the master's name."""
        self._say("%d waiting entries were removed from the pending list: they are pending again", missing)
        self._adopt_waiting()

    def _adopt_waiting(self) -> None:
        lane = self._lane
        here = [message.id for ticket in lane.tickets.values() for message in ticket.waiting]
        self._deleted_waiting = len(here) - self._pending.make_pending(self._term.master, here)
        # Of a ticket that rests, the oldest one is known by its id alone.
        fronts = [ticket.front_id for ticket in lane.tickets.values() if ticket.front_id and not ticket.run]
        self._pending.make_pending(self._term.master, fronts)
        # Not only those in `lane.spilled`: tickets that rest or are stranded have spilled messages, too.
        spilled = {name: one.spilled_from for name, one in lane.tickets.items() if one.spilled_from is not None}
        if not spilled:
            return
        for _, ids in self._undone(spilled):
            self._pending.make_pending(self._term.master, ids)

    def _undone(self, since: dict[str, Place]) -> Iterator[tuple[str, list[str]]]:
        """Undone entries of the tickets in ``since`` that were read, from the given key on: (ticket, ids), in pages.

        Entries after that key are usually undone. But if the entry at that key was replayed, later ones may be done.
        Only the history can tell.
        """
        if not since:
            return
        lane = self._lane
        first = first_id_from(min(since.values()))
        ended, _ = ended_after(self._term, id_before(first))
        for page in survey(self._term.redis, self._keys.stream, id_text(first), id_text(lane.read_to)):
            mine = [
                (id_, name) for id_, name in page if name in since and id_key(id_) >= since[name] and id_ not in ended
            ]
            delayed = due_times(self._term, self._keys.delayed, [id_ for id_, _ in mine])
            found: dict[str, list[str]] = {}
            for id_, name in mine:
                if id_ not in delayed:
                    found.setdefault(name, []).append(id_)
            yield from found.items()

    def _say(self, text: str, count: int) -> None:
        logger.warning(text, count)
        self._tampered += count

    def _note_floor(self) -> None:
        lane = self._lane
        oldest = oldest_undone(lane)
        # While a new leader is behind, messages in flight may be later than messages that are not in the picture yet.
        text = id_text(lane.read_to) if oldest is None or oldest > lane.read_to else id_before(oldest)
        is_new = id_key(text)[0] > 0 and text != self._floor
        # The leaders of other lanes wait for that.
        agreed = self.agreed and self._pending.among_others
        if is_new or agreed:
            floor(self._term.redis, self._term.leadership, text if is_new else "", agreed=agreed)
        if is_new:
            self._floor = text
