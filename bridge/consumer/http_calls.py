"""Calls of the masters' HTTP port. Standard library only."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from weakref import WeakSet

from bridge.consumer.http_masters import authorization_of, masters_of
from bridge.link.outage import Outage, OutageLog

logger = logging.getLogger(__name__)

#: Longest time in seconds for an answer, beyond the wait of a long poll.
ANSWER_S = 10.0
#: Longest time in seconds for a connection. A host that is lost answers nothing.
CONNECT_S = 5.0
#: Longest time in seconds for a master to say that it lives, where there are several.
ALIVE_S = 3.0
#: Seconds before the next try, while no master answers.
RETRY_S = 0.2
#: Answers 500 in a row after which a call is given up: some ten seconds. A gateway may answer so for a moment; a master
#: that has a bug does so for ever.
MOST_BUGS = 50


class HttpProblem(Exception):
    """A master refused a call. ``status``: of the answer. ``passes``: a later call may be taken."""

    def __init__(self, status: int, detail: str, *, passes: bool = False) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.passes = passes


class _Caller:
    """What one thread has: its connection, and the outage that it meets."""

    def __init__(self, outage: Outage) -> None:
        self.outage = outage
        self.connection: HTTPConnection | None = None
        #: The master of the connection, and how many moves there were when it was chosen.
        self.at = 0
        self.moves = 0
        #: Whether it waits for the answer of a long poll.
        self.polls = False
        #: Whether another thread, or a signal handler, ended its long poll.
        self.cancelled = False
        #: Calls in a row that failed.
        self.failures = 0
        #: Answers 500 in a row.
        self.bugs = 0

    def cut(self) -> None:
        """Ends its long poll, if it waits for one. For other threads and signal handlers: takes no lock."""
        # First the socket: when the long poll is over meanwhile, the next call must not be cut in its place.
        connection = self.connection
        sock = connection.sock if connection is not None else None
        if self.polls and sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _json_of(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise HTTPException(f"an answer that is no JSON: {exc}") from None


class Calls:
    """Calls of one of several masters, which all answer alike. Each thread has a connection of its own.

    A call is repeated until a master answers: each of the calls may be. All threads call one master. When it does not
    answer one of them, all go on to the next one, and their long polls, which would wait out their time there, end.
    """

    def __init__(self, urls: Sequence[str], token: str | None, context: ssl.SSLContext | None = None) -> None:
        """Raises ValueError and TypeError for a URL or a token that cannot be."""
        self._masters = masters_of(urls)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = authorization_of(token)
        self._context = context
        self._outages = OutageLog(logger, "calls are repeated", "the HTTP port of the masters")
        self._of_thread = threading.local()
        #: Of what follows.
        self._lock = threading.Lock()
        self._callers: WeakSet[_Caller] = WeakSet()
        #: The master of all threads, and how often it changed.
        self._at = 0
        self._moves = 0

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        goes_on: Callable[[], bool],
        wait_s: float | None = None,
        answer_s: float = ANSWER_S,
    ) -> Any:
        """The answer (JSON). Tries again while no master answers, as long as ``goes_on()``. ``body``: bytes are JSON.
        ``wait_s``: of a long poll.

        Raises `HttpProblem`, and OSError or HTTPException when it gave up.
        """
        text = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        mine = self._mine()
        while True:
            try:
                status, answer = self._once(mine, method, path, text, wait_s, answer_s)
            except (OSError, HTTPException) as exc:
                if wait_s is not None and mine.cancelled:
                    # It says nothing of the master.
                    raise
                self._failed(mine, exc)
                if not goes_on():
                    raise
                time.sleep(RETRY_S)
                continue
            if status < 400:
                self._answered(mine)
                return answer
            detail = str(answer.get("detail", "")) if isinstance(answer, dict) else ""
            mine.bugs += status == 500
            # A gateway before the masters answers with any of these when it cannot reach them, or has too much to do.
            passes = status == 429 or (status >= 500 and mine.bugs < MOST_BUGS)
            problem = HttpProblem(status, detail, passes=passes)
            if not passes:
                self._answered(mine)
                raise problem
            self._failed(mine, problem)
            self.close()
            if not goes_on():
                raise problem
            time.sleep(RETRY_S)

    def call_each(self, method: str, path: str, body: Any, *, within_s: float) -> Any:
        """As `call`, of each master once, until one answers. Gives up after ``within_s`` seconds, about."""
        # A connection that was kept may be one that was cut.
        self.close()
        others = iter(self._masters[1:])
        share_s = within_s / len(self._masters)
        return self.call(method, path, body, goes_on=lambda: next(others, None) is not None, answer_s=share_s)

    def find(self, goes_on: Callable[[], bool]) -> None:
        """Goes on to a master that lives, where there are several: before a call that may wait for long.

        Raises OSError or HTTPException when it gave up.
        """
        if len(self._masters) > 1:
            # A refusal is an answer, too.
            with suppress(HttpProblem):
                self.call("GET", "/api/health", goes_on=goes_on, answer_s=ALIVE_S)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _once(
        self, mine: _Caller, method: str, path: str, text: bytes | None, wait_s: float | None, answer_s: float
    ) -> tuple[int, Any]:
        connection = self._connection(mine)
        kept = connection.sock is not None
        try:
            return self._exchange(mine, connection, method, path, text, wait_s, answer_s)
        except ConnectionError:
            # A master closes a connection that was idle for long. That is no reason to leave the master.
            if not kept or mine.cancelled or mine.moves != self._moves:
                raise
        return self._exchange(mine, self._connection(mine), method, path, text, wait_s, answer_s)

    def _exchange(
        self,
        mine: _Caller,
        connection: HTTPConnection,
        method: str,
        path: str,
        text: bytes | None,
        wait_s: float | None,
        answer_s: float,
    ) -> tuple[int, Any]:
        try:
            if connection.sock is None:
                connection.timeout = min(CONNECT_S, answer_s)
                connection.connect()
            connection.sock.settimeout((wait_s or 0.0) + answer_s)
            if wait_s is not None:
                self._begin_poll(mine)
            connection.request(method, self._masters[mine.at].path + path, text, self._headers)
            response = connection.getresponse()
            return response.status, _json_of(response.read())
        except BaseException:
            self.close()
            raise
        finally:
            mine.polls = False

    def _begin_poll(self, mine: _Caller) -> None:
        """From here on `_Caller.cut` ends the call: its socket is there. What came before is noticed here."""
        with self._lock:
            mine.polls = True
            if mine.cancelled or mine.moves != self._moves:
                raise ConnectionAbortedError("the call is not wanted any more")

    # -- which master --------------------------------------------------------------------------------------------------

    def _failed(self, mine: _Caller, exc: Exception) -> None:
        """A call got no answer: all threads go on to the next master, unless they did since the call was sent. Else a
        call that took longer to fail would lead them back to the master that failed first.
        """
        with self._lock:
            if mine.moves != self._moves:
                return
            if len(self._masters) > 1:
                self._move((mine.at + 1) % len(self._masters))
        mine.failures += 1
        if mine.failures >= len(self._masters):
            mine.outage.met(exc)

    def _answered(self, mine: _Caller) -> None:
        mine.failures = mine.bugs = 0
        mine.outage.over()

    def stay(self) -> None:
        """Makes the next call of each thread go to the master that answered this thread's last one."""
        mine = self._mine()
        with self._lock:
            self._move(mine.at)
            mine.moves = self._moves

    def _move(self, at: int) -> None:
        """Moves all threads to a master. Under the lock."""
        self._at = at
        self._moves += 1
        for caller in self._callers:
            caller.cut()

    def _mine(self) -> _Caller:
        found: _Caller | None = getattr(self._of_thread, "mine", None)
        if found is None:
            found = self._of_thread.mine = _Caller(self._outages.party())
            with self._lock:
                self._callers.add(found)
        return found

    def _connection(self, mine: _Caller) -> HTTPConnection:
        if mine.moves != self._moves:
            self.close()
        found = mine.connection
        if found is None:
            with self._lock:
                mine.at, mine.moves = self._at, self._moves
            master = self._masters[mine.at]
            if master.scheme == "https":
                found = HTTPSConnection(master.host, master.port, context=self._context)
            else:
                found = HTTPConnection(master.host, master.port)
            mine.connection = found
        return found

    def close(self) -> None:
        """Closes the connection of this thread."""
        mine = self._mine()
        if mine.connection is not None:
            mine.connection.close()
            mine.connection = None

    def canceller(self) -> Callable[[], None]:
        """A function for other threads that ends the long poll that this thread waits for, now or later."""
        mine = self._mine()
        mine.cancelled = False

        def cancel() -> None:
            # In this order: `_begin_poll` sees it, or the long poll has begun and its socket is there.
            mine.cancelled = True
            mine.cut()

        return cancel
