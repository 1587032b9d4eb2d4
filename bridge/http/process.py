"""The process of a master's port, its keeper, and a spare.

The port has an interpreter of its own: in the master's process each request would take the interpreter from the loops
of the lanes. So the master forks a *keeper* before it starts a thread. The keeper forks the process that serves, and a
*spare*. They can fork, since they have no other thread; the master could not.

- The process that serves ends: the keeper forks another one.
- The keeper ends: the process that serves ends in order, and the spare becomes the keeper. What clients send meanwhile
  waits in the backlog of the socket, which all of them have.
- The spare ends: the keeper forks another one.

Each comes back after `AGAIN_S`. All end with the master, however that ends: they hold the reading end of a pipe, the
*lifeline*, whose only writing end is the master's. They are one process group. The master asks all of them to stop by
SIGTERM, and to read the tokens again by SIGHUP. They hold the writing end of another pipe: at its end all have ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from celery.utils.log import get_logger

from bridge.http.serving import STOP_S, HttpServer

if TYPE_CHECKING:
    from celery import Celery

    from bridge.http.options import HttpOptions

logger = get_logger(__name__)

#: Seconds after which a process that ended is started again.
AGAIN_S = 1.0
#: Seconds after which processes that were asked to stop are killed: by their keeper, and by the master.
KILL_S, LAST_S = STOP_S + 3, STOP_S + 5
STOPS = frozenset({signal.SIGTERM, signal.SIGINT})
HANDLED = frozenset({*STOPS, signal.SIGHUP, signal.SIGCHLD})
#: Stands among signals for the end of the keeper.
KEEPER_ENDED = 0


class HttpProcess:
    """The port of a master of ``app``, as `bridge.master.process` starts and stops it. Its address is taken at once.

    Raises `ConfigurationError` and `PortInUse`, one line each.
    """

    def __init__(self, app: Celery, options: HttpOptions, announce: Callable[[str], None] = print) -> None:
        self._server = HttpServer(app, options)
        self._announce = announce
        #: The process group, which has the number of the first keeper. 0: nothing was started.
        self._group = 0
        self._lifeline = self._ended = -1
        self._stopping = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="bridge-http-reaper", daemon=True)

    def start(self) -> None:
        """Starts to serve. Called before the master starts threads."""
        # Where this cannot be written, the port is there all the same.
        with suppress(OSError, ValueError):
            anybody = " (without tokens: any program on this machine may call)" if self._server.is_open else ""
            self._announce(f"http: listening on {self._server.url}{anybody}")
            sys.stdout.flush()
        reading, self._lifeline = os.pipe()
        self._ended, family = os.pipe()

        def keep() -> None:
            os.setpgid(0, 0)
            _Keeper(self._server, reading).run()

        group = _forked(keep, closes=(self._lifeline, self._ended))
        with suppress(OSError):
            # Both processes do this. From now on the group has a number, whichever of them is first.
            os.setpgid(group, group)
        os.close(reading)
        os.close(family)
        self._server.close()
        # Last: `stop` may be called at any time.
        self._group = group
        self._reaper.start()

    def stop(self) -> None:
        """Asks it to stop. For any thread."""
        self._stopping.set()
        self._send(signal.SIGTERM)

    def reload(self) -> None:
        """Reads the tokens again. Safe in a signal handler."""
        self._send(signal.SIGHUP)

    def join(self) -> None:
        """Waits until it has stopped, for a bounded time."""
        if not self._group:
            self._server.close()
            return
        self._stopping.set()
        os.close(self._lifeline)
        self._reaper.join(LAST_S)
        if self._reaper.is_alive():
            self._send(signal.SIGKILL)
            self._reaper.join(1)
        self._group = 0

    def _send(self, number: signal.Signals) -> None:
        # Read once: `join` may end on another thread just now, and 0 is the group of the caller.
        if group := self._group:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def _reap(self) -> None:
        """Takes note of the end of each child, and of the end of all."""
        with suppress(ChildProcessError):
            # As the first process of a container the master is the parent of every orphan.
            while True:
                os.waitpid(-self._group, 0)
        os.read(self._ended, 1)
        os.close(self._ended)
        if not self._stopping.is_set():
            logger.error("all processes of the HTTP port were ended: start this master again to have the port back")


class _Signals:
    """The signals of a process that does nothing but wait. The end of a lifeline counts as its signal."""

    def __init__(self, lifelines: Mapping[int, int]) -> None:
        """``lifelines``: reading ends of pipes, each with what its end stands for."""
        self._lifelines = dict(lifelines)
        self._watched, self._wake = os.pipe()
        for end in (self._watched, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake)
        for number in HANDLED:
            signal.signal(number, _noted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def wait(self, seconds: float | None = None) -> set[int]:
        """The signals that came, at most after ``seconds``."""
        ready = select.select([self._watched, *self._lifelines], [], [], seconds)[0]
        found: set[int] = set()
        with suppress(BlockingIOError):
            found.update(os.read(self._watched, 4096))
        found.update(self._lifelines.pop(end) for end in ready if end in self._lifelines)
        return found

    def end(self) -> None:
        """One more SIGTERM. For any thread."""
        os.write(self._wake, bytes([signal.SIGTERM]))


def _noted(_number: int, _frame: object) -> None:
    """The number is in the pipe."""


class _Keeper:
    """What the keeper does, and before that the spare."""

    def __init__(self, server: HttpServer, lifeline: int) -> None:
        self._server = server
        self._lifeline = lifeline
        #: The pipe whose writing end is the keeper's alone.
        self._own = (-1, -1)
        #: The process that serves, and the spare: number, and when to start one if there is none.
        self._serving = self._spare = 0
        self._serve_at = self._spare_at = 0.0

    def run(self, begin_at: float = 0.0) -> None:
        """Runs until the master ends, or asks it to end. ``begin_at``: when it starts its processes."""
        signals = _Signals({self._lifeline: signal.SIGTERM})
        self._own = os.pipe()
        self._serve_at = self._spare_at = begin_at
        stop_at = 0.0
        while True:
            if not stop_at:
                self._start_what_is_due()
            came = signals.wait(self._wait_s(stop_at))
            if signal.SIGHUP in came:
                # For the next processes.
                self._server.reload()
            if STOPS & came and not stop_at:
                # So the address is free as soon as the process that serves has closed it.
                self._server.close()
                stop_at = time.monotonic() + KILL_S
                for process in (self._serving, self._spare):
                    _send(process, signal.SIGTERM)
            self._note_ends(stopping=bool(stop_at))
            if stop_at and not self._serving and not self._spare:
                return
            if stop_at and time.monotonic() >= stop_at:
                os.killpg(0, signal.SIGKILL)

    def stand_by(self, keeper: int) -> None:
        """What the spare does. ``keeper``: the pipe that ends with the keeper."""
        signals = _Signals({self._lifeline: signal.SIGTERM, keeper: KEEPER_ENDED})
        while not STOPS & (came := signals.wait()):
            if signal.SIGHUP in came:
                self._server.reload()
            if KEEPER_ENDED in came:
                logger.error("the keeper of the HTTP port ended; another one takes its place")
                os.close(keeper)
                self._serving = self._spare = 0
                self.run(time.monotonic() + AGAIN_S)
                return

    def _start_what_is_due(self) -> None:
        now, (reading, writing) = time.monotonic(), self._own
        if not self._serving and now >= self._serve_at:
            self._serving = _forked(lambda: _serve(self._server, self._lifeline, reading), closes=(writing,))
        if not self._spare and now >= self._spare_at:
            self._spare = _forked(lambda: self.stand_by(reading), closes=(writing,))

    def _note_ends(self, *, stopping: bool) -> None:
        again_at = time.monotonic() + AGAIN_S
        if self._serving and _has_ended(self._serving):
            self._serving, self._serve_at = 0, again_at
            if not stopping:
                logger.error("the process of the HTTP port ended; it is started again")
        if self._spare and _has_ended(self._spare):
            self._spare, self._spare_at = 0, again_at

    def _wait_s(self, stop_at: float) -> float | None:
        due = [at for process, at in ((self._serving, self._serve_at), (self._spare, self._spare_at)) if not process]
        at = stop_at or min(due, default=0.0)
        return max(0.0, at - time.monotonic()) if at else None


def _serve(server: HttpServer, lifeline: int, keeper: int) -> None:
    """Serves until the keeper or the master ends, or says that it is over."""
    signals = _Signals({lifeline: signal.SIGTERM, keeper: signal.SIGTERM})
    server.on_end = signals.end
    server.start()
    while not STOPS & (came := signals.wait()):
        if signal.SIGHUP in came:
            server.reload()
    server.stop()
    server.join()


def _forked(call: Callable[[], None], closes: Sequence[int]) -> int:
    """The id of a new process that runs ``call`` and ends. No signal reaches it before it is ready for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        found = os.fork()
        if not found:
            for end in closes:
                os.close(end)
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
        # Not `sys.exit`: what the master registered for the end of its interpreter must not run here.
        os._exit(status)


def _send(process: int, number: signal.Signals) -> None:
    if process:
        os.kill(process, number)


def _has_ended(process: int) -> bool:
    """Whether a child has ended. Once it has, it is not asked again."""
    return os.waitpid(process, os.WNOHANG)[0] != 0
