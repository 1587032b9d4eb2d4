"""Notes Ctrl-C and SIGTERM as a request to stop. The main code checks the note when it can stop.

An exception from a signal handler could interrupt any line, for example between the start of a child process and the
line that records it.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """Notes SIGINT and SIGTERM while its ``with`` block runs. Only for the main thread.

    ``once``: only the first signal is noted. The next one has its usual effect, which normally ends the process.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        #: The first signal that came; None: none has.
        self.number: int | None = None
        #: Number of signals that came. More than one means: do not wait any longer.
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
