"""The two blocking reads in which the leader's loop waits, and the socket by which other threads wake it.

One read is of the stream, the other of the outcome stream. They use two connections, and one selector polls both.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bridge.link.connections import Wire


class BlockingReads:
    """For the loop's thread, except `wake`. ``url``: of the lane's server."""

    def __init__(self, url: str) -> None:
        self.entries = Wire(url)
        self.outcomes = Wire(url)
        self._selector: selectors.BaseSelector
        #: Connection -> its socket that the selector polls. A new connection has a new socket.
        self._registered: dict[Wire, Any] = {}
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.setblocking(False)

    @contextmanager
    def selected(self) -> Iterator[None]:
        """`wait` may be called within the block."""
        self._registered.clear()
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._wake_here, selectors.EVENT_READ)
            yield

    def wait(self, timeout_s: float) -> Collection[Any]:
        """Waits until a read has an answer, or `wake` was called. Returns the sockets that have something to read."""
        for wire in (self.entries, self.outcomes):
            if wire.asked and self._registered.get(wire) is not wire.file:
                self._selector.register(wire.file, selectors.EVENT_READ)
                self._registered[wire] = wire.file
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        if self._wake_here in ready:
            self._wake_here.recv(4096)
        return ready

    def wake(self) -> None:
        """Ends the wait now, or the next one. Safe in signal handlers and other threads."""
        with suppress(OSError):
            self._wake_there.send(b"!")

    def rest(self) -> None:
        """Closes the connections. A blocking read of them may be under way."""
        self.entries.close()
        self.outcomes.close()

    def close(self) -> None:
        """Closes the connections, and the socket of `wake`."""
        self.rest()
        self._wake_here.close()
        self._wake_there.close()
