"""Takes Celery messages back from the queues of consumers that must not get them or do not take them.

A worker can never get a message that was taken back from its queue. So the run may go to another consumer at once.
There are two exceptions:

- A run that was sent twice: the worker may have the other copy.
- A run that the worker may have taken before the server lost its last writes: the queue has it again.

Both are left to anti-entropy (`bridge.leader.consumers.lost_runs`). No other consumer gets them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer
from bridge.protocol.envelope import returned
from bridge.protocol.headers import heads_of
from bridge.protocol.names import WorkerRequest
from bridge.routing.batch import Batch
from bridge.routing.transitions import recall

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Most Celery messages that are taken back from a queue at once.
RECALL = 100


class Queues:
    """The queues of one lane's consumers, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, settling: Settling) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._settling = settling
        #: Larger fences were given out after the server's last restart or failover. A run in a queue with such a fence
        #: was never taken from the queue before.
        self._sound_since: float = inf

    def know_server(self, uptime_s: int) -> None:
        """Finds out since when the server runs without a failover. ``uptime_s``: whole seconds since its start."""
        redis = self._term.redis
        past = redis.info("replication")
        now_us = redis.time()[0] * 1_000_000
        last = int(redis.get(self._term.keys.fence) or 0)
        if past.get("role") == "master" and past.get("second_repl_offset") == -1 and last < now_us + 1_000_000:
            # The server never took over from another one, and its clock was not set back. Both times were rounded down
            # to seconds: so subtract two.
            self._sound_since = now_us - (uptime_s - 2) * 1_000_000

    def empty(self, consumer: Consumer, batch: Batch) -> None:
        """Frees all tickets that wait for ``consumer`` or in its queue. Messages that run there go on."""
        self._lane.stranded.fit()
        self._lane.free_ready(consumer)
        self.take_back(consumer, batch)
        if consumer.tickets:
            self._steps.request(consumer, WorkerRequest.GIVE_BACK, batch)

    def take_back(self, consumer: Consumer, batch: Batch) -> int:
        """Takes back the messages that ``consumer`` has not taken from its queue. Returns the number of runs."""
        runs = 0
        while texts := recall(self._term.redis, self._term.leadership, consumer.name, RECALL):
            for text in texts:
                message = orjson.loads(text)
                if any(run.doubt for run in heads_of(message["headers"])):
                    # It was sent twice, and the worker may have the other copy. If not, anti-entropy finds it again.
                    continue
                for outcome in returned(message, consumer.incarnation):
                    ticket = self._lane.in_flight.get(outcome.message_id)
                    if ticket is None or not (ticket.dispatched_at or outcome.fence > self._sound_since):
                        # It may have been sent before the server's last outage. The queue may then hold a message
                        # again that the worker took before. If the worker lacks it, anti-entropy finds it.
                        continue
                    runs += 1
                    self._settling.settle(outcome, batch)
        return runs

    def probe(self, consumer: Consumer, oldest: bytes, now: float) -> None:
        """Marks ``consumer`` as stalled when it takes nothing from its queue for one lease.

        ``oldest``: first bytes of the oldest message in the queue. If that message stays for one lease, the worker
        lives but does not consume: its loop is stuck, it was told to stop consuming, or it has a solo pool and runs a
        long task. Its queued messages go to other consumers. It gets no more until it takes a probe from its queue.
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
        self._steps.request(consumer, WorkerRequest.PROBE, batch)
        logger.warning(
            "consumer %s holds its lease and takes nothing from its queue: %d runs go elsewhere", consumer.name, runs
        )
        self._steps.advance(batch)

    def find_recovered(self) -> None:
        """Opens stalled consumers again that took the probe from their queue."""
        stalled = [consumer for consumer in self._lane.consumers.values() if consumer.stalled and consumer.alive]
        for consumer in stalled:
            if not self._term.redis.llen(consumer.queue):
                consumer.stalled = False
                self._lane.stranded.fit()
                logger.info("consumer %s takes from its queue again", consumer.name)
