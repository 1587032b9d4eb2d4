"""What somebody acknowledged by hand while no master led: entries that were read, are not pending, and were never done.

A leader sees such a thing by its picture (`bridge.leader.repair.manual_changes`). One that reads the lane anew has no
picture yet, and to it such an entry looks like one that is done. Only the history tells the two apart: every end is
written to it in the very step that acknowledges. So an entry after the *floor* that the group has read and has not
pending, and whose end the history should have and has not, is undone, and is pending again before anything of its
ticket is dispatched.

Where the history says nothing, nothing is concluded: before its oldest row, and where it is turned off. It has no
holes, since a leader without history deletes what there is. And where a producer chose an id that is later than the
server's clock, or that clock was set back, an end may be older than its entry: so whatever is not explained is looked
for in the whole history. Where that has been trimmed such an end may be gone, and then the message comes again.

A new leader looks for them a slice at a time, each before it takes in what is pending there
(`bridge.leader.takeover.rebuild`). Between the two it does other work, so it looks once more when it has read a page:
what was acknowledged since is not in that page, and whatever comes after it of its ticket is not in the picture yet.
From then on the leader misses it by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.repair.group import Ends
from bridge.routing.ids import id_before, id_key
from bridge.routing.retention import done
from bridge.routing.transitions import Batch

if TYPE_CHECKING:
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList

logger = get_logger(__name__)

#: Entries in one look.
PAGE = 500


class Acknowledged:
    """Looks for them after ``floor`` and up to ``read_to``; ``spared`` are ids of which records tell."""

    def __init__(
        self, term: Term, steps: Steps, pending: PendingList, floor: str, read_to: str, spared: Collection[str]
    ) -> None:
        self._term = term
        self._steps = steps
        self._pending = pending
        self._read_to = read_to
        self._spared = spared
        self._since = _told_since(term, floor)
        #: Of the last slice: after which id it begins, and what in it ended.
        self._slice_from = ""
        self._ended: set[str] = set()

    def mend(self) -> Iterator[str]:
        """Makes pending again, in slices, what is undone and not pending. Gives the id up to which that is done after
        each slice.
        """
        since = self._since
        if since is None:
            return
        ends: Ends | None = None
        floor, more = since, True
        while more:
            found, last, more = self._look(since, self._read_to)
            if found and ends is None:
                # Read once: what ends while the lane is being read was in memory, or in a record.
                floor = id_before(id_key(found[0]))
                ends = Ends(self._term, floor)
                while ends.read_page():
                    yield since
            if ends and not ends.whole and any(id_ not in ends.ended for id_ in found):
                # Not from the time of its own id on.
                ends = Ends(self._term, floor, whole=True)
                while ends.read_page():
                    yield since
            undone = [id_ for id_ in found if ends and id_ not in ends.ended and id_key(id_) > ends.missing_to]
            self._claim(undone)
            self._slice_from = since
            self._ended = set(found).difference(undone)
            since = last or self._read_to
            yield since

    def mend_since(self, after: str, upto: str) -> bool:
        """Makes pending again what of the last slice lies after ``after``, up to ``upto``, and was acknowledged since
        that slice was given; whether there was any.
        """
        if not self._slice_from:
            return False
        start, more = max(after, self._slice_from, key=id_key), True
        taken: list[str] = []
        while more and id_key(start) < id_key(upto):
            found, last, more = self._look(start, upto)
            taken += [id_ for id_ in found if id_ not in self._ended]
            start = last or upto
        self._claim(taken)
        return bool(taken)

    def _look(self, start: str, end: str) -> tuple[list[str], str, bool]:
        """What is not pending after ``start`` and was read; the last id that was looked at; whether there is more."""
        keys = self._term.keys
        look = done(self._term.redis, keys.stream, f"({start}", end, PAGE, keys.group)
        return [id_ for id_ in look.ids if id_ not in self._spared], look.last, look.more

    def _claim(self, undone: list[str]) -> None:
        if not undone:
            return
        logger.warning("%d entries were acknowledged by hand, and not done: they are pending again", len(undone))
        batch = Batch()
        batch.count("tampered", len(undone))
        self._pending.claim_back(self._term.master, undone, batch)
        self._steps.advance(batch)


def _told_since(term: Term, floor: str) -> str | None:
    """From where on, ``floor`` or later, the history has the end of all that ended; None: there is none."""
    oldest = term.wire.call("XRANGE", term.keys.history, "-", "+", "COUNT", 1)
    return max(floor, oldest[0][0].decode(), key=id_key) if oldest else None
