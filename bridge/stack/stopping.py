"""Ctrl-C and SIGTERM for commands with child processes: every wait ends at a request to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from bridge.routing.stop_signal import StopSignal

#: Seconds between two checks of a wait.
POLL_S = 0.02


class Stopped(Exception):
    """The user or a supervisor asked to stop."""


class StopRequest(StopSignal):
    """Handles the signals while its ``with`` block runs."""

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.count > 0

    @property
    def hurry(self) -> bool:
        """Whether a stop was requested twice: do not wait for anything."""
        return self.count > 1

    def wait(self, predicate: Callable[[], bool], timeout_s: float | None = None, poll_s: float = POLL_S) -> bool:
        """Whether ``predicate`` became true in time. Raises `Stopped` at a request to stop."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.requested:
                raise Stopped
            if predicate():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(poll_s)
