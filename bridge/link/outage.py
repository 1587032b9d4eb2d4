"""Logs an outage, of Redis or another server, with two lines: one when it begins, one when it ends."""

from __future__ import annotations

import errno
import logging
import threading
import time

from bridge.routing.numbers import duration

#: An outage that begins within this time after the last one is logged only when it lasts as long, in seconds. So a
#: server that comes and goes does not fill the log, and a party that meets an outage when it is over for others does
#: not log it again.
CALM_S = 5.0


def has_no_file_descriptor(exc: BaseException | None) -> bool:
    """Whether ``exc`` was raised since no file descriptor was left: the fault is this process's, not the server's."""
    # An app makes the chain, which may be a circle. Their classes may define what is equal, so it goes by identity.
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
            return True
        seen.add(id(exc))
        exc = exc.__cause__ if exc.__cause__ is not None else exc.__context__
    return False


class OutageLog:
    """The two lines, for all parties of a process together: the first one that misses the server logs the beginning,
    and the last one that has it back logs the end.

    ``doing``: what they do meanwhile, as it completes "Redis is away, …". ``server``: its name in the lines.
    """

    def __init__(self, logger: logging.Logger, doing: str, server: str = "Redis") -> None:
        self._logger = logger
        self._doing = doing
        self._server = server
        self._lock = threading.Lock()
        self._away: set[Outage] = set()
        self._since = 0.0
        self._ended = -CALM_S
        #: How the line begins that says that the outage is over.
        self._over = ""

    @property
    def ended(self) -> float:
        """When a party had the server back the last time (monotonic seconds)."""
        return self._ended

    def party(self) -> Outage:
        """One more party, which has the server."""
        return Outage(self._logger, self._doing, self)

    def begins(self, party: Outage, since: float, exc: BaseException) -> None:
        """``party`` misses the server since ``since`` (monotonic seconds)."""
        what, over = f"{self._server} is away", f"{self._server} is back"
        if has_no_file_descriptor(exc):
            what, over = "this process may open no more files (ulimit -n)", "this process may open files again"
        reason = " ".join(str(exc).split()) or type(exc).__name__
        with self._lock:
            first = not self._away
            self._away.add(party)
            if first:
                self._since, self._over = since, over
                # Under the lock, as the other line: they are in the log in their order.
                self._logger.warning("%s, %s: %s", what, self._doing, reason)

    def ends(self, party: Outage) -> None:
        """``party``, which may have logged nothing, has the server back, or does not need it any more."""
        with self._lock:
            self._ended = time.monotonic()
            if party not in self._away:
                return
            self._away.discard(party)
            if self._away:
                return
            took_s = self._ended - self._since
            self._logger.warning("%s after %s", self._over, duration(took_s * 1000))


class Outage:
    """One party's view of the server. ``doing``: what it does meanwhile, as it completes "Redis is away, …"."""

    def __init__(self, logger: logging.Logger, doing: str, log: OutageLog | None = None) -> None:
        self._log = log or OutageLog(logger, doing)
        self._lock = threading.Lock()
        self._since = 0.0
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
            if self._logged or now - max(self._log.ended, self._since - CALM_S) < CALM_S:
                return
            self._logged = True
            since = self._since
        self._log.begins(self, since, exc)

    def over(self) -> bool:
        """The server answered. Returns whether that ends an outage."""
        with self._lock:
            since = self._since
            self._since, self._logged = 0.0, False
        if not since:
            return False
        self._log.ends(self)
        return True
