"""Decides which leases are over.

A lease is a key in Redis that expires. A missing key proves that the worker has stopped only if two conditions hold:

- The clocks agree: the server's clock was not set (`bridge.link.server_clock`).
- The key was due to expire. The leader knows how much time the lease had left when it last saw the key.

If one of them does not hold (the server's clock was set, the key was deleted by hand, the master has just started), the
leader waits for one whole lease on its own monotonic clock, from the moment when it missed the key. A renewal never
revives a missing key. So after that time the worker does not trust its lease any more, whatever the cause was.

A consumer that gave its lease up itself needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bridge.routing.transitions import NO_END, Leadership, leases, shorten

if TYPE_CHECKING:
    from redis import Redis

    from bridge.link.server_clock import ServerClock


class Leases:
    """What one leader knows about the leases of its lane. Times are in seconds, by `ServerClock.now`."""

    def __init__(self, clock: ServerClock, lease_s: float) -> None:
        self._clock = clock
        self._lease_ms = int(lease_s * 1000)
        #: Incarnation -> length of its lease in ms, as its worker registered it.
        self._length: dict[str, int] = {}
        # Shared by all terms of this master. After a clock step the leader's own lease ends too, and a new term would
        # not know the old end times.
        self._ends = clock.ends
        #: Incarnation -> when its lease was first missing.
        self._missed: dict[str, float] = {}

    def know(self, incarnation: str, length_ms: int | None) -> None:
        """Notes the length of a lease; None: the worker did not register it."""
        if length_ms is not None:
            self._length[incarnation] = length_ms

    def ask(self, redis: Redis, lead: Leadership, incarnations: Iterable[str]) -> dict[str, int]:
        """The ms that each lease has left (negative: it is gone). Compares the clocks after that.

        Raises `NotLeading`, redis errors.
        """
        asked = list(incarnations)
        sent = self._clock.now()
        left = leases(redis, lead.keys, asked)
        received = self._clock.now()
        # After the leases were read: a step of the clock that ended one of them is seen now.
        self._clock.compare(redis)
        for incarnation in [i for i, ms in left.items() if ms == NO_END]:
            # It was made so by hand, and would hold for ever. A worker that lives gives it an end when it renews.
            left[incarnation] = self._length.get(incarnation, self._lease_ms)
            shorten(redis, lead, incarnation, left[incarnation])
        for incarnation, ms in left.items():
            length_ms = self._length.get(incarnation)
            if length_ms is not None and ms > length_ms:
                # The server's clock was set back. The worker trusts its lease for its length at most.
                shorten(redis, lead, incarnation, length_ms)
            if ms > 0:
                self._ends[incarnation] = sent + min(ms, length_ms or ms) / 1000
        self._missed = {i: self._missed.get(i, received) for i, ms in left.items() if ms <= 0}
        for incarnation in [i for i, end in self._ends.items() if i not in left and end <= received]:
            del self._ends[incarnation]
        self._length = {i: length_ms for i, length_ms in self._length.items() if i in left}
        return left

    def over(self, left: Mapping[str, int]) -> set[str]:
        """The incarnations whose lease is certainly over."""
        return {incarnation for incarnation, ms in left.items() if ms <= 0 and self._is_over(incarnation)}

    def was_ended(self, incarnation: str) -> bool:
        """Whether the lease of ``incarnation`` seems to have ended by a change by hand: to the server's clock, or to
        the key.
        """
        missed = self._missed.get(incarnation)
        if missed is None:
            return False
        early = self._ends.get(incarnation, 0.0) > missed + self._clock.tolerance_s
        return early or self._clock.stepped_at >= missed - self._lease_ms / 1000

    def _is_over(self, incarnation: str) -> bool:
        now = self._clock.now()
        missed = self._missed.get(incarnation, now)
        wait_ms = max(self._lease_ms, self._length.get(incarnation, 0))
        # If the key was missing too early, it may have been renewed after it was last seen.
        if (
            self._clock.steady_for(wait_ms / 1000)
            and self._ends.get(incarnation, 0.0) <= missed + self._clock.tolerance_s
        ):
            return True
        return now - missed >= wait_ms / 1000
