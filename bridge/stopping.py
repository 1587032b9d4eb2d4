"""Ctrl-C and SIGTERM for commands that have children: a request that every wait notices, never an exception anywhere.

An exception out of a signal handler could strike between the start of a child and the line that notes it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

#: Seconds between two looks.
POLL_S = 0.02


class Stopped(Exception):
    """The user, or a supervisor, asked for the end."""


class StopRequest:
    """Listens for SIGINT and SIGTERM while its ``with`` block runs. Of the main thread."""

    def __init__(self) -> None:
        #: Somebody asked to stop.
        self.requested = False
        #: Somebody asked again: do not wait for anything.
        self.hurry = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.hurry = self.requested
        self.requested = True

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
