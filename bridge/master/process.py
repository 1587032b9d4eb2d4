"""A master process: leads or stands by in every lane of its app. What ``bridge run`` runs.

The lanes are those of the stream's layout (`bridge.master.lineup`). When the stream has another layout, the process
gives its lanes up, and takes part in those of the new one. The process ends when it is asked to, or when no master can
lead one of its lanes. A master does these steps after SIGTERM or Ctrl-C:

1. `Master.stop`, on a thread of its own, wakes the thread of the leads. That one removes this master from the set of
   masters, so that the others compute their shares without it. Then it stops the leader of each lane. A lane in which
   this master stands by skips steps 2 and 3.
2. Each leader finishes the turn of its loop, and closes its connections. It waits for no worker: what is in flight
   stays in flight, and the next leader settles it.
3. `Election.resign` deletes the leader lease, so that another master leads at once. The lane's thread ends.
4. When all lanes have ended, the thread of the heartbeats ends, and the master prints "stopped".

The port (``bridge run --http``) has a process of its own. It starts before the lanes, is asked to stop in step 1, and
is waited for in step 4.
"""

from __future__ import annotations

import _thread
import gc
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from celery.utils.log import get_logger

from bridge.app.adoption import adopt_all
from bridge.app.installed import bridge_of
from bridge.app.task_options import check_tasks
from bridge.link.connections import UNAVAILABLE, why_unreachable, without_password
from bridge.link.health import Health
from bridge.master.heartbeats import Heartbeats
from bridge.master.lineup import Lineup
from bridge.master.schedule_entries import entries_of
from bridge.routing.errors import LaneGone, ServerUnavailable

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Longest time in seconds for which the thread of one lane keeps the interpreter from those of others. With Python's
#: own 5 ms, a lane with a backlog delays each message of the others, at each of its round trips.
SWITCH_S = 0.0001
#: Seconds between two tries to take part in the lanes of a new layout, while the server is away.
RETRY_S = 0.5


class Port(Protocol):
    """The port of a master, for HTTP (`bridge.http`): it starts and ends with the master."""

    def start(self) -> None:
        """Starts to serve. No thread of the master runs yet."""

    def stop(self) -> None:
        """Asks it to stop. For any thread."""

    def reload(self) -> None:
        """Reads its files again. Safe in a signal handler."""

    def join(self) -> None:
        """Waits until it has stopped, for a bounded time."""


class Master:
    """A master of the lanes of ``app``. ``announce`` gets a line for each change: standing by, leading, stopped.

    ``named``: the subscriptions that it stands for, or partitions of them (``billing:p2``); None: all. ``port``
    runs beside its lanes. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        app: Celery,
        announce: Callable[[str], None] = print,
        named: Collection[str] | None = None,
        port: Port | None = None,
    ) -> None:
        self._port = port
        self._app = app
        self._announce = partial(_say, announce)
        self._named = named
        self._health = Health(bridge_of(app).settings.health_file)
        self._stop = threading.Event()
        app.loader.import_default_modules()
        app.finalize()
        adopt_all(app)
        check_tasks(app)
        # What is refused changes nothing.
        entries_of(app)
        self._lineup = self._lineup_of_now()

    def stop(self) -> None:
        """Asks all lanes to stop. Each lane that leads resigns on its own thread. Not for a signal handler."""
        self._stop.set()
        if self._port is not None:
            self._port.stop()
        self._lineup.stop()

    def _asked_to_stop(self, *_: Any) -> None:
        # Each event that `stop` sets has a lock. The thread that runs this handler may hold it: the signal came while
        # it waited for the event, or during the handler of another signal.
        _thread.start_new_thread(self.stop, ())

    def _reload(self, *_: Any) -> None:
        if self._port is not None:
            self._port.reload()

    def run(self) -> None:
        """Leads or stands by until `stop`. Raises `ConfigurationError` when no master can lead one of the lanes."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._asked_to_stop)
            if self._port is not None:
                signal.signal(signal.SIGHUP, self._reload)
        if self._port is not None:
            self._port.start()
        heartbeats = Heartbeats(self._app, self._look)
        heartbeats.start()
        try:
            while True:
                if self._lineup.shares_a_process:
                    sys.setswitchinterval(SWITCH_S)
                self._lineup.run(self._health.turn)
                if not self._lineup.is_over or not self._take_part():
                    break
        finally:
            heartbeats.stop()
            if self._port is not None:
                self._port.stop()
                self._port.join()
        self._announce("stopped")

    def _lineup_of_now(self) -> Lineup:
        """The lanes of the layout that is stored. It may become another one while they are made."""
        while True:
            try:
                return Lineup(self._app, self._announce, self._named)
            except LaneGone as exc:
                logger.info("looking at the layout again: %s", exc)
                self._stop.wait(RETRY_S)

    def _take_part(self) -> bool:
        """Takes part in the lanes of the new layout. Returns False when the master was asked to stop."""
        while not self._stop.is_set():
            try:
                self._lineup = self._lineup_of_now()
            except (*UNAVAILABLE, ServerUnavailable) as exc:
                logger.warning("cannot take part in the lanes of the new layout, trying again: %s", exc)
                self._stop.wait(RETRY_S)
                continue
            if self._stop.is_set():
                # It was asked between the two: the call stopped the lanes of the old layout.
                self._lineup.stop()
            return True
        return False

    def _look(self, silent: Collection[str]) -> None:
        self._lineup.look(silent)


def _say(announce: Callable[[str], None], line: str) -> None:
    """Announces ``line``. Where nobody can read it (a full disk, a closed pipe), the master goes on all the same: else
    a lane would take one master after the other with it.
    """
    with suppress(OSError, ValueError):
        announce(line)


def run(
    app: Celery,
    announce: Callable[[str], None] = print,
    named: Collection[str] | None = None,
    port: Port | None = None,
) -> None:
    """Runs a master until SIGTERM or Ctrl-C. Raises `TicketBridgeError` when it cannot start."""
    # Each lane that is awake has a handful of connections. Some systems do not let the limit be raised that far.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    try:
        master = Master(app, announce, named, port)
    except UNAVAILABLE as exc:
        # It went away just now, or is loading its data: it answers INFO then, and nothing else.
        url = bridge_of(app).settings.redis_url
        raise ServerUnavailable(f"cannot reach Redis at {without_password(url)}: {why_unreachable(exc, url)}") from None
    # What start-up made stays to the end. To look at all of it in a collection takes 20 ms, and every lane waits.
    gc.collect()
    gc.freeze()
    master.run()
    # A leader is a circle of objects. At the interpreter's end it takes a tenth of a second to free each of them.
    gc.collect()
