"""A master process: leads or stands by in every lane of its app. What ``bridge run`` runs.

One thread asks for leads and renews them (`bridge.master.leads`). A lane that this master leads has a thread of its own
(`bridge.master.lane_master`). The process ends when it is asked to, or when no master can lead one of its lanes. A
master does these steps after SIGTERM or Ctrl-C:

1. `Master.stop` wakes the thread of the leads. It removes this master from the set of masters, so that the others
   compute their shares without it. Then it stops the leader of each lane. A lane in which this master stands by skips
   steps 2 and 3.
2. Each leader finishes the turn of its loop, and closes its connections. It waits for no worker: what is in flight
   stays in flight, and the next leader settles it.
3. `Election.resign` deletes the leader lease, so that another master leads at once. The lane's thread ends.
4. When all lanes have ended, the thread of the heartbeats ends, and the master prints "stopped".
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.app.adoption import adopt_all
from bridge.app.installed import bridge_of
from bridge.app.joining import read_layouts, store_layout
from bridge.app.lanes import subscriptions_of
from bridge.app.task_options import check_tasks
from bridge.leader.picture.chain import chain_of
from bridge.link.connections import UNAVAILABLE, check_server, client, why_unreachable, without_password
from bridge.link.health import EVERY_S, Health
from bridge.link.outage import OutageLog
from bridge.master.first_group import begin_group
from bridge.master.heartbeats import Heartbeats
from bridge.master.lane_master import LaneMaster
from bridge.master.layout_watch import LayoutWatch
from bridge.master.leads import RENEWALS, Leads
from bridge.master.older_streams import look_at_older
from bridge.master.refusals import refuse_lane
from bridge.master.sleepers import Sleepers
from bridge.routing.errors import ConfigurationError, ServerUnavailable

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Longest time in seconds for which the thread of one lane keeps the interpreter from those of others. With Python's
#: own 5 ms, a lane with a backlog delays each message of the others, at each of its round trips.
SWITCH_S = 0.0001
#: Longest time between two turns of a loop, in seconds, when all is well: three of the longest sleeps.
TURNS_S = 15.0


class LoopHealth(Health):
    """The health of one loop. It notes when the loop turned."""

    def __init__(self) -> None:
        super().__init__(None)
        self.turned_at = time.monotonic()

    def turn(self) -> None:
        """The loop turned."""
        self.turned_at = time.monotonic()


class Master:
    """A master of the lanes of ``app``. ``announce`` gets a line for each change: standing by, leading, stopped.

    ``named``: the subscriptions that it stands for; None: all. Raises `ConfigurationError`.
    """

    def __init__(
        self, app: Celery, announce: Callable[[str], None] = print, named: Collection[str] | None = None
    ) -> None:
        self._app = app
        settings = bridge_of(app).settings
        app.loader.import_default_modules()
        app.finalize()
        adopt_all(app)
        check_tasks(app)
        chosen = _chosen(subscriptions_of(app), named)
        redis = client(settings.redis_url)
        check_server(redis, settings.redis_url)
        # What is refused changes nothing.
        layouts = read_layouts(app, redis)
        subscriptions = subscriptions_of(app)
        for name in chosen:
            for lane in subscriptions[name]:
                refuse_lane(redis, app, lane)
        look_at_older(redis, app, [lane for lanes in subscriptions.values() for lane in lanes])
        layouts[settings.lane.stream] = store_layout(app, redis)
        subscriptions = subscriptions_of(app)
        all_lanes = [lane for lanes in subscriptions.values() for lane in lanes]
        lanes = [lane for name in chosen for lane in subscriptions[name]]
        for lane in all_lanes:
            # Before any lane is led: entries leave the stream when all groups that exist are done with them.
            begin_group(redis, lane.settings)
        redis.close()
        self._announce = announce
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stream = settings.lane.stream
        self._health = Health(settings.health_file)
        self._loops = [LoopHealth(), LoopHealth()]
        self._failed: list[BaseException] = []
        self._stop = threading.Event()
        outages = OutageLog(logger, "waiting for it")
        lease_s = min(lane.settings.leader_lease for lane in lanes)
        self._redis = client(settings.redis_url, timeout_s=max(0.2, lease_s / RENEWALS))
        self._sleepers = Sleepers(settings.redis_url, outages.party(), self._loops[1], self._leading)
        self._lanes = [
            LaneMaster(
                app,
                lane,
                self._redis,
                self._holder,
                outages.party(),
                announce=self._announcing(lane.title, alone=len(all_lanes) == 1),
                failed=self._fail,
                defective=self._stand_aside,
                ended=self._lane_ended,
                sleepers=self._sleepers,
            )
            for lane in lanes
        ]
        for at, led in enumerate(self._lanes):
            led.older = [one for one in self._lanes[:at] if one.chain == led.chain]
        for chain in {led.chain for led in self._lanes if led.older}:
            members = [led for led in self._lanes if led.chain == chain]
            for led, place in zip(members, chain_of([led.keys for led in members]), strict=True):
                led.place = place
        self._leads = Leads(
            self._redis,
            self._stream,
            self._holder,
            self._lanes,
            # One chain cannot be shared: the master that leads it keeps it.
            shared=len({lane.chain for lane in all_lanes}) > 1,
            named=named is not None,
            layouts=LayoutWatch(self._redis, layouts),
            outage=outages.party(),
            health=self._loops[0],
        )

    def _announcing(self, title: str, *, alone: bool) -> Callable[[str], None]:
        return self._announce if alone else partial(_announce_of, self._announce, title)

    def stop(self, *_: Any) -> None:
        """Asks all lanes to stop. Each lane that leads resigns on its own thread. Safe in a signal handler."""
        self._stop.set()
        self._leads.stop()

    def run(self) -> None:
        """Leads or stands by until `stop`. Raises `ConfigurationError` when no master can lead one of the lanes."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.stop)
        if len(self._lanes) > 1:
            sys.setswitchinterval(SWITCH_S)
        heartbeats = Heartbeats(self._app, self._look)
        heartbeats.start()
        groups = ", ".join(dict.fromkeys(lane.name for lane in self._lanes))
        self._announce(f"master {self._holder}: stream {self._stream}, group {groups}; standing by")
        self._sleepers.start()
        self._leads.start()
        try:
            while not self._stop.wait(EVERY_S):
                if self._turns():
                    self._health.turn()
            while self._leads.is_alive():
                self._leads.join(EVERY_S)
            self._sleepers.stop()
            while not all(lane.join(EVERY_S) for lane in self._lanes) or not self._sleepers.join(EVERY_S):
                continue
        finally:
            heartbeats.stop()
            self._redis.close()
        if self._failed:
            raise self._failed[0]
        self._announce("stopped")

    def _turns(self) -> bool:
        """Whether each loop turned lately."""
        turned = [*(loop.turned_at for loop in self._loops), *(lane.turned_at for lane in self._lanes if lane.loops)]
        return time.monotonic() - min(turned) < TURNS_S

    def _fail(self, exc: BaseException) -> None:
        self._failed.append(exc)
        self.stop()

    def _stand_aside(self, chain: str) -> None:
        self._leads.stand_aside(chain)

    def _lane_ended(self) -> None:
        self._leads.lane_ended()

    def _leading(self) -> int:
        return sum(lane.leading for lane in self._lanes)

    def _look(self, silent: Collection[str]) -> None:
        for lane in self._lanes:
            lane.look(silent)


def _chosen(subscriptions: Collection[str], named: Collection[str] | None) -> list[str]:
    """The subscriptions that a master stands for. Raises `ConfigurationError` for one that there is not."""
    for name in named or ():
        if name not in subscriptions:
            raise ConfigurationError(
                f"--lanes: there is no subscription {name!r}; this app has: {', '.join(subscriptions)}"
            )
    return [name for name in subscriptions if named is None or name in named]


def _announce_of(announce: Callable[[str], None], title: str, line: str) -> None:
    announce(f"{title}: {line}")


def run(app: Celery, announce: Callable[[str], None] = print, named: Collection[str] | None = None) -> None:
    """Runs a master until SIGTERM or Ctrl-C. Raises `TicketBridgeError` when it cannot start."""
    try:
        master = Master(app, announce, named)
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
