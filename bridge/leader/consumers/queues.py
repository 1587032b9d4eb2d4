"""What waits in the queues of consumers, and is taken back: from those that shall not have it, or do not take it.

What was taken from a queue the worker can never get, so it may go to another at once. But for two things: a run that
was sent twice, whose other copy may be in the worker's hands, and one that the worker may have taken from the queue
before the server forgot that it did. Both are left to anti-entropy (`bridge.leader.consumers.lost_runs`): nobody else
gets them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer
from bridge.protocol.envelope import returned
from bridge.protocol.names import HEADER_RUNS, WorkerWord
from bridge.routing.transitions import Batch, recall

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Celery messages that are taken back from a queue at once.
RECALL = 100


class Queues:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._settling = settling
        #: Larger fences were given out since the server has run without a restart or a failover: what waits in a queue
        #: under such a fence, nobody took from there before.
        self._sound_since: float = inf

    def know_server(self, uptime_s: int) -> None:
        """Looks since when the server has been what it is; ``uptime_s``: whole seconds since it was started."""
        redis = self._term.redis
        past = redis.info("replication")
        now_us = redis.time()[0] * 1_000_000
        last = int(redis.get(self._term.keys.fence) or 0)
        if past.get("role") == "master" and past.get("second_repl_offset") == -1 and last < now_us + 1_000_000:
            # It never took over from another server, nor was its clock set back. Parts of a second were cut off twice.
            self._sound_since = now_us - (uptime_s - 2) * 1_000_000

    def empty(self, consumer: Consumer, batch: Batch) -> None:
        """What waits for ``consumer``, or at it, waits for anybody; what runs there goes on."""
        self._lane.stranded.fit()
        self._lane.free_ready(consumer)
        self.take_back(consumer, batch)
        if consumer.tickets:
            self._steps.say(consumer, WorkerWord.GIVE_BACK, batch)

    def take_back(self, consumer: Consumer, batch: Batch) -> int:
        """Takes back what ``consumer`` has not taken from its queue; the number of runs."""
        runs = 0
        while texts := recall(self._term.redis, self._term.leadership, consumer.name, RECALL):
            for text in texts:
                message = orjson.loads(text)
                if any(run[4] for run in message["headers"][HEADER_RUNS]):
                    # It was sent twice: the other copy may be in the worker's hands. If not, it will be missed again.
                    continue
                for outcome in returned(message, consumer.incarnation):
                    ticket = self._lane.in_flight.get(outcome.message_id)
                    if ticket is None or not (ticket.dispatched_at or outcome.fence > self._sound_since):
                        # Sent before the server's last outage, as far as can be known: the queue may hold again what
                        # the worker took from it before. If it is in nobody's hands, it will be missed.
                        continue
                    runs += 1
                    self._settling.settle(outcome, batch)
        return runs

    def probe(self, consumer: Consumer, oldest: bytes, now: float) -> None:
        """What begins with ``oldest`` is next in the queue of ``consumer``. When it stays there for a lease, the worker
        lives and does not consume: its loop is stuck, somebody told it to stop consuming, or, with a solo pool, it runs
        one long task. What is in its queue goes to others; it gets no more until it takes a probe from its queue.
        """
        text, since = consumer.stuck
        if text != oldest:
            consumer.stuck = (oldest, now)
            return
        if consumer.stalled or now - since < self._term.settings.lease:
            return
        consumer.stalled = True
        self._lane.stranded.fit()
        batch = Batch()
        self._lane.free_ready(consumer)
        runs = self.take_back(consumer, batch)
        batch.count("stalled")
        self._steps.say(consumer, WorkerWord.PROBE, batch)
        logger.warning(
            "consumer %s holds its lease and takes nothing from its queue: %d runs go elsewhere", consumer.name, runs
        )
        self._steps.advance(batch)

    def find_recovered(self) -> None:
        """Consumers that took the probe from their queue."""
        stalled = [consumer for consumer in self._lane.consumers.values() if consumer.stalled and consumer.alive]
        for consumer in stalled:
            if not self._term.redis.llen(consumer.queue):
                consumer.stalled = False
                self._lane.stranded.fit()
                logger.info("consumer %s takes from its queue again", consumer.name)
