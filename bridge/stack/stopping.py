"""Ctrl-C and SIGTERM for commands that have children: a request that every wait notices."""

from __future__ import annotations

import time
from collections.abc import Callable

from bridge.routing.stop_signal import StopSignal

#: Seconds between two looks.
POLL_S = 0.02


class Stopped(Exception):
    """The user, or a supervisor, asked for the end."""


class StopRequest(StopSignal):
    """Listens while its ``with`` block runs, and ends waits."""

    @property
    def requested(self) -> bool:
        """Somebody asked to stop."""
        return self.count > 0

    @property
    def hurry(self) -> bool:
        """Somebody asked again: do not wait for anything."""
        return self.count > 1

    def wait(self, predicate: Callable[[], bool], timeout_s: float | None = None, poll_s: float = POLL_S) -> bool:
        """Whether ``predicate`` came to hold within the time. Raises `Stopped` as soon as somebody asks to stop."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.requested:
                raise Stopped
            if predicate():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(poll_s)
