"""The clock of a lane whose leader has no server: a test sets it."""

from __future__ import annotations

from collections.abc import Callable


class LaneTimes:
    """What `bridge.link.server_clock.ServerClock` says, by a clock ``now_ms`` that has no steps."""

    tolerance_s = 0.0
    stepped_at = float("-inf")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.lane_ms = now_ms
        #: The steps of the server's clock, in ms: all, and those that are older than a lease.
        self.steps_ms = self.settled_steps = 0
        self.ends: dict[str, float] = {}

    def now(self) -> float:
        return self.lane_ms() / 1000

    def steady_for(self, _seconds: float) -> bool:
        return True

    def server_ms(self) -> int:
        return self.lane_ms() + self.steps_ms

    def settled_ms(self) -> int:
        return self.lane_ms() + self.settled_steps

    def due_ms(self) -> int:
        return min(self.server_ms(), self.settled_ms())

    def settled_steps_ms(self) -> int:
        return self.settled_steps

    def is_settled(self) -> bool:
        return self.steps_ms == self.settled_steps
