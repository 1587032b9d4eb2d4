"""Takes what comes through the outcome stream into the leader's picture: outcomes, and notices of other kinds.

What cannot be read is passed over (`bridge.leader.step.unknown_entries`). What can be read and raises all the same is a
defect, of which one outcome must not make a lane stand still: the picture, which may be half changed, is read anew, and
that outcome is passed over from then on, by each leader of this process.
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
    from bridge.routing.transitions import Batch

logger = get_logger(__name__)

#: Outcomes that are remembered of those that could not be settled.
UNSETTLED = 10_000
#: (Entry, place in it) of those.
_unsettled: set[tuple[str, int]] = set()


class Notice(NamedTuple):
    """An entry of the outcome stream that is no outcome."""

    id: str
    #: Whom it is about: an incarnation; of an operator's order, the order's id.
    who: str
    #: All fields and values, alternating.
    fields: Sequence[bytes]


class Inbox:
    """Of one leader. ``listeners``: kind of a notice -> who takes it."""

    def __init__(
        self, lane: Lane, settling: Settling, listeners: Mapping[bytes, Callable[[Notice, Batch], None]]
    ) -> None:
        self._lane = lane
        self._settling = settling
        self._listeners = listeners
        self._unknown_entries = UnknownEntries()

    def take(self, entries: Sequence[tuple[bytes, Sequence[bytes]]], batch: Batch) -> str:
        """Takes ``entries``, of which none is read again; the id of the last one."""
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
            raise NotUnderstood("it is not in the form of any")
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
            raise NotUnderstood("what it names is not UTF-8") from None
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
