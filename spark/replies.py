r"""Replies to pipelined XADDs, counted without making an object of each.

A reply to XADD is an id, ``$15\r\n1700000000000-0\r\n``: two line ends. A refusal is one line that begins with
``-``, which no id and no length does. So counting line ends counts replies, and a ``-`` after a line end is an error.
This needs a connection on which nothing but such replies arrives (RESP 2, no subscriptions), as ``spark.address``
makes it.
"""

from __future__ import annotations

from collections import deque

import redis

from routing.errors import ServerUnavailable, TicketBridgeError
from spark.address import RedisConnection, unavailable, without_secrets

_RECEIVE_BYTES = 256 * 1024
_LINE_ENDS_PER_REPLY = 2


class RefusedByServer(TicketBridgeError):
    """The server answered an XADD with an error; rows before it were written, and some after it may have been."""


class ReplyCounter:
    """Counts the replies in what arrives, however it is cut, and finds the first refusal."""

    def __init__(self) -> None:
        self._line_ends = 0
        # As if a line had just ended, so that a refusal in the very first reply is seen too.
        self._tail = b"\r\n"

    @property
    def complete(self) -> int:
        """How many whole replies have been fed since the start."""
        return self._line_ends // _LINE_ENDS_PER_REPLY

    def feed(self, data: bytes) -> bytes | None:
        """Count what is in ``data``. Returns what there is of the first refusal, from its ``-`` on, else None."""
        seen = self._tail + data
        self._line_ends += seen.count(b"\r\n") - self._tail.count(b"\r\n")
        self._tail = seen[-2:]
        at = seen.find(b"\r\n-")
        return None if at < 0 else seen[at + 2 :]


class Pipeline:
    """Sends chunks of commands over one connection, with a bounded number of chunks unanswered.

    The bound keeps the server's reply buffer small and makes the server's pace the writer's pace.
    """

    def __init__(self, connection: RedisConnection, url: str, window: int) -> None:
        """``window`` is in chunks. The URL is for errors only, without its secrets."""
        self._connection = connection
        self._url = url
        self._window = window
        self._counter = ReplyCounter()
        self._sent = 0
        #: Total of replies at which each unanswered chunk is answered, oldest first.
        self._unanswered: deque[int] = deque()
        if connection._sock is None:
            raise ServerUnavailable(f"the connection to {without_secrets(url)} is not open")
        self._socket = connection._sock

    @property
    def answered(self) -> int:
        """How many commands the server has accepted so far."""
        return self._counter.complete

    def send(self, wire: memoryview, commands: int) -> None:
        """Send one chunk; waits first until fewer than ``window`` are unanswered.

        Raises ``RefusedByServer`` for an error among the replies read, ``ServerUnavailable`` when the connection
        breaks.
        """
        while len(self._unanswered) >= self._window:
            self._receive()
        try:
            # No health check: its PING would read replies that are counted here.
            self._connection.send_packed_command([wire], check_health=False)
        except (redis.RedisError, OSError) as error:
            raise unavailable(self._url, error) from None
        self._sent += commands
        self._unanswered.append(self._sent)

    def drain(self) -> int:
        """Wait for all replies; returns how many commands the server accepted. Raises as ``send`` does."""
        while self._unanswered:
            self._receive()
        return self._counter.complete

    def _receive(self) -> None:
        data = self._read()
        refusal = self._counter.feed(data)
        while refusal is not None and b"\r\n" not in refusal:
            refusal += self._read()
        if refusal is not None:
            self._connection.disconnect()
            reason = refusal.partition(b"\r\n")[0][1:].decode(errors="replace")[:300]
            raise RefusedByServer(f"the server at {without_secrets(self._url)} refused an entry: {reason}")
        while self._unanswered and self._unanswered[0] <= self._counter.complete:
            self._unanswered.popleft()

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            self._connection.disconnect()
            raise unavailable(self._url, error) from None
        if not data:
            self._connection.disconnect()
            raise ServerUnavailable(f"the server at {without_secrets(self._url)} closed the connection")
        return data
