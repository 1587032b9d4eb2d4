"""Takes the entries of the outcome stream into the leader's picture: outcomes, and notices of other kinds.

An entry that cannot be read is skipped (`bridge.leader.step.unknown_entries`). An outcome that can be read may still
make the code raise. That is a defect, and one outcome must not stop a lane. The picture may be half changed then, so
the leader reads the lane again. From then on, every leader of this process skips that outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from celery.utils.log import get_logger

from bridge.leader.step.unknown_entries import UnknownEntries
from bridge.protocol.outcomes import NotUnderstood, Outcome, read
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import id_key, id_text, key_after

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.routing.batch import Batch

logger = get_logger(__name__)

#: Most outcomes that could not be settled and are remembered.
UNSETTLED = 10_000
#: These outcomes, as (id of the entry, place in the entry).
_unsettled: set[tuple[str, int]] = set()


class Notice(NamedTuple):
    """An entry of the outcome stream that is not an outcome."""

    id: str
    #: The incarnation that the notice is about. For an operator's order: the id of the order.
    who: str
    #: All fields and values, alternating.
    fields: Sequence[bytes]


class Inbox:
    """Reads entries for one leader. ``listeners``: kind of a notice -> function that takes it."""

    def __init__(
        self, lane: Lane, settling: Settling, listeners: Mapping[bytes, Callable[[Notice, Batch], None]]
    ) -> None:
        self._lane = lane
        self._settling = settling
        self._listeners = listeners
        self._unknown_entries = UnknownEntries()

    def take(self, entries: Sequence[tuple[bytes, Sequence[bytes]]], batch: Batch) -> str:
        """Takes ``entries`` and returns the id of the last one. No entry is read a second time."""
        last = ""
        for raw_id, fields in entries:
            last = raw_id.decode()
            try:
                self._take(last, fields, batch)
            except NotUnderstood as exc:
                self._unknown_entries.pass_over(last, fields, str(exc), batch, newer=exc.newer)
        following = id_text(key_after(id_key(last)))
        batch.keep_outcomes_from = self._unknown_entries.keep_from(following, self._lane.now_ms())
        return last

    def _take(self, id_: str, fields: Sequence[bytes], batch: Batch) -> None:
        """Raises `NotUnderstood`."""
        if len(fields) < 4 or fields[0] != b"i":
            raise NotUnderstood("it has no known form")
        kind = fields[2]
        if kind == b"o":
            outcomes, problems = read(fields[3])
            for at, outcome in enumerate(outcomes):
                self._settle(id_, at, outcome, batch)
            for problem in problems:
                self._unknown_entries.pass_over(id_, fields, str(problem), batch, newer=problem.newer)
            return
        try:
            who = fields[1].decode()
        except UnicodeDecodeError:
            raise NotUnderstood("the name in it is not UTF-8") from None
        listener = self._listeners.get(kind)
        if listener is None:
            raise NotUnderstood(f"it is of the kind {kind.decode(errors='replace')!r:.100}", newer=True)
        listener(Notice(id_, who, fields), batch)

    def _settle(self, id_: str, at: int, outcome: Outcome, batch: Batch) -> None:
        if (id_, at) in _unsettled:
            self._unknown_entries.pass_over(id_, (), "an outcome that could not be settled", batch)
            return
        try:
            self._settling.settle(outcome, batch)
        except Exception as exc:
            logger.exception("cannot settle an outcome of message %s", outcome.message_id)
            if len(_unsettled) < UNSETTLED:
                _unsettled.add((id_, at))
            raise LaneConflict(f"the outcome of message {outcome.message_id} cannot be settled") from exc
