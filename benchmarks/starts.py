"""What the task of the failover figures and its reader agree on."""

from __future__ import annotations

from typing import NamedTuple, Self

#: Environment variable with the leases of workers and leader, in seconds.
LEASE = "BENCHMARK_LEASE"
#: Hash ticket -> `Start` of its last execution.
STARTS = "starts"
#: Seconds that a message takes.
WORK_S = 0.04


class Start(NamedTuple):
    """When an execution began (seconds, the machine's monotonic clock, which all processes share), and its fence."""

    at: float
    fence: int

    def encode(self) -> str:
        """As the hash holds it."""
        return f"{self.at!r} {self.fence}"

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """What `encode` made."""
        at, fence = text.split()
        return cls(float(at), int(fence))
