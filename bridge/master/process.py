"""A master process: takes part in the lead of every lane of its app. What ``bridge run`` runs.

Each lane has a thread of its own (`bridge.master.lane_master`). The process ends when it is asked to, or when no master
can lead one of its lanes. A master does these steps after SIGTERM or Ctrl-C:

1. `Master.stop` wakes the election and the leader of each lane. A standby skips steps 2 and 3.
2. The leader finishes the turn of its loop, and closes its connections. It waits for no worker: what is in flight stays
   in flight, and the next leader settles it.
3. `Election.resign` deletes the leader lease, so that a standby leads at once. The renewing thread ends.
4. When all lanes have ended, the thread of the heartbeats ends, and the master prints "stopped".
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from bridge.app.adoption import adopt_all
from bridge.app.installed import bridge_of
from bridge.app.lanes import lanes_of
from bridge.app.task_options import check_tasks
from bridge.link.connections import UNAVAILABLE, check_server, client
from bridge.link.health import EVERY_S, Health
from bridge.master.first_group import begin_group
from bridge.master.heartbeats import Heartbeats
from bridge.master.lane_master import LaneMaster
from bridge.routing.errors import ServerUnavailable
from bridge.routing.layouts import claim_layout

if TYPE_CHECKING:
    from celery import Celery

#: Longest time between two turns of a lane's loop, in seconds, when all is well: three of its longest sleeps.
TURNS_S = 15.0


class LaneHealth(Health):
    """The health of one lane's loop. It notes when the loop turned."""

    def __init__(self) -> None:
        super().__init__(None)
        self.turned_at = time.monotonic()

    def turn(self) -> None:
        """The loop turned."""
        self.turned_at = time.monotonic()


class Master:
    """A master of all lanes of ``app``. ``announce`` gets a line for each change: standing by, leading, stopped."""

    def __init__(self, app: Celery, announce: Callable[[str], None] = print) -> None:
        self._app = app
        settings = bridge_of(app).settings
        app.loader.import_default_modules()
        app.finalize()
        adopt_all(app)
        check_tasks(app)
        redis = client(settings.redis_url)
        check_server(redis, settings.redis_url)
        bridge_of(app).take_layout(claim_layout(redis, settings.lane.stream, settings.partitions))
        lanes = lanes_of(app)
        for lane in lanes:
            # Before any of them leads: entries leave the stream when all groups that are there are done with them.
            begin_group(redis, lane.settings)
        self._announce = announce
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stream = settings.lane.stream
        self._health = Health(settings.health_file)
        self._healths = [LaneHealth() for _ in lanes]
        self._lanes = [
            LaneMaster(app, lane, redis, self._holder, health, self._announcing(lane.title, alone=len(lanes) == 1))
            for lane, health in zip(lanes, self._healths, strict=True)
        ]
        redis.close()
        self._stop = threading.Event()
        self._failed: list[BaseException] = []

    def _announcing(self, title: str, *, alone: bool) -> Callable[[str], None]:
        return self._announce if alone else partial(_announce_of, self._announce, title)

    def stop(self, *_: Any) -> None:
        """Asks all lanes to stop. Each resigns on its own thread. Safe in a signal handler."""
        self._stop.set()
        for lane in self._lanes:
            lane.stop()

    def run(self) -> None:
        """Leads or stands by until `stop`. Raises `ConfigurationError` when no master can lead one of the lanes."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.stop)
        heartbeats = Heartbeats(self._app, self._look)
        heartbeats.start()
        groups = ", ".join(dict.fromkeys(lane.name for lane in self._lanes))
        self._announce(f"master {self._holder}: stream {self._stream}, group {groups}; standing by")
        threads = [
            threading.Thread(target=self._run_lane, args=(lane,), name=f"bridge-lane-{lane.name}", daemon=True)
            for lane in self._lanes
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._stop.wait(EVERY_S)
                if time.monotonic() - min(health.turned_at for health in self._healths) < TURNS_S:
                    self._health.turn()
                if self._stop.is_set():
                    for thread in threads:
                        thread.join(EVERY_S)
        finally:
            heartbeats.stop()
        if self._failed:
            raise self._failed[0]
        self._announce("stopped")

    def _run_lane(self, lane: LaneMaster) -> None:
        try:
            lane.run()
        except BaseException as exc:
            self._failed.append(exc)
            self.stop()

    def _look(self, silent: Collection[str]) -> None:
        for lane in self._lanes:
            lane.look(silent)


def _announce_of(announce: Callable[[str], None], title: str, line: str) -> None:
    announce(f"{title}: {line}")


def run(app: Celery, announce: Callable[[str], None] = print) -> None:
    """Runs a master until SIGTERM or Ctrl-C. Raises `TicketBridgeError` when it cannot start."""
    try:
        master = Master(app, announce)
    except UNAVAILABLE as exc:
        raise ServerUnavailable(str(exc)) from None
    master.run()
