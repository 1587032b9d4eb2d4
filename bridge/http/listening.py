"""A listening socket that bounds the number of accepted ones, so that the process never runs out of files.

A connection is counted from its acceptance on. uvicorn counts it when its TLS handshake has ended.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

#: Sockets that are accepted beyond the limit of connections. They get an answer that says so.
REFUSED = 128


class Listening(socket.socket):
    """Listens as ``other`` does. Accepts at most ``most`` connections at once, and closes others without an answer."""

    def __init__(self, other: socket.socket, most: int) -> None:
        super().__init__(fileno=socket.dup(other.fileno()))
        self._most = most
        self._open = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket's. Raises `BlockingIOError` after one that is too many: the event loop then comes again."""
        found, address = self._accept()  # type: ignore[attr-defined]
        self._open += 1
        accepted = _Accepted(self._closed_one, fileno=found)
        if self._open > self._most:
            accepted.close()
            raise BlockingIOError
        return accepted, address

    def _closed_one(self) -> None:
        self._open -= 1


class _Accepted(socket.socket):
    def __init__(self, on_close: Callable[[], None], *, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
