"""The leader's look at the leases: which consumers are over, and which may be. Their tickets move
(`bridge.leader.consumers.reroute`).

Who is authoritative: Redis. A consumer is over when the key of its incarnation's lease is gone, and the leader may
believe that (`bridge.leader.consumers.leases`); missing heartbeats only make the leader look sooner. What it wrote
before is read first: an outcome that is in the stream counts, whoever is dead by now. The script that moves the tickets
checks both again, in the step that moves them.

After an outage of the server nobody is judged for one lease: the workers could not renew, either. A consumer that gave
its lease up itself (a good-bye, a death notice) needs no judgement.

**Several at once.** Consumers that are lost in one moment (a rack, a switch) are one event, and nobody is charged twice
for it: a look first closes all whose lease is over, and those that miss renewals beside them, and only then moves
tickets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bridge.leader.consumers.reroute import GivenUp
from bridge.leader.picture.pieces import Consumer
from bridge.protocol.outcomes import fences_of
from bridge.routing.transitions import Batch

if TYPE_CHECKING:
    from bridge.leader.consumers.leases import Leases
    from bridge.leader.consumers.lost_runs import LostRuns
    from bridge.leader.consumers.membership import Consumers
    from bridge.leader.consumers.queues import Queues
    from bridge.leader.consumers.reroute import Reroute
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.inbox import Notice
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

#: Share of the lease. Workers renew when two thirds are left: what has less than this has missed a renewal.
DOUBTED = 0.5


class LeaseWatch:
    """Of one term, on the leader's thread."""

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
        #: When the leases are looked at next (monotonic).
        self.look_at = 0.0
        #: Nobody is judged before this (monotonic).
        self.amnesty_until = 0.0
        #: Incarnation that gave its lease up -> what it was running then.
        self.given_up: dict[str, GivenUp] = {}
        steps.on_notice[b"joined"] = self._joined
        steps.on_notice[b"gone"] = self._gone
        steps.on_notice[b"died"] = self._died

    def grant_amnesty(self) -> None:
        """The server was away: for one lease nobody is judged by it."""
        self.amnesty_until = time.monotonic() + self._term.settings.lease

    def look_within(self, seconds: float) -> None:
        """The leases are looked at after so long at the latest."""
        self.look_at = min(self.look_at, time.monotonic() + seconds)

    def look(self) -> None:
        """Looks at all leases, moves the tickets of consumers that are over, and looks for what went astray."""
        left = self._consumers.find()
        amnesty = time.monotonic() < self.amnesty_until
        judged = set() if amnesty else self._leases.over(left)
        gone = [self._lane.consumers[i] for i, ms in left.items() if ms <= 0]
        over = [consumer for consumer in gone if consumer.incarnation in (judged | self.given_up.keys())]
        for consumer in gone:
            # Its lease comes back no more; whether it has stopped yet is another question.
            if consumer.alive and consumer not in over:
                consumer.alive = False
                self._lane.stranded.fit()
                self._lane.free_ready(consumer)
        self._doubt(left, over)
        if over:
            self._reroute.retire(over, self.given_up)
        # Of those that were retired before their word was read, nothing is to be told any more.
        self.given_up = {i: given for i, given in self.given_up.items() if i in self._lane.consumers}
        self._queues.find_recovered()
        self._lost_runs.find([c for c in self._lane.consumers.values() if c.alive and c.tickets])
        # A consumer that came, or tickets that lost theirs.
        self._steps.advance(Batch())

    def _doubt(self, left: dict[str, int], over: list[Consumer]) -> None:
        """While consumers are ``over``, others that miss renewals, too, may have been lost in the same moment, with a
        lease that merely began later: they get nothing new until a renewal is seen.
        """
        for incarnation, ms in left.items():
            consumer = self._lane.consumers[incarnation]
            late = 0 < ms < self._term.settings.lease_ms * DOUBTED and ms <= consumer.left_ms
            consumer.left_ms = ms
            if late and over and not consumer.doubted:
                self._lane.free_ready(consumer)
            consumer.doubted = late and (consumer.doubted or bool(over))
            if consumer.doubted:
                self.look_within(ms / 1000)

    def gave_up(self, incarnation: str, ran: frozenset[int], *, asked: bool = False) -> None:
        """The word of a consumer that its lease is over, and the fences of what it was running then. ``asked``: it was
        told to end at once.
        """
        self.given_up[incarnation] = GivenUp(ran, asked)
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and consumer.alive:
            consumer.alive = False
            self._lane.stranded.fit()
            self._lane.free_ready(consumer)
        self.look_within(0)

    def _joined(self, _notice: Notice, _batch: Batch) -> None:
        self.look_within(0)

    def _gone(self, notice: Notice, _batch: Batch) -> None:
        # Its pool was done before: nothing of it was cut off.
        self.gave_up(notice.who, frozenset())

    def _died(self, notice: Notice, _batch: Batch) -> None:
        self.gave_up(notice.who, fences_of(notice.fields), asked=b"asked" in notice.fields[6:])
