"""Until when a consumer may run messages, as a lease and a writer of outcomes need to know it. No I/O.

A consumer's lease sets the deadline; whatever runs its messages looks at it. Where several processes must see it, it is
in memory that they share (`bridge.worker.guard.shared_page`).
"""

from __future__ import annotations

import time
from typing import Protocol

#: Share of the lease by which the consumer's deadline comes before the key's end: for clocks that run apart, and for
#: the time that it takes to kill what runs.
MARGIN = 0.05

#: This clock goes on while the machine is suspended, as the server's clock does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """The clock of the deadline, in ns. All processes of one machine share it."""
    return time.clock_gettime_ns(_CLOCK)


class Deadline(Protocol):
    """The deadline of the lease that a consumer has."""

    def begin(self, incarnation: str, deadline_ns: int) -> None:
        """A new incarnation holds the lease until ``deadline_ns``."""

    def extend(self, deadline_ns: int) -> None:
        """The lease was renewed."""

    def end(self) -> None:
        """The lease is over, or given up: nothing may start."""

    def holds(self, incarnation: str) -> bool:
        """Whether ``incarnation`` holds the lease right now, as far as this machine may trust it."""

    @property
    def incarnation(self) -> str:
        """The newest incarnation; '' before the first."""

    @property
    def deadline_ns(self) -> int:
        """By the clock of `now_ns`; 0 when the lease is over."""

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""

    @property
    def in_main(self) -> bool:
        """Whether this process is the consumer's main process; any other one can be replaced."""
