"""Anti-entropy: sends runs again that their consumer should have and does not name.

With each renewal a worker tells what it holds. A run that two successive reports do not name, and that
is not in the worker's queue, was lost on the way (`celery purge`, a deleted queue, a reply that a dying connection
swallowed), or is merely late in the worker's hands. So the very same run goes out again, to the same incarnation, with
the fences that it has: a worker that never had it takes it, one that has it refuses it, and one that had it and forgot
it gives it back. No new fence is given while a life that may still run the old one holds its lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.routing.errors import LaneConflict
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Batch, oldest, resend

if TYPE_CHECKING:
    from bridge.leader.consumers.queues import Queues
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

logger = get_logger(__name__)


class LostRuns:
    """Of one term, on the leader's thread."""

    def __init__(self, term: Term, steps: Steps, queues: Queues) -> None:
        self._term = term
        self._steps = steps
        self._queues = queues

    def find(self, consumers: list[Consumer]) -> None:
        """Sends again what two reports of its consumer do not name, and its queue does not hold."""
        if not consumers:
            return
        keys = self._term.keys
        period = self._term.settings.lease / 3
        now = time.monotonic()
        old = {c: [t for t in c.tickets if now - t.dispatched_at > 2 * period] for c in consumers}
        # All that have something, or a queue that nobody takes from would be noticed a good part of a lease later.
        with self._term.redis.pipeline(transaction=False) as pipe:
            for consumer in consumers:
                pipe.get(keys.held(consumer.incarnation))
            reports = pipe.execute()
        # After the reports: what a worker took from its queue since then, it may not have told of.
        queues = oldest(self._term.redis, [consumer.queue for consumer in consumers])
        suspects: list[Ticket] = []
        for consumer, report, queued in zip(consumers, reports, queues, strict=True):
            if queued:
                self._queues.probe(consumer, queued, now)
            if not report or queued:
                # Without a report nothing is known; what is in the queue may be what is missing.
                consumer.missed.clear()
                continue
            holdings = orjson.loads(report)
            held = set(holdings["fences"])
            # A run is held by the fence that it was sent with: its first one, or a later one if it was sent again.
            missing = {
                ticket.run_fence: ticket
                for ticket in old[consumer]
                if held.isdisjoint(range(ticket.run_fence, ticket.fence + len(ticket.run)))
            }
            consumer.missed = {f: n for f, n in consumer.missed.items() if f in missing}
            for fence, ticket in missing.items():
                if consumer.missed.setdefault(fence, holdings["n"]) < holdings["n"]:
                    suspects.append(ticket)
        if not suspects:
            return
        # An outcome is written before its run leaves the worker's report: if there is one, it is in the stream.
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
            "ticket %s: its run (fence %d) is not known to %s: it goes out again",
            *(ticket.id, ticket.fence, consumer.name),
        )
        batch.count("lost")
        consumer.missed.pop(ticket.run_fence, None)
        ticket.dispatched_at = time.monotonic()
