"""Compares the server's clock with this machine's clock, so that no single clock decides that a lease is over (I5a).

A lease is a key that expires by the server's clock. Somebody may set that clock. A worker counts its deadline on the
monotonic clock of its own machine, which nobody can set. If the server's clock is set forward by more than a lease,
all lease keys expire at once, and every worker still works until its own deadline. The same happens after a failover
to a replica whose clock is ahead, and when a clock is made to run faster for a while.

So a missing key proves nothing by itself. It counts only after the server's clock has advanced as this machine's clock
did for one whole lease: the master's, or the worker's own if that one is longer.

A master asks the server for its time together with its regular commands: the leader with each check of the leases, a
standby with each question who leads. So a new leader knows whether the clock was set before it led, and can move the
tickets of a lost machine at once. A master that has just started knows nothing yet: it ends no lease for the duration
of one lease.

One comparison gives two bounds. The server read its clock between the moment when the master sent the question and the
moment when the answer arrived. So the difference of the clocks is between two values. The greatest lower bound of one
lease is kept. If a new difference is larger than that bound by more than `TOLERANCE` of a lease and the quickest answer
so far, the clock was set forward. Then all comparisons are dropped, and the time without a step counts from this
answer. An answer that took too long gives bounds that are too wide. It is not used, and no lease is ended after it.

The tolerance is smaller than the margin by which workers end their leases early. So a smaller step ends no lease too
early.

The leader lease needs no such check. After a step, two masters may each believe that they lead. The server refuses all
that the first one still sends, because its term is over (I8).

When the clock is set back, leases and the leader lease last too long. A master that sees a key with more than one lease
left shortens it to one lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)

#: Share of a lease by which the clocks may drift apart in one lease. Workers end their leases early by a share of 0.05.
TOLERANCE = 0.02
#: Most questions in one comparison. The next one is only asked if the answer was too slow.
TRIES = 3

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Seconds by this machine's monotonic clock. Nobody can set it, and it advances while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class ServerClock:
    """The comparisons of one master, over all its terms. Times are in seconds by `now_s`, unless stated otherwise."""

    def __init__(self, lease_s: float, *, now: Callable[[], float] = now_s) -> None:
        self._lease_s = lease_s
        self._now = now
        self.tolerance_s = lease_s * TOLERANCE
        #: (when, lower bound, upper bound) of how far the server's clock was ahead: the comparisons of the last lease.
        self._bounds: list[tuple[float, float, float]] = []
        #: When the present time without a step began.
        self._since = now()
        #: When the last step was noticed.
        self.stepped_at = float("-inf")
        #: Duration of the quickest answer.
        self._quickest = float("inf")
        #: Whether the last answer was quick enough.
        self._usable = False
        #: How far the server's clock is ahead, without the steps since this master started.
        self._ahead = time.time() - now()
        self._stepped = 0.0
        #: (when it was noticed, step) of the steps of the last lease.
        self._unsettled: list[tuple[float, float]] = []
        #: Incarnation -> the earliest end of its lease, as this master last saw it in any of its terms. See
        #: `bridge.leader.consumers.leases`.
        self.ends: dict[str, float] = {}

    def now(self) -> float:
        return self._now()

    def steady_for(self, seconds: float) -> bool:
        """Whether the server's clock advanced as this machine's did for so long, up to the last comparison."""
        return self._usable and self._now() - self._since >= seconds

    def lane_ms(self) -> int:
        """The time of the lane, Unix ms: the server's without the steps since this master started. For durations."""
        return int((self._now() + self._ahead) * 1000)

    def server_ms(self) -> int:
        """The server's present time, Unix ms. Ids of entries are made of it."""
        return int((self._now() + self._ahead + self._stepped) * 1000)

    def settled_ms(self) -> int:
        """The server's time without the steps of the last lease, Unix ms. A clock that was set by mistake, and is put
        right within a lease, does not change it.
        """
        return int((self._now() + self._ahead + self._settled_s()) * 1000)

    def due_ms(self) -> int:
        """The time by which messages are due, Unix ms: the server's. For one lease after a step it is the earlier one
        of `server_ms` and `settled_ms`. So a clock that is set forward by mistake, and put right soon, makes no message
        early.
        """
        return min(self.server_ms(), self.settled_ms())

    def settled_steps_ms(self) -> int:
        """The sum of the steps that `settled_ms` has taken since this master started."""
        return round(self._settled_s() * 1000)

    def is_settled(self) -> bool:
        """Whether the server's clock was not set in the last lease."""
        self._settled_s()
        return not self._unsettled

    def _settled_s(self) -> float:
        unsettled = self._unsettled
        if not unsettled:
            return self._stepped
        old = self._now() - self._lease_s
        while unsettled and unsettled[0][0] <= old:
            del unsettled[0]
        return self._stepped - sum(step for _, step in unsettled)

    def compare(self, redis: Redis) -> None:
        """Asks the server for its time. Raises redis errors."""
        for _ in range(TRIES):
            sent = self._now()
            seconds, micros = redis.time()
            self._usable = self._use(sent, int(seconds) + int(micros) / 1e6, self._now())
            if self._usable:
                return

    def note(self, sent: float, server_s: float, received: float) -> bool:
        """Uses an answer that `compare_all` asked for. Returns False if it was too slow to use."""
        self._usable = self._use(sent, server_s, received)
        return self._usable

    def _use(self, sent: float, server_s: float, received: float) -> bool:
        """Uses one answer: ``server_s`` is the server's time. Returns False if the answer was too slow to use."""
        took = received - sent
        self._quickest = min(self._quickest, took)
        least, most = server_s - received, server_s - sent
        if not self._bounds:
            self._since = sent
            self._ahead = least
            self._bounds = [(received, least, most)]
            return True
        known_least = max(low for _, low, _ in self._bounds)
        known_most = min(high for _, _, high in self._bounds)
        forward = least - known_most > self.tolerance_s
        if not forward and most - known_least - self._quickest > self.tolerance_s:
            if took > self.tolerance_s:
                # The clock may have been set, or this answer was slow.
                return False
            # The known bounds are too wide, because earlier answers were slow.
            self._restart(received, least, most)
        elif forward or most < known_least - self.tolerance_s:
            step = least - known_least
            logger.warning(
                "the server's clock was set %s by %.3f s: for %g s or more, no consumer's lease is taken as over",
                *("forward" if forward else "back", abs(step), self._lease_s),
            )
            self._stepped += step
            self.stepped_at = received
            self._unsettled.append((received, step))
            self._restart(received, least, most)
        else:
            # Bounds that no longer fit are dropped: two clocks always drift apart a little.
            oldest = received - self._lease_s
            self._bounds = [found for found in self._bounds if found[0] >= oldest and found[1] <= most]
            self._bounds.append((received, least, most))
            self._ahead = max(low for _, low, _ in self._bounds) - self._stepped
        return True

    def _restart(self, received: float, least: float, most: float) -> None:
        self._bounds = [(received, least, most)]
        self._since = received


def compare_all(redis: Redis, clocks: Sequence[ServerClock]) -> None:
    """Asks the server for its time once, for the clocks of several lanes. Raises redis errors."""
    for _ in range(TRIES):
        sent = now_s()
        seconds, micros = redis.time()
        server_s, received = int(seconds) + int(micros) / 1e6, now_s()
        clocks = [clock for clock in clocks if not clock.note(sent, server_s, received)]
        if not clocks:
            return
