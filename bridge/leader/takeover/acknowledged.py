"""Finds entries that were acknowledged by hand while no master led: they were read, are not pending, and are not done.

A leader notices an XACK by hand because its picture differs (`bridge.leader.repair.manual_changes`). A new leader has
no picture yet, and such an entry looks like a done one. Only the history can tell: the step that acknowledges a message
also writes its end to the history. So an entry is undone if all of this holds: it comes after the *floor*, the group
has read it, it is not pending, and the history has no end of it. Such an entry is made pending again before any message
of its ticket is dispatched.

The history may have no answer: before its oldest row if rows were trimmed, and when it is turned off. Then nothing is
concluded. In a young lane messages are older than the first row, and none was trimmed: there are as many rows as the
lane has counted ends. (A counter that holds no number stands for any number of them.) The history has no gaps, because
a leader without history deletes it. The end of a message may be older than its entry, when a producer chose an id in
the future or the server's clock was set back. So an entry without an end is looked for in the whole history. If that
end was trimmed, the message runs again.

A new leader looks in slices, each before it takes in the pending entries of that slice
(`bridge.leader.takeover.rebuild`). It does other work between the two. So it looks once more after it has read a page.
An entry that was acknowledged in between is not in the page, and no later message of its ticket is in the picture yet.
After that, the leader notices by itself that an entry is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from celery.utils.log import get_logger

from bridge.leader.repair.group import Ends
from bridge.routing.batch import Batch
from bridge.routing.counters import read_counters
from bridge.routing.history import COUNTED
from bridge.routing.ids import id_before, id_key
from bridge.routing.retention import done

if TYPE_CHECKING:
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList

logger = get_logger(__name__)

#: Entries in one look.
PAGE = 500


class Acknowledged:
    """Finds such entries after ``floor`` and up to ``read_to``. ``spared``: ids in ticket records, to skip."""

    def __init__(
        self, term: Term, steps: Steps, pending: PendingList, floor: str, read_to: str, spared: Collection[str]
    ) -> None:
        self._term = term
        self._steps = steps
        self._pending = pending
        self._read_to = read_to
        self._spared = spared
        self._counted, self._since = _look_at_history(term, floor)
        #: The id after which the last slice begins, and the ended messages in it.
        self._slice_from = ""
        self._ended: set[str] = set()

    def mend(self) -> Iterator[str]:
        """Makes undone entries pending again, slice by slice. Yields the id up to which that is done."""
        since = self._since
        if since is None:
            return
        ends: Ends | None = None
        floor, more = since, True
        while more:
            found, last, more = self._look(since, self._read_to)
            if found and ends is None:
                # Read the history once. A message that ends while the lane is read was in memory or in a record.
                floor = id_before(id_key(found[0]))
                ends = Ends(self._term, floor, counted_to=self._counted.upto)
                while ends.read_page():
                    yield since
                self._complete(ends)
            if ends and not ends.whole and any(id_ not in ends.ended for id_ in found):
                # The end is not in the part of the history that was read. Look in all of it.
                ends = Ends(self._term, floor, whole=True, counted_to=self._counted.upto)
                while ends.read_page():
                    yield since
                self._complete(ends)
            undone = [id_ for id_ in found if ends and id_ not in ends.ended and id_key(id_) > ends.missing_to]
            self._claim(undone)
            self._slice_from = since
            self._ended = set(found).difference(undone)
            since = last or self._read_to
            yield since

    def _complete(self, ends: Ends) -> None:
        """Notes that no row is missing, if the history begins late and has a row for each end that was counted."""
        counts = self._counted.counts
        if ends.begins_late and all(
            sum(ends.rows[what] for what in whats) >= counts.get(name, 0) for name, whats in COUNTED.items()
        ):
            ends.missing_to = (0, 0)

    def mend_since(self, after: str, upto: str) -> bool:
        """Makes entries of the last slice pending again that were acknowledged after it was yielded.

        Looks after ``after`` and up to ``upto``. Returns whether there were any.
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
        """One page: read entries after ``start`` that are not pending, the last id looked at, whether there is more."""
        keys = self._term.keys
        look = done(self._term.redis, keys.stream, f"({start}", end, PAGE, keys.group)
        return [id_ for id_ in look.ids if id_ not in self._spared], look.last, look.more

    def _claim(self, undone: list[str]) -> None:
        if not undone:
            return
        logger.warning("%d entries were acknowledged by hand and are not done: they are pending again", len(undone))
        batch = Batch()
        batch.count("tampered", len(undone))
        self._pending.claim_back(self._term.master, undone, batch)
        self._steps.advance(batch)


class _Counted(NamedTuple):
    """What the lane had counted when the history ended with the entry ``upto``; "": it was empty."""

    counts: Mapping[str, float]
    upto: str


def _look_at_history(term: Term, floor: str) -> tuple[_Counted, str | None]:
    """What was counted, and the id from which on the history may be complete: ``floor``, or the oldest row, if older
    ones were trimmed; None: there is no history. Rows that a later step writes do not count: they would make up for
    missing ones.
    """
    history = term.keys.history
    commands = (
        ("HGETALL", term.keys.counts),
        ("XRANGE", history, "-", "+", "COUNT", 1),
        ("XREVRANGE", history, "+", "-", "COUNT", 1),
    )
    flat, oldest, newest = term.wire.call_many(commands)
    counts = read_counters(dict(zip(flat[::2], flat[1::2], strict=True)))
    if not oldest:
        # Nothing has ended yet, or the history was off.
        return _Counted(counts, ""), None if any(counts.get(name) for name in COUNTED) else floor
    counted = _Counted(counts, newest[0][0].decode())
    info = term.wire.call("XINFO", "STREAM", history)
    facts = dict(zip(info[::2], info[1::2], strict=True))
    # Servers before 7.0 do not tell.
    trimmed = facts.get(b"entries-added", facts[b"length"]) != facts[b"length"]
    return counted, max(floor, oldest[0][0].decode(), key=id_key) if trimmed else floor
