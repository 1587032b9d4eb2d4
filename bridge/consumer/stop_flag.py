"""A request to stop that a signal handler may set."""

from __future__ import annotations

import queue
from contextlib import suppress


class StopFlag:
    """Whether to stop. `threading.Event` has a lock: a signal handler that sets one would wait for ever when the signal
    came while its thread was within the wait for the event, or set it already. The queue's `put` may be called there.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._is_set = True
        self._wakes.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> None:
        """Returns when it is set, or after ``timeout_s``. For one thread."""
        if not self._is_set:
            with suppress(queue.Empty):
                self._wakes.get(timeout=timeout_s)
