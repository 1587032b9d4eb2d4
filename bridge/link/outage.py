"""Logs an outage of Redis with two lines: one when it begins, one when it ends."""

from __future__ import annotations

import logging
import threading
import time

from bridge.routing.numbers import duration

#: An outage that begins within this time after the last one is logged only when it lasts as long, in seconds. So a
#: server that comes and goes does not fill the log.
CALM_S = 5.0


class Outage:
    """One party's view of the server. ``doing``: what it does meanwhile, as it completes "Redis is away, …"."""

    def __init__(self, logger: logging.Logger, doing: str) -> None:
        self._logger = logger
        self._doing = doing
        self._lock = threading.Lock()
        self._since = 0.0
        self._ended = -CALM_S
        self._logged = False
        self._count = 0

    @property
    def count(self) -> int:
        """Grows with each outage, the present one included."""
        return self._count

    def noted(self) -> None:
        """Counts an outage that is not logged."""
        with self._lock:
            self._count += 1

    def met(self, exc: BaseException) -> None:
        """A try to reach the server failed with ``exc``. Called for each failed try."""
        with self._lock:
            now = time.monotonic()
            if not self._since:
                self._since = now
                self._count += 1
            if self._logged or now - max(self._ended, self._since - CALM_S) < CALM_S:
                return
            self._logged = True
        reason = " ".join(str(exc).split()) or type(exc).__name__
        self._logger.warning("Redis is away, %s: %s", self._doing, reason)

    def over(self) -> bool:
        """The server answered. Returns whether that ends an outage."""
        with self._lock:
            since, logged = self._since, self._logged
            self._since, self._logged = 0.0, False
            if not since:
                return False
            self._ended = time.monotonic()
        if logged:
            self._logger.warning("Redis is back after %s", duration((time.monotonic() - since) * 1000))
        return True
