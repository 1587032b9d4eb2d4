"""How a writer waits: exponential backoff with jitter, up to a limit, and a note of what it waits for."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from bridge.routing.errors import TicketBridgeError
from bridge.routing.numbers import duration

#: The first step and the longest one, in seconds.
FIRST_STEP_S = 0.01
LONGEST_STEP_S = 0.5
#: Shorter waits, in seconds, are ordinary and not noted.
NOTED_FROM_S = 0.5
#: Seconds between two notes of one wait.
NOTE_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class Patience:
    """Waits for one thing at a time, until ``progress`` is called.

    The jitter keeps several writers from trying at the same moment.
    """

    def __init__(
        self,
        longest_s: float,
        note: Callable[[str, float], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``longest_s``: without progress. ``note`` gets the reason and the seconds so far; at the end ``""``.

        ``jitter`` makes numbers in [0, 1).
        """
        self._longest_s = longest_s
        self._note = note
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._since: float | None = None
        self._step_s = FIRST_STEP_S
        self._noted: float | None = None
        #: Seconds waited in all, and the last reason that was noted.
        self.waited_s = 0.0
        self.why = ""

    def wait(self, why: str, give_up: Callable[[str], TicketBridgeError]) -> None:
        """Waits one step. When there was no progress for too long, raises the error that ``give_up`` makes."""
        now = self._clock()
        if self._since is None:
            self._since = now
        so_far = now - self._since
        if so_far >= self._longest_s:
            raise give_up(f"{why}; waited {duration(so_far * 1000)} without success (maxWait)")
        if so_far >= NOTED_FROM_S and (self._noted is None or now - self._noted >= NOTE_EVERY_S):
            if self._noted is None:
                _log.warning("waiting: %s", why)
            self.why = why
            self._noted = now
            self._note(why, so_far)
        step = min(self._step_s * (0.5 + self._jitter() / 2), self._longest_s - so_far)
        self._sleep(step)
        self.waited_s += step
        self._step_s = min(2 * self._step_s, LONGEST_STEP_S)

    def progress(self) -> None:
        """The wait is over."""
        if self._since is None:
            return
        if self._noted is not None:
            _log.warning("going on after %s", duration((self._clock() - self._since) * 1000))
            self._note("", 0.0)
        self._since = self._noted = None
        self._step_s = FIRST_STEP_S
