"""Takes what comes through the outcome stream into the leader's picture: outcomes, comings and goings, orders.

What cannot be read is passed over (`bridge.strangers`). What can be read and raises all the same is a defect, of which
one outcome must not make a lane stand still: the picture, which may be half changed, is read anew, and that outcome is
passed over from then on, by each leader of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.orderdesk import OrderDesk
from bridge.outcomes import NotUnderstood, Outcome, fences_of, read
from bridge.routing.errors import LaneConflict
from bridge.strangers import Strangers

if TYPE_CHECKING:
    from bridge.leader import Leader
    from bridge.routing.transitions import Batch

logger = get_logger(__name__)

#: Outcomes that are remembered of those that could not be settled.
UNSETTLED = 10_000
#: (Entry, place in it) of those.
_unsettled: set[tuple[str, int]] = set()
#: The largest second part of an id.
_LAST = (1 << 64) - 1


class Inbox:
    """Of one leader."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._desk = OrderDesk(leader)
        self._strangers = Strangers()

    def take(self, entries: Sequence[tuple[bytes, Sequence[bytes]]], batch: Batch) -> str:
        """Takes ``entries``, of which none is read again; the id of the last one."""
        last = ""
        for raw_id, fields in entries:
            last = raw_id.decode()
            try:
                self._take(last, fields, batch)
            except NotUnderstood as exc:
                self._strangers.pass_over(last, fields, str(exc), batch, newer=exc.newer)
        ms, _, sequence = last.partition("-")
        following = f"{int(ms) + 1}-0" if int(sequence) == _LAST else f"{ms}-{int(sequence) + 1}"
        batch.keep_outcomes_from = self._strangers.keep_from(following, self._leader.lane.now_ms())
        return last

    def answer(self) -> None:
        """The batch is done: tells those who gave the orders in it."""
        self._desk.answer()

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
                self._strangers.pass_over(id_, fields, str(problem), batch, newer=problem.newer)
            return
        try:
            who = fields[1].decode()
        except UnicodeDecodeError:
            raise NotUnderstood("what it names is not UTF-8") from None
        recovery = self._leader.recovery
        if kind == b"leaving":
            recovery.close_consumer(who)
        elif kind == b"order":
            batch.orders.append(id_)
            self._desk.take(who, fields[3], batch)
        elif kind == b"gone":
            # Its pool was done before: nothing of it was cut off.
            recovery.gave_up(who, frozenset())
        elif kind == b"died":
            recovery.gave_up(who, fences_of(fields), asked=b"asked" in fields[6:])
        elif kind == b"joined":
            self._leader.look_within(0.0)
        else:
            raise NotUnderstood(f"it is of the kind {kind.decode(errors='replace')!r:.100}", newer=True)

    def _settle(self, id_: str, at: int, outcome: Outcome, batch: Batch) -> None:
        if (id_, at) in _unsettled:
            self._strangers.pass_over(id_, (), "an outcome that could not be settled", batch)
            return
        try:
            self._leader.settling.settle(outcome, batch)
        except Exception as exc:
            logger.exception("cannot settle an outcome of message %s", outcome.message_id)
            if len(_unsettled) < UNSETTLED:
                _unsettled.add((id_, at))
            raise LaneConflict(f"the outcome of message {outcome.message_id} cannot be settled") from exc
