"""The server's clock beside this machine's own, so that no single clock decides whose lease is over (I5a).

Leases end by the server's clock, which somebody may set; the workers count theirs on their own machines' clocks, which
nobody can. When the server's clock is set forward by more than a lease, every key of a lease is gone at once, and every
worker works on until it next renews, for as long as its lease was when it last did. So a key that is gone says nothing
of its worker, unless the server's clock has gone on as ours did for one whole lease. The same after a failover to a
replica whose clock is ahead, and where a clock is made to run faster for a while, instead of being set.

A master therefore asks the server for its time with whatever it asks regularly: every look at the leases, and, as a
standby, every question who leads. So who takes over knows of what happened before, and the leases of a lost machine
are judged at once. Only a master that has just been started does not: it judges nobody in its first lease.

What a comparison tells. The server's time was read somewhere between the moments in which we asked and had the answer;
so how far it is ahead of ours lies between two bounds. The greatest lower bound of one lease is kept. A time that is
further ahead than that allows, by more than `TOLERANCE` of a lease and the quickest answer so far, is a step forward,
and all is forgotten: the next lease begins to count with the answer that showed it. An answer that is too slow to tell
is no comparison, and nobody is judged by it. The tolerance is less than the margin that workers leave at the end of
their leases, so a smaller step than that ends no lease too early.

The leaders need none of this: two may think that they lead, after a step that ended the leader's key, and all that the
first of them still sends is refused for its term (I8).

Backward steps let leases, and the lead, hold longer than anybody counts on: whoever sees a key that has more than a
whole lease left cuts it to a lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)

#: Share of a lease by which the clocks may differ after one lease. Workers end theirs by 0.05 of it too early.
TOLERANCE = 0.02
#: Times that the server is asked in one comparison, when its answers are too slow to tell.
TRIES = 3

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """This machine's own clock: nobody sets it, and it goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class ServerClock:
    """Compares the clocks for one master, over all its terms. Times in seconds, by `now_s` unless said otherwise."""

    def __init__(self, lease_s: float, *, now: Callable[[], float] = now_s) -> None:
        self._lease_s = lease_s
        self._now = now
        self.tolerance_s = lease_s * TOLERANCE
        #: (when, least and most that the server's clock was ahead), of one lease.
        self._found: list[tuple[float, float, float]] = []
        #: Since when the clocks agree.
        self._since = now()
        #: When a step was last noticed.
        self.stepped_at = float("-inf")
        #: How long the quickest answer took.
        self._quickest = float("inf")
        #: Whether the last comparison could tell.
        self._told = False
        #: How far the server's clock is ahead, less all the steps that it made since this began.
        self._ahead = time.time() - now()
        self._stepped = 0.0
        #: Incarnation -> the earliest end of its lease, when this master last saw it, in whichever term: see
        #: `bridge.leader.consumers.leases`.
        self.ends: dict[str, float] = {}

    def now(self) -> float:
        return self._now()

    @property
    def steady(self) -> bool:
        """Whether the server's clock has gone on as ours did for one lease, up to the last comparison."""
        return self._told and self._now() - self._since >= self._lease_s

    def lane_ms(self) -> int:
        """The time of the lane, Unix ms: the server's, as it was when this master started, and no step of any clock
        since then. What is due by it comes neither early nor late.
        """
        return int((self._now() + self._ahead) * 1000)

    def server_ms(self) -> int:
        """The server's time of now, Unix ms: what ids of entries are made of."""
        return int((self._now() + self._ahead + self._stepped) * 1000)

    def compare(self, redis: Redis) -> None:
        """Asks the server for its time. Raises redis errors."""
        for _ in range(TRIES):
            sent = self._now()
            seconds, micros = redis.time()
            self._told = self.learn(sent, int(seconds) + int(micros) / 1e6, self._now())
            if self._told:
                return

    def learn(self, sent: float, server_s: float, received: float) -> bool:
        """Takes one answer in; False: it was too slow to tell anything."""
        took = received - sent
        self._quickest = min(self._quickest, took)
        least, most = server_s - received, server_s - sent
        if not self._found:
            self._since = sent
            self._ahead = least
            self._found = [(received, least, most)]
            return True
        known_least = max(found[1] for found in self._found)
        known_most = min(found[2] for found in self._found)
        forward = least - known_most > self.tolerance_s
        if not forward and most - known_least - self._quickest > self.tolerance_s:
            if took > self.tolerance_s:
                # It may have been set, or this answer was slow.
                return False
            # What was known before is too vague to tell: an answer was slow then.
            self._begin_anew(received, least, most)
        elif forward or most < known_least - self.tolerance_s:
            step = least - known_least
            logger.warning(
                "the server's clock was set %s by %.3f s: no lease is judged for one lease, counted by this machine's",
                *("forward" if forward else "back", abs(step)),
            )
            self._stepped += step
            self.stepped_at = received
            self._begin_anew(received, least, most)
        else:
            # What does not fit any more was before the clocks ran apart, as they always do a little.
            oldest = received - self._lease_s
            self._found = [found for found in self._found if found[0] >= oldest and found[1] <= most]
            self._found.append((received, least, most))
            self._ahead = max(found[1] for found in self._found) - self._stepped
        return True

    def _begin_anew(self, received: float, least: float, most: float) -> None:
        self._found = [(received, least, most)]
        self._since = received
