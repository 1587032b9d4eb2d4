"""What somebody did to the lane by hand, or a restore did: found, mended where it can be, counted, and said.

The pending list is the leader's own: whatever differs there from its picture was done from outside.

- Entries pending under a name that no record explains (XCLAIM, an old consumer): claimed back to the master.
- Entries in flight that are pending under another name, or under none (XACK, XGROUP DELCONSUMER): pending again where
  they belong. An acknowledgement by hand does not make a message done: only its outcome does.
- Entries that wait and are not pending any more (XGROUP DELCONSUMER of the master's name): pending again.
- Entries of a parked ticket that are not pending under its own name any more: pending there again. The picture knows
  how many there must be; a new leader knows only of the message that was begun, if one was.
- The group itself (XGROUP DESTROY, a deleted stream): made anew; `Rebuild` decides what of it is undone.
- A group that was set back or forward (XGROUP SETID): put where it was. What is done is not done again, nor is anything
  left out, because somebody moved a number; whoever wants a message again pushes it again, or replays a dead one.

Each is counted as ``tampered``, the group as ``regrouped``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.oldest_undone import oldest_undone
from bridge.leader.picture.pieces import Ticket
from bridge.leader.repair.group import HALF_MADE, ended_after
from bridge.leader.stream.pending import NEVER
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import id_before, id_key, id_text, younger_than
from bridge.routing.transitions import Advanced, Batch, floor, set_read_to, survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList
    from bridge.leader.stream.retention import Retention


logger = get_logger(__name__)

#: Seconds between two comparisons of the pending list with the picture.
COMPARE_S = 2.0


class ManualChanges:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, pending: PendingList, retention: Retention) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._pending = pending
        self._retention = retention
        self._keys = term.keys
        steps.after_commit.append(self.check_commit)
        self._compare_at = time.monotonic() + COMPARE_S
        self._floor = ""
        self._tampered = 0
        #: Entries in flight that are deleted from the stream: nothing can make them pending.
        self._deleted: set[str] = set()
        #: The same of what waits: how many.
        self._deleted_waiting = 0

    def check_commit(self, done: Advanced, batch: Batch) -> None:
        """What a script found: entries that were not pending, and should have been."""
        self._pending.expected += done.mended - done.acknowledged
        # What is revived from the dead letters was not pending, and rightly so.
        tampered = max(0, done.mended - len(batch.revived))
        if done.acknowledged < len(batch.acknowledged):
            # An entry may be named twice, and is acknowledged once.
            tampered += len(set(batch.acknowledged)) - done.acknowledged
        if tampered:
            logger.warning("%d entries had been taken from the pending list by somebody else", tampered)
            self._tampered += tampered

    def was_read(self, count: int) -> None:
        """The leader has read so many new entries."""
        self._pending.expected += count

    def mend_taken(self) -> bool:
        """Whether fewer entries are pending than the leader's own steps left, all names taken together: then what was
        read and is undone is pending again. What is in memory is missed by its name, too; what is spilled only by this
        number: so whoever reads that again asks here first, or would go on with what comes after what was taken.
        """
        pending = self._pending.count()
        expected, self._pending.expected = self._pending.expected, pending
        if pending >= expected:
            return False
        self._adopt_waiting()
        # What lies on a shelf is counted by its name (`compare`).
        self._shelve({t.id: t.spilled_from for t in self._lane.parked.values() if t.spilled_from is not None})
        if (mended := self._pending.expected - pending) > 0:
            self._say("%d entries that wait were taken from the pending list: they are again", mended)
        return True

    def look(self) -> None:
        """Now and then: compares the pending list with the picture, and notes how far all is done."""
        if self._tampered:
            batch = Batch()
            self._count(batch)
            self._steps.advance(batch)
        if time.monotonic() < self._compare_at:
            return
        self._compare_at = time.monotonic() + COMPARE_S
        if self.compare() and not self._lane.behind:
            self._retention.sweep()
        self._note_floor()

    def compare(self) -> bool:
        """Compares, and mends; whether there was nothing to mend."""
        taken = self.mend_taken()
        found = self._pending.owners()
        if self._mend_in_flight(found):
            # What was counted before is not so any more: the rest is for the next time.
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
        """Of parked tickets, so many entries at least are not pending any more under the name of each. Which ones is
        not in memory: all that is undone of the ticket is pending there again.
        """
        if taken := sum(short.values()):
            self._say("%d entries of parked tickets were taken from the pending list: they are again", taken)
        # What was spilled when its ticket was parked may be pending under the master's name still.
        starts = {t.id: [key for key in (t.parked_from, t.spilled_from) if key is not None] for t in short}
        self._shelve({name: min(keys) if keys else NEVER for name, keys in starts.items()})

    def _shelve(self, since: dict[str, tuple[int, int]]) -> None:
        """What is undone of the parked tickets in ``since``, from the given id on, is pending under their own names."""
        lane = self._lane
        for name, ids in self._undone({name: key for name, key in since.items() if key != NEVER}):
            self._pending.adopt(lane.parked_name(name), ids)
        for name in since:
            ticket = lane.parked[name]
            # What was deleted from the stream as well nothing can make pending.
            ids = list(self._pending.under(lane.parked_name(name)))
            ticket.shelved = len(ids)
            ticket.parked_from = id_key(ids[0]) if ids else ticket.parked_from

    def put_group_back(self, why: str) -> None:
        """The group has not read as far as this leader has, or further: it is put where it was.

        Raises `LaneConflict` when more than that was done to it: the lane is read anew.
        """
        stream, group = self._keys.stream, self._keys.group
        read_to = id_text(self._lane.read_to)
        known = self._pending.names()
        further = self._term.wire.call("XPENDING", stream, group, *younger_than(read_to), 1)
        if further:
            raise LaneConflict(why)
        if self._term.master not in known or self._lane.parked:
            # It may be another group than before, in which nothing of a parked ticket is pending.
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
        """Whether there was anything to mend."""
        lane = self._lane
        master = self._term.master
        found = self._pending.elsewhere(names)
        strange = [id_ for id_ in found if id_ not in lane.in_flight]
        if strange:
            self._say("%d pending entries belong to no record: claimed back", len(strange))
            batch = Batch()
            self._pending.claim_back(master, strange, batch)
            self._count(batch)
            self._steps.advance(batch)
            known = {message.id for ticket in lane.tickets.values() for message in ticket.waiting}
            known.update(lane.in_flight)
            if self._lane.behind:
                known.update(id_ for id_ in strange if id_key(id_) > lane.read_to)
            if not known.issuperset(strange):
                # Of tickets that are parked, or have messages that are not in memory, or of none that is known.
                raise LaneConflict("entries came back that nobody knew of")
        misplaced: dict[str, list[str]] = {}
        self._deleted &= lane.in_flight.keys()
        for id_, ticket in lane.in_flight.items():
            if id_ in self._deleted:
                continue
            consumer = ticket.consumer.name if ticket.consumer is not None else master
            if found.get(id_) != consumer:
                misplaced.setdefault(consumer, []).append(id_)
        for consumer, ids in misplaced.items():
            self._say("%d entries in flight were not pending where they belong: they are again", len(ids))
            if self._pending.adopt(consumer, ids) < len(ids):
                self._deleted.update(ids)
        return bool(strange or misplaced)

    def _mend_waiting(self, missing: int) -> None:
        """The master's own pending entries are fewer than what waits in memory."""
        self._say("%d entries that wait were taken from the pending list: they are pending again", missing)
        self._adopt_waiting()

    def _adopt_waiting(self) -> None:
        lane = self._lane
        here = [message.id for ticket in lane.tickets.values() for message in ticket.waiting]
        self._deleted_waiting = len(here) - self._pending.adopt(self._term.master, here)
        spilled = {ticket.id: ticket.spilled_from for ticket in lane.spilled if ticket.spilled_from is not None}
        if not spilled:
            return
        for _, ids in self._undone(spilled):
            self._pending.adopt(self._term.master, ids)

    def _undone(self, since: dict[str, tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
        """Of the tickets in ``since``, those entries from the given id on that were read and are neither done nor dead:
        (ticket, ids), several times each. What is newer than that id is undone, as a rule; but what is there may have
        been put back, and then the messages after it were done before. That only the history can tell.
        """
        if not since:
            return
        lane = self._lane
        first = min(since.values())
        ended, _ = ended_after(self._term, id_before(first))
        for page in survey(self._term.redis, self._keys.stream, id_text(first), id_text(lane.read_to)):
            found: dict[str, list[str]] = {}
            for id_, name in page:
                if name in since and id_key(id_) >= since[name] and id_ not in ended:
                    found.setdefault(name, []).append(id_)
            yield from found.items()

    def _say(self, text: str, count: int) -> None:
        logger.warning(text, count)
        self._tampered += count

    def _note_floor(self) -> None:
        lane = self._lane
        oldest = oldest_undone(lane)
        # While a new leader is behind, what is in flight may be later than what it has not taken in.
        text = id_text(lane.read_to) if oldest is None or oldest > lane.read_to else id_before(oldest)
        if id_key(text)[0] > 0 and text != self._floor:
            floor(self._term.redis, self._term.leadership, text)
            self._floor = text
