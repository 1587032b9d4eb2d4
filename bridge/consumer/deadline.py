"""The deadline: until when a consumer may run messages. No I/O.

A consumer's lease sets the deadline. The code that runs messages, and the writer of outcomes, read it. A Celery worker
keeps it in memory that its processes share (`bridge.worker.guard.shared_page`).
"""

from __future__ import annotations

import time
from typing import Protocol

#: The consumer's deadline comes this share of the lease before the key expires. The margin covers clocks that run at
#: different rates, and the time to kill running tasks.
MARGIN = 0.05
#: Renewals in one lease: two may be lost.
RENEWALS = 3

#: This clock goes on while the machine is suspended, as the server's clock does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """The time of the deadline's clock, in ns. All processes of one machine share this clock."""
    return time.clock_gettime_ns(_CLOCK)


def deadline_after(sent: int, lease_s: float) -> int:
    """The deadline of a lease that was asked for, or renewed, by a call that began at ``sent`` (`now_ns`)."""
    return sent + int(lease_s * (1 - MARGIN) * 1e9)


class Deadline(Protocol):
    """The deadline of a consumer's lease."""

    def begin(self, incarnation: str, deadline_ns: int) -> None:
        """A new incarnation holds the lease until ``deadline_ns``."""

    def extend(self, deadline_ns: int) -> None:
        """The lease was renewed."""

    def end(self) -> None:
        """The lease is over, or given up: nothing may start."""

    def learn_server_time(self, server_ms: float) -> None:
        """The server just said that its time is ``server_ms`` (Unix ms)."""

    def holds(self, incarnation: str) -> bool:
        """Whether ``incarnation`` holds the lease right now, as far as this machine may trust it."""

    @property
    def incarnation(self) -> str:
        """The newest incarnation; '' before the first."""

    @property
    def deadline_ns(self) -> int:
        """The deadline, by the clock of `now_ns`; 0 when the lease is over."""

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""

    @property
    def in_main(self) -> bool:
        """Whether this process is the consumer's main process. Any other process can be replaced."""
