"""Ctrl-C and SIGTERM as a wish that is noted, never an exception: whoever waits looks at it when it is ready to.

An exception out of a signal handler could strike anywhere: between the start of a child, or of a query, and the line
that notes it.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """Listens for SIGINT and SIGTERM while its ``with`` block runs. Of the main thread.

    ``once``: only the first one is noted; the same signal again does what it did before, as a rule end the process.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        #: The first signal that came; None: none has.
        self.number: int | None = None
        #: How many came. More than one: do not wait for anything.
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1
        if self._once:
            signal.signal(number, self._before[signal.Signals(number)])
