"""The two blocking reads in which the leader's loop waits, and the socket by which other threads wake it.

One read is of the stream, the other of the outcome stream. They use two connections, and one selector polls both.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bridge.leader.step.term import ANSWER_S
from bridge.link.connections import Wire

#: Longest blocking read, and longest sleep of the loop, in seconds. A timer may be late by this much when nothing else
#: happens.
BLOCK_S = 5.0


class BlockingReads:
    """For the loop's thread, except `wake`. ``url``: of the lane's server."""

    def __init__(self, url: str) -> None:
        # A read that blocks is waited for with the selector. The timeout is for all else: to connect, and the rest of a
        # reply that has begun.
        self.entries = Wire(url, timeout_s=ANSWER_S)
        self.outcomes = Wire(url, timeout_s=ANSWER_S)
        self._selector: selectors.BaseSelector
        #: Connection -> its socket that the selector polls. A new connection has a new socket.
        self._registered: dict[Wire, Any] = {}
        # The pair is there only while the loop runs: a process may lead many lanes that sleep.
        self._wake_here: socket.socket
        self._wake_there: socket.socket | None = None
        # Without it, `wake` could send to a file that was closed, and by then is another one. A signal handler may
        # interrupt the thread that has it.
        self._wake_lock = threading.RLock()

    @contextmanager
    def selected(self) -> Iterator[None]:
        """`wait` may be called within the block. The first one returns at once: `wake` may have been called before."""
        self._registered.clear()
        here, there = socket.socketpair()
        with here, there, selectors.DefaultSelector() as self._selector:
            here.setblocking(False)
            # While it is full, nothing need be added.
            there.setblocking(False)
            self._selector.register(here, selectors.EVENT_READ)
            self._wake_here, self._wake_there = here, there
            self.wake()
            try:
                yield
            finally:
                with self._wake_lock:
                    self._wake_there = None

    def wait(self, timeout_s: float) -> Collection[Any]:
        """Waits until a read has an answer, or `wake` was called. Returns the sockets that have something to read.

        Raises redis' `TimeoutError` when a read has no answer `ANSWER_S` after the server should have ended it.
        """
        for wire in (self.entries, self.outcomes):
            if wire.asked and self._registered.get(wire) is not wire.file:
                self._selector.register(wire.file, selectors.EVENT_READ)
                self._registered[wire] = wire.file
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        if self._wake_here in ready:
            self._wake_here.recv(4096)
        for wire in (self.entries, self.outcomes):
            if wire.file not in ready:
                wire.expect(BLOCK_S + ANSWER_S)
        return ready

    def wake(self) -> None:
        """Ends the wait now, or the next one. Safe in signal handlers and other threads."""
        with self._wake_lock, suppress(OSError):
            if self._wake_there is not None:
                self._wake_there.send(b"!")

    def close(self) -> None:
        """Closes the connections. A blocking read of them may be under way."""
        self.entries.close()
        self.outcomes.close()
