"""Repairs delayed and late entries that were changed by hand: in the pending list, or in the lane's sorted sets.

A delayed entry is pending under a name of its own and a member of a sorted set. When the two do not have as many, both
are completed: what is in the set becomes pending, and what is only pending gets the due time that its entry came with.
One that was deleted from the stream becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bridge.leader.stream.by_id import read_messages
from bridge.leader.stream.delay_sets import due_times, ids_in
from bridge.leader.stream.pending import PAGE
from bridge.routing.batch import Batch
from bridge.routing.ids import id_key
from bridge.routing.message_options import LATEST_MS
from bridge.routing.messages import Refusal, Refused

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList


class DelayedEntries:
    """The delayed and late entries of one lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, pending: PendingList) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._pending = pending
        self._keys = term.keys

    def mend(self, there: int) -> int:
        """Repairs the delayed entries if their numbers differ. ``there``: how many are pending under their name.
        Returns by how many the numbers differed.
        """
        members = int(self._term.wire.call("ZCARD", self._keys.delayed))
        if members == there:
            return 0
        for ids in ids_in(self._term, self._keys.delayed):
            if self._pending.make_pending(self._pending.delayed_name, ids) < len(ids):
                self._refuse_deleted(ids)
        found = list(self._pending.under(self._pending.delayed_name))
        for start in range(0, len(found), PAGE):
            self._delay_again(found[start : start + PAGE])
        return abs(members - there)

    def adopt_late(self) -> None:
        """Makes late entries that are pending under no name pending under the master's."""
        keys, wire = self._keys, self._term.wire
        for ids in ids_in(self._term, keys.late):
            rows = wire.call_many([("XPENDING", keys.stream, keys.group, id_, id_, 1) for id_ in ids])
            if taken := [id_ for id_, found in zip(ids, rows, strict=True) if not found]:
                self._pending.make_pending(self._term.master, taken)

    def _refuse_deleted(self, ids: Sequence[str]) -> None:
        batch = Batch()
        replies = self._term.wire.call_many([("XPENDING", self._keys.stream, self._keys.group, i, i, 1) for i in ids])
        for id_, found in zip(ids, replies, strict=True):
            if not found:
                self._lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
        self._steps.advance(batch)

    def _delay_again(self, ids: Sequence[str]) -> None:
        known = due_times(self._term, self._keys.delayed, ids)
        batch = Batch()
        for message in read_messages(self._term, [("", id_) for id_ in ids if id_ not in known]):
            due_ms = message.options.due_ms if message.options is not None else 0
            self._lane.delay(message, due_ms or min(id_key(message.id)[0], LATEST_MS), batch)
        if batch:
            self._steps.advance(batch)
