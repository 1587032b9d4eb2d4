"""Checks the leases of the lane's consumers, and has the tickets of lost consumers moved
(`bridge.leader.consumers.reroute`).

Redis is authoritative. A consumer is lost when the key of its lease is gone and the leader may trust that
(`bridge.leader.consumers.leases`). Missing heartbeats only make the leader look sooner. All outcomes that the consumer
wrote are read first, and they count. The script that moves the tickets checks the lease and the outcomes once more, in
the same step.

After an outage of the server, no lease counts as over for the time of one lease, because the workers could not renew.
A consumer that gave its lease up itself (a good-bye, a death notice) is lost at once.

**Several consumers at once.** Consumers that are lost in one moment (a rack, a switch) are one event, and no message
may be charged for it twice. So a look first closes all consumers whose lease is over, and all others that miss renewals
at the same time. Only then does it move tickets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Consumer
from bridge.protocol.outcome_entries import EntryKind, GivenUp, Notice, read_given_up
from bridge.routing.batch import Batch

if TYPE_CHECKING:
    from bridge.leader.consumers.leases import Leases
    from bridge.leader.consumers.lost_runs import LostRuns
    from bridge.leader.consumers.membership import Consumers
    from bridge.leader.consumers.queues import Queues
    from bridge.leader.consumers.reroute import Reroute
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

#: Share of the lease. A worker renews when two thirds are left. With less than this share left, it missed a renewal.
DOUBTED = 0.5


class LeaseWatch:
    """Checks leases in one term, on the leader's thread."""

    def __init__(
        self,
        term: Term,
        lane: Lane,
        steps: Steps,
        leases: Leases,
        consumers: Consumers,
        reroute: Reroute,
        queues: Queues,
        lost_runs: LostRuns,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._leases = leases
        self._consumers = consumers
        self._reroute = reroute
        self._queues = queues
        self._lost_runs = lost_runs
        #: When to check the leases next (monotonic seconds).
        self.look_at = 0.0
        #: When to check all that is checked at intervals (monotonic seconds). The leases may be looked at sooner.
        self.check_at = 0.0
        #: Until when consumers that join wait for the next check. A check costs time for each consumer, so a thousand
        #: that join one after the other must not cost a thousand checks.
        self.rests_until = 0.0
        #: Names of consumers whose heartbeats are missing. Another thread adds them.
        self.silent: set[str] = set()
        #: No lease counts as over before this time (monotonic seconds).
        self.spared_until = 0.0
        #: Incarnation that gave its lease up -> what it was running at that moment.
        self.given_up: dict[str, GivenUp] = {}
        steps.on_notice[EntryKind.JOINED] = self._joined
        steps.on_notice[EntryKind.GONE] = self._gone
        steps.on_notice[EntryKind.DIED] = self._died

    def spare_leases(self) -> None:
        """For the time of one lease, no lease counts as over: workers could not renew while the server was away."""
        self.spared_until = time.monotonic() + self._term.settings.lease

    def look_within(self, seconds: float) -> None:
        """Checks the leases within ``seconds`` at the latest."""
        self.look_at = min(self.look_at, time.monotonic() + seconds)

    def is_urgent(self, now: float) -> bool:
        """Whether only the leases are looked at now: tickets of a consumer that has ended stand still until then, and
        what else is checked at intervals is not due.
        """
        return bool(self.given_up) and now < self.check_at

    def look(self) -> None:
        """Checks all leases, moves the tickets of lost consumers, and finds lost runs."""
        left = self._consumers.find()
        spared = time.monotonic() < self.spared_until
        expired = set() if spared else self._leases.over(left)
        gone = [self._lane.consumers[i] for i, ms in left.items() if ms <= 0]
        over = [consumer for consumer in gone if consumer.incarnation in (expired | self.given_up.keys())]
        for consumer in gone:
            # Its lease does not come back. The consumer may still be running.
            if consumer.alive and consumer not in over:
                self._close(consumer)
        if self.silent:
            self._check_when_silent_leases_end(left)
        self._doubt(left, over)
        if over:
            self._reroute.retire(over, self.given_up)
        # Drop the notices of consumers that are not in the picture any more.
        self.given_up = {i: given for i, given in self.given_up.items() if i in self._lane.consumers}
        self._queues.find_recovered()
        self._lost_runs.find([c for c in self._lane.consumers.values() if c.alive and c.tickets])
        # There may be new consumers, or tickets without a consumer.
        self._steps.advance(Batch())

    def _check_when_silent_leases_end(self, left: dict[str, int]) -> None:
        """Sets the next check to when the lease of a silent consumer ends, if that is sooner."""
        for incarnation, ms in left.items():
            consumer = self._lane.consumers[incarnation]
            if consumer.name in self.silent and ms > consumer.left_ms:
                # It renews its lease. Only its heartbeats were lost.
                self.silent.discard(consumer.name)
            elif consumer.name in self.silent and ms > 0:
                # The server counts whole milliseconds.
                self.look_within((ms + 1) / 1000)
        self.silent.intersection_update({consumer.name for consumer in self._lane.consumers.values()})

    def _doubt(self, left: dict[str, int], over: list[Consumer]) -> None:
        """Closes consumers that miss renewals while others are ``over``, until they renew.

        They may have been lost in the same moment, with a lease that began a little later.
        """
        doubted_ms = self._term.settings.lease_ms * DOUBTED
        for incarnation, ms in left.items():
            consumer = self._lane.consumers[incarnation]
            late = 0 < ms < doubted_ms and ms <= consumer.left_ms
            consumer.left_ms = ms
            doubted = late and (consumer.doubted or bool(over))
            if doubted != consumer.doubted:
                if doubted:
                    self._lane.free_ready(consumer)
                consumer.doubted = doubted
            if doubted:
                self.look_within(ms / 1000)

    def gave_up(self, incarnation: str, given_up: GivenUp) -> None:
        """Notes that a consumer gave its lease up."""
        self.given_up[incarnation] = given_up
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and consumer.alive:
            self._close(consumer)
        self.look_within(0)

    def _close(self, consumer: Consumer) -> None:
        """It gets no more messages."""
        consumer.alive = False
        self._lane.stranded.fit()
        self._lane.free_ready(consumer)

    def _joined(self, _notice: Notice, _batch: Batch) -> None:
        self.look_within(max(0.0, self.rests_until - time.monotonic()))

    def _gone(self, notice: Notice, _batch: Batch) -> None:
        # Its pool had finished: no message was cut off.
        self.gave_up(notice.who, GivenUp())

    def _died(self, notice: Notice, _batch: Batch) -> None:
        self.gave_up(notice.who, read_given_up(notice))
