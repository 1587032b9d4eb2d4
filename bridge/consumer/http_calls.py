"""Calls of the masters' HTTP port. Standard library only."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

#: Longest time in seconds for an answer, beyond the wait of a long poll.
ANSWER_S = 10.0
#: Seconds before the next try, while no master answers.
RETRY_S = 0.2


class HttpProblem(Exception):
    """A master refused a call. ``status``: of the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Calls:
    """Calls of one of several masters, which all answer alike. Each thread has a connection of its own.

    A call is repeated until a master answers: each of the calls may be.
    """

    def __init__(self, urls: Sequence[str], token: str | None, context: ssl.SSLContext | None = None) -> None:
        self._addresses = [urlsplit(url) for url in urls]
        for address in self._addresses:
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError(f"the URL of a master is http://HOST:PORT, not {address.geturl()!r}")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._context = context
        self._of_thread = threading.local()
        self._at = 0
        #: How often all threads were moved to one master.
        self._moves = 0

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        goes_on: Callable[[], bool],
        wait_s: float = 0.0,
        answer_s: float = ANSWER_S,
    ) -> Any:
        """The answer (JSON). Tries again while no master answers, as long as ``goes_on()``.

        Raises `HttpProblem`, and OSError or HTTPException when it gave up.
        """
        text = None if body is None else json.dumps(body).encode()
        while True:
            try:
                status, answer = self._once(method, path, text, wait_s + answer_s)
            except (OSError, HTTPException):
                self._at += 1
                if not goes_on():
                    raise
                time.sleep(RETRY_S)
                continue
            if status < 400:
                return answer
            detail = str(answer.get("detail", "")) if isinstance(answer, dict) else ""
            if status != 503:
                raise HttpProblem(status, detail)
            self._at += 1
            self.close()
            if not goes_on():
                raise HttpProblem(status, detail)
            time.sleep(RETRY_S)

    def _once(self, method: str, path: str, text: bytes | None, timeout_s: float) -> tuple[int, Any]:
        connection = self._connection()
        try:
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, path, text, self._headers)
            response = connection.getresponse()
            read = response.read()
            return response.status, json.loads(read)
        except ValueError as exc:
            self.close()
            raise HTTPException(f"an answer that is no JSON: {exc}") from None
        except BaseException:
            self.close()
            raise

    def stay(self) -> None:
        """Makes the next call of each thread go to the master that answered this thread's last one."""
        self._at = self._of_thread.at
        self._moves += 1
        self._of_thread.moves = self._moves

    def _connection(self) -> HTTPConnection:
        if getattr(self._of_thread, "moves", self._moves) != self._moves:
            self.close()
        found: HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            self._of_thread.at, self._of_thread.moves = self._at, self._moves
            address = self._addresses[self._at % len(self._addresses)]
            host = str(address.hostname)
            if address.scheme == "https":
                found = HTTPSConnection(host, address.port, context=self._context)
            else:
                found = HTTPConnection(host, address.port)
            self._of_thread.connection = found
        return found

    def close(self) -> None:
        """Closes the connection of this thread."""
        found: HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if found is not None:
            found.close()
            self._of_thread.connection = None

    def canceller(self) -> Callable[[], None]:
        """A function for other threads that ends the call that this thread waits for, now or later."""
        self._connection()
        # The values of this thread. The connection may be another one when the function is called.
        mine = self._of_thread.__dict__

        def cancel() -> None:
            connection: HTTPConnection | None = mine.get("connection")
            sock = connection.sock if connection is not None else None
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

        return cancel
