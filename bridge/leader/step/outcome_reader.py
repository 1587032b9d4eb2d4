"""Takes the entries of the outcome stream into the leader's picture: outcomes, and notices of other kinds.

An entry that cannot be read is skipped (`bridge.leader.step.unknown_entries`). An outcome that can be read may still
make the code raise. That is a defect, and one outcome must not stop a lane. The picture may be half changed then, so
the leader reads the lane again. From then on, every leader of the lane in this process skips that outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.step.unknown_entries import UnknownEntries
from bridge.protocol.outcome_entries import EntryKind, Notice, outcomes_in, read_notice
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
#: These outcomes, as (outcome stream of the lane, id of the entry, place in the entry).
_unsettled: set[tuple[str, str, int]] = set()


class OutcomeReader:
    """Reads entries for one leader. ``listeners``: kind of a notice -> function that takes it."""

    def __init__(
        self, lane: Lane, settling: Settling, listeners: Mapping[EntryKind, Callable[[Notice, Batch], None]]
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
                self._unknown_entries.skip(last, fields, str(exc), batch, newer=exc.newer)
        following = id_text(key_after(id_key(last)))
        batch.keep_outcomes_from = self._unknown_entries.keep_from(following, self._lane.clock.server_ms())
        return last

    def _take(self, id_: str, fields: Sequence[bytes], batch: Batch) -> None:
        """Raises `NotUnderstood`."""
        data = outcomes_in(fields)
        if data is None:
            notice = read_notice(id_, fields)
            self._listeners[notice.kind](notice, batch)
            return
        outcomes, problems = read(data)
        for at, outcome in enumerate(outcomes):
            self._settle(id_, at, outcome, batch)
        for problem in problems:
            self._unknown_entries.skip(id_, fields, str(problem), batch, newer=problem.newer)

    def _settle(self, id_: str, at: int, outcome: Outcome, batch: Batch) -> None:
        stream = self._lane.settings.keys.outcomes
        if _unsettled and (stream, id_, at) in _unsettled:
            self._unknown_entries.skip(id_, (), "an outcome that could not be settled", batch)
            return
        try:
            self._settling.settle(outcome, batch)
        except Exception as exc:
            logger.exception("cannot settle an outcome of message %s", outcome.message_id)
            if len(_unsettled) < UNSETTLED:
                _unsettled.add((stream, id_, at))
            raise LaneConflict(f"the outcome of message {outcome.message_id} cannot be settled") from exc
