"""The process of a master's port, and its keeper.

The port has an interpreter of its own: in the master's process each request would take the interpreter from the loops
of the lanes. So the master forks a *keeper* before it starts a thread, and the keeper forks the process that serves.
The keeper does nothing but wait. When the process that serves ends, it forks another one. It can, since it has no other
thread; the master could not.

Both end with the master, however that ends: they hold the reading end of a pipe, the *lifeline*, whose only writing end
is the master's. The keeper is asked to stop by SIGTERM. SIGHUP makes both read the tokens again.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from celery.utils.log import get_logger

from bridge.http.serving import STOP_S, HttpServer

if TYPE_CHECKING:
    from celery import Celery

    from bridge.http.options import HttpOptions

logger = get_logger(__name__)

#: Seconds after which a process that serves is started again when it ended.
AGAIN_S = 1.0
#: Seconds after which a process that was asked to stop is killed: by its keeper, and the keeper by the master.
KILL_S, LAST_S = STOP_S + 3, STOP_S + 5
#: Seconds between two looks whether the keeper has ended.
EXIT_POLL_S = 0.02
STOPS = frozenset({signal.SIGTERM, signal.SIGINT})
HANDLED = frozenset({*STOPS, signal.SIGHUP, signal.SIGCHLD})


class HttpProcess:
    """The port of a master of ``app``, as `bridge.master.process` starts and stops it. Its address is taken at once.

    Raises `ConfigurationError` and `PortInUse`, one line each.
    """

    def __init__(self, app: Celery, options: HttpOptions, announce: Callable[[str], None] = print) -> None:
        self._server = HttpServer(app, options)
        self._announce = announce
        self._keeper = 0
        self._lifeline = -1

    def start(self) -> None:
        """Starts to serve. Called before the master starts threads."""
        self._announce(f"http: listening on {self._server.url}")
        sys.stdout.flush()
        reading, self._lifeline = os.pipe()
        keeper = _forked(lambda: _Keeper(self._server, reading).run(), closes=self._lifeline)
        os.close(reading)
        self._server.close()
        # Last: `stop` may be called at any time.
        self._keeper = keeper

    def stop(self) -> None:
        """Asks it to stop. Safe in a signal handler."""
        self._send(signal.SIGTERM)

    def reload(self) -> None:
        """Reads the tokens again. Safe in a signal handler."""
        self._send(signal.SIGHUP)

    def join(self) -> None:
        """Waits until it has stopped, for a bounded time."""
        if not self._keeper:
            self._server.close()
            return
        keeper, self._keeper = self._keeper, 0
        os.close(self._lifeline)
        until = time.monotonic() + LAST_S
        while not _has_ended(keeper):
            if time.monotonic() > until:
                os.kill(keeper, signal.SIGKILL)
            time.sleep(EXIT_POLL_S)

    def _send(self, number: signal.Signals) -> None:
        if self._keeper:
            os.kill(self._keeper, number)


class _Signals:
    """The signals of a process that does nothing but wait. The end of its lifeline is one more SIGTERM."""

    def __init__(self, lifeline: int) -> None:
        self._lifeline = lifeline
        self._watched, self._wake = os.pipe()
        for end in (self._watched, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake)
        for number in HANDLED:
            signal.signal(number, _noted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self._lives = True

    def wait(self, seconds: float | None = None) -> set[int]:
        """The signals that came, at most after ``seconds``."""
        reads = [self._watched, self._lifeline] if self._lives else [self._watched]
        ready = select.select(reads, [], [], seconds)[0]
        found: set[int] = set()
        with suppress(BlockingIOError):
            found.update(os.read(self._watched, 4096))
        if self._lifeline in ready:
            self._lives = False
            found.add(signal.SIGTERM)
        return found

    def end(self) -> None:
        """One more SIGTERM. For any thread."""
        os.write(self._wake, bytes([signal.SIGTERM]))


def _noted(_number: int, _frame: object) -> None:
    """The number is in the pipe."""


class _Keeper:
    """What the keeper does."""

    def __init__(self, server: HttpServer, lifeline: int) -> None:
        self._server = server
        self._lifeline = lifeline

    def run(self) -> None:
        """Until the master ends, or asks it to."""
        signals = _Signals(self._lifeline)
        serving = self._fork()
        #: When to start a process again, and when to kill one that does not stop; 0: not at all.
        again_at = kill_at = 0.0
        while True:
            at = kill_at or again_at
            came = signals.wait(max(0.0, at - time.monotonic()) if at else None)
            if signal.SIGHUP in came:
                # For the next process that serves.
                self._server.reload()
                _send(serving, signal.SIGHUP)
            if STOPS & came:
                # So the address is free as soon as the process that serves has closed it.
                self._server.close()
                kill_at = kill_at or time.monotonic() + KILL_S
                _send(serving, signal.SIGTERM)
            if serving and _has_ended(serving):
                serving, again_at = 0, time.monotonic() + AGAIN_S
                if not kill_at:
                    logger.error("the process of the HTTP port ended; it is started again")
            if kill_at and not serving:
                return
            if kill_at and time.monotonic() >= kill_at:
                _send(serving, signal.SIGKILL)
                kill_at += 1
            elif not serving and time.monotonic() >= again_at:
                serving, again_at = self._fork(), 0.0

    def _fork(self) -> int:
        return _forked(lambda: _serve(self._server, self._lifeline))


def _serve(server: HttpServer, lifeline: int) -> None:
    """Serves until the keeper or the master says that it is over."""
    signals = _Signals(lifeline)
    server.on_end = signals.end
    server.start()
    while not STOPS & (came := signals.wait()):
        if signal.SIGHUP in came:
            server.reload()
    server.stop()
    server.join()


def _forked(call: Callable[[], None], closes: int = -1) -> int:
    """The id of a new process that runs ``call`` and ends. No signal reaches it before it is ready for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        found = os.fork()
        if not found:
            if closes >= 0:
                os.close(closes)
            _end_with(call)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return found


def _end_with(call: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        call()
        status = 0
    except BaseException:
        logger.exception("a process of the HTTP port failed")
    finally:
        # What is registered for the end of an interpreter is the master's.
        os._exit(status)


def _send(process: int, number: signal.Signals) -> None:
    if process:
        os.kill(process, number)


def _has_ended(process: int) -> bool:
    """Whether a child has ended. Once it has, it is not asked again."""
    return os.waitpid(process, os.WNOHANG)[0] != 0
