"""Anti-entropy: sends runs again that their consumer should have but does not report.

With each renewal, a worker reports the runs that it holds. Assume that two successive reports do not name a run, and
that the worker's queue is empty. Then the run was lost on the way (`celery purge`, a deleted queue, a reply on a broken
connection), or the worker is only slow to report it.

So the leader sends the same run again, to the same incarnation, with the same fences. A worker that never had the run
takes it. One that has it refuses the copy. One that had it and forgot it gives it back. No new fence is given while the
incarnation that may still run the old one holds its lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol import unreadable
from bridge.protocol.held_runs import read_held_runs
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import oldest, resend

if TYPE_CHECKING:
    from bridge.leader.consumers.queues import Queues
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

logger = get_logger(__name__)


class LostRuns:
    """Finds lost runs in one term, on the leader's thread."""

    def __init__(self, term: Term, steps: Steps, queues: Queues) -> None:
        self._term = term
        self._steps = steps
        self._queues = queues

    def find(self, consumers: list[Consumer]) -> None:
        """Sends the runs again that two reports of their consumer do not name and its queue does not hold."""
        if not consumers:
            return
        keys = self._term.keys
        period = self._term.settings.lease / 3
        now = time.monotonic()
        old = {c: [t for t in c.tickets if now - t.dispatched_at > 2 * period] for c in consumers}
        # Ask for all consumers with tickets. Otherwise a worker that takes nothing from its queue is noticed late.
        with self._term.redis.pipeline(transaction=False) as pipe:
            for consumer in consumers:
                pipe.get(keys.held(consumer.incarnation))
            reports = pipe.execute()
        # Read the queues after the reports. A report may not name a run that the worker took after it.
        queues = oldest(self._term.redis, [consumer.queue for consumer in consumers])
        suspects: list[Ticket] = []
        for consumer, report, queued in zip(consumers, reports, queues, strict=True):
            if queued:
                self._queues.probe(consumer, queued, now)
            if not report or queued:
                # There is no report, or the missing run may still be in the queue.
                consumer.missed.clear()
                continue
            try:
                reported = read_held_runs(report)
            except unreadable.UNREADABLE:
                unreadable.skip(keys.held(consumer.incarnation), b"", report)
                consumer.missed.clear()
                continue
            held = set(reported.fences)
            # A worker reports a run by the fence that it was sent with: the first one, or a later one if it was resent.
            missing = {
                ticket.run_fence: ticket
                for ticket in old[consumer]
                if held.isdisjoint(range(ticket.run_fence, ticket.fence + len(ticket.run)))
            }
            consumer.missed = {f: n for f, n in consumer.missed.items() if f in missing}
            for fence, ticket in missing.items():
                if consumer.missed.setdefault(fence, reported.n) < reported.n:
                    suspects.append(ticket)
        if not suspects:
            return
        # A worker writes the outcome before it drops the run from its report. So any outcome is in the stream now.
        fences = {ticket: ticket.run_fence for ticket in suspects}
        self._steps.settle_all()
        batch = Batch()
        for ticket, fence in fences.items():
            if ticket.run and ticket.run_fence == fence and ticket.consumer is not None:
                self._resend(ticket, ticket.consumer, batch)
        self._steps.advance(batch)

    def _resend(self, ticket: Ticket, consumer: Consumer, batch: Batch) -> None:
        text = self._steps.text_again(ticket, consumer)
        code = resend(self._term.redis, self._term.leadership, consumer.name, ticket.id, ticket.record, text)
        if code is not ReturnCode.OK:
            raise LaneConflict(f"ticket {ticket.id!r} is not where this master thought it was")
        logger.warning(
            "ticket %s: %s does not know its run (fence %d): it is sent again",
            *(ticket.id, consumer.name, ticket.fence),
        )
        batch.count("lost")
        consumer.missed.pop(ticket.run_fence, None)
        ticket.dispatched_at = time.monotonic()
