"""The steps of a leader: a step settles outcomes, plans dispatches, and writes everything with one script.

Other parts of the leader add listeners when they are built. A listener in `Steps.on_notice` gets the notices of one
kind: entries of the outcome stream that are not outcomes. A listener in `Steps.after_write` gets each batch after it
was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.leader.step.history_cap import HistoryCap
from bridge.leader.step.outcome_reader import OutcomeReader
from bridge.protocol.envelope import OPENING, Envelopes
from bridge.protocol.names import WorkerRequest
from bridge.protocol.outcome_entries import EntryKind, Notice
from bridge.routing.batch import Batch, Dispatch
from bridge.routing.counters import uncounted
from bridge.routing.ids import id_key
from bridge.routing.transitions import Advanced, advance

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.pieces import Consumer, Ticket
    from bridge.leader.picture.planner import Planner
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Outcome entries in one read.
READ_COUNT = 500
#: About how many outcomes a turn settles while few fresh messages come.
SLICE = 250


class Steps:
    """Does the steps of one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, planner: Planner, envelopes: Envelopes, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._planner = planner
        self._envelopes = envelopes
        #: Kind of a notice -> function that takes it into the picture and the batch.
        self.on_notice: dict[EntryKind, Callable[[Notice, Batch], None]] = {}
        #: Functions that get each written batch and its result.
        self.after_write: list[Callable[[Advanced, Batch], None]] = []
        self._outcome_reader = OutcomeReader(lane, settling, self.on_notice)
        #: Id of the last entry of the outcome stream that was read and settled.
        self.last_outcome = "0-0"
        #: How many messages an entry of the last read had, on average.
        self._outcomes_each = 1.0
        #: Counters that cannot be counted on from, as the log says.
        self._uncounted: set[str] = set()
        self.history_cap = HistoryCap(term.settings.history, term.wire, term.keys.history)

    def question(self, *options: Any, count: int = READ_COUNT) -> tuple[Any, ...]:
        """The command that reads the next entries of the outcome stream. ``options``: how it blocks. ``count``: the
        most entries that it reads.
        """
        return ("XREAD", "COUNT", count, *options, "STREAMS", self._term.keys.outcomes, self.last_outcome)

    @property
    def slice_of_entries(self) -> int:
        """The most entries of the outcome stream that the next turn settles. While few fresh messages come, the turns
        are short: such a message waits for the turn of the loop.
        """
        if not self._lane.fresh.are_few:
            return READ_COUNT
        return max(1, min(READ_COUNT, int(SLICE / self._outcomes_each)))

    def settle(self, reply: Any, batch: Batch) -> int:
        """Settles the entries that a read of the outcome stream returned. Returns their number."""
        if not reply:
            return 0
        entries = reply[0][1]
        # Another read may have returned these entries before, while this one waited.
        if id_key(entries[0][0].decode()) <= id_key(self.last_outcome):
            known = id_key(self.last_outcome)
            entries = [entry for entry in entries if id_key(entry[0].decode()) > known]
            if not entries:
                return 0
        before = len(batch.acknowledged)
        self.last_outcome = self._outcome_reader.take(entries, batch)
        self._outcomes_each = max(1.0, (len(batch.acknowledged) - before) / len(entries))
        return len(entries)

    def settle_all(self) -> None:
        """Reads the outcome stream to its end. To be called before a message may count as lost."""
        while True:
            reply = self._term.wire.call(*self.question())
            batch = Batch()
            count = self.settle(reply, batch)
            self.advance(batch)
            if count < READ_COUNT:
                return

    def advance(self, batch: Batch) -> None:
        """Plans what can be dispatched, sends the batch, and takes the result into the picture."""
        lane = self._lane
        dispatched: dict[Ticket, int] = self._planner.plan(batch, lane.now_ms())
        lane.close(batch, set(dispatched))
        self._write(batch, dispatched)

    def _write(self, batch: Batch, dispatched: dict[Ticket, int]) -> None:
        """Sends the batch, and takes the result into the picture."""
        lane = self._lane
        if not batch:
            lane.written({}, 0)
            return
        if batch.history:
            batch.history_cap = self.history_cap.with_next()
        done = advance(self._term.redis, self._term.leadership, OPENING, batch)
        self.history_cap.wrote(len(batch.history))
        lane.written(dispatched, done.base)
        for name, why in done.uncounted:
            if name not in self._uncounted:
                self._uncounted.add(name)
                logger.error("%s", uncounted(self._term.keys.counts, name, why))
        for listener in self.after_write:
            listener(done, batch)

    def text_again(self, ticket: Ticket, consumer: Consumer) -> bytes:
        """The Celery message of a run in flight, built again: with the same fences, and marked as in doubt."""
        return self._planner.text_again(ticket, consumer)

    def request(self, consumer: Consumer, request: WorkerRequest, batch: Batch) -> None:
        """Sends a request to a worker, through its queue."""
        if request is WorkerRequest.GIVE_BACK and not consumer.takes_bundles:
            # Such a consumer may have begun everything that it was given.
            return
        to = batch.dispatches.setdefault(consumer.name, Dispatch(consumer.name, consumer.queue))
        # The script puts a fence into every text. No message uses this fence.
        batch.fences += 1
        to.texts.append(self._envelopes.request(consumer.incarnation, consumer.queue, request))
