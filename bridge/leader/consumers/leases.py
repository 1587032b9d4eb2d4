"""Whose lease is over, as far as a leader may believe the server.

A lease's key that is gone says that its worker has stopped only while the clocks agree (`bridge.link.server_clock`),
and only when its time had come: the leader knows how much it had left when it last saw it. Where one of the two is not
so (a step of the server's clock, a key deleted by hand, a master that has just been started), the leader waits. Nothing
revives a key that is gone, so when a whole lease has gone by on this machine's own clock since the key was missed, its
worker trusts in it no longer, whatever happened. A consumer that said itself that it is over needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bridge.routing.transitions import Leadership, shorten

if TYPE_CHECKING:
    from redis import Redis

    from bridge.link.server_clock import ServerClock


class Leases:
    """What one leader knows of the leases of its lane. Times in seconds, by the clock's own `now`."""

    def __init__(self, clock: ServerClock, lease_s: float) -> None:
        self._clock = clock
        self._lease_ms = int(lease_s * 1000)
        #: Incarnation -> how long its lease is, in ms, as its worker says.
        self._length: dict[str, int] = {}
        # Over the terms of this master: a step that is undone before the next look is not seen, but it ends the lead
        # with the leases, and the same master would know nothing of them in its next term.
        self._ends = clock.ends
        #: Incarnation -> since when its lease is missed.
        self._missed: dict[str, float] = {}

    def know(self, incarnation: str, length_ms: int | None) -> None:
        """How long its lease is; None: it did not say."""
        if length_ms is not None:
            self._length[incarnation] = length_ms

    def ask(self, redis: Redis, lead: Leadership, incarnations: Iterable[str]) -> dict[str, int]:
        """The ms that each lease has left (negative: it is gone). Learns how the clocks stand after that.

        Raises `NotLeading`, redis errors.
        """
        asked = list(incarnations)
        sent = self._clock.now()
        with redis.pipeline(transaction=False) as pipe:
            for incarnation in asked:
                pipe.pttl(lead.keys.lease(incarnation))
            left: dict[str, int] = dict(zip(asked, pipe.execute(), strict=True))
        received = self._clock.now()
        # After the leases: a step that ended one of them shows now.
        self._clock.compare(redis)
        for incarnation, ms in left.items():
            length_ms = self._length.get(incarnation)
            if length_ms is not None and ms > length_ms:
                # The server's clock was set back: its worker trusts in no more than that.
                shorten(redis, lead, incarnation, length_ms)
            if ms > 0:
                self._ends[incarnation] = sent + min(ms, length_ms or ms) / 1000
        self._missed = {i: self._missed.get(i, received) for i, ms in left.items() if ms <= 0}
        for incarnation in [i for i, end in self._ends.items() if i not in left and end <= received]:
            del self._ends[incarnation]
        self._length = {i: length_ms for i, length_ms in self._length.items() if i in left}
        return left

    def over(self, left: Mapping[str, int]) -> set[str]:
        """The incarnations whose lease is over for certain."""
        return {incarnation for incarnation, ms in left.items() if ms <= 0 and self._is_over(incarnation)}

    def was_ended(self, incarnation: str) -> bool:
        """Whether the lease of ``incarnation`` seems to have been ended by somebody's hand, on the server's clock or on
        the key itself, rather than by the end of its worker.
        """
        missed = self._missed.get(incarnation)
        if missed is None:
            return False
        early = self._ends.get(incarnation, 0.0) > missed + self._clock.tolerance_s
        return early or self._clock.stepped_at >= missed - self._lease_ms / 1000

    def _is_over(self, incarnation: str) -> bool:
        now = self._clock.now()
        missed = self._missed.get(incarnation, now)
        # Of one that was missed too early nobody knows whether it had been renewed since it was last seen.
        if self._clock.steady and self._ends.get(incarnation, 0.0) <= missed + self._clock.tolerance_s:
            return True
        wait_ms = max(self._lease_ms, self._length.get(incarnation, 0))
        return now - missed >= wait_ms / 1000
