"""The lanes of a master process, as long as the stream keeps its layout: it leads or stands by in each of them.

One thread asks for leads and renews them (`bridge.master.leads`). A lane that this master leads has a thread of its own
(`bridge.master.lane_master`).
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.app.installed import bridge_of
from bridge.app.joining import read_layouts, store_layout
from bridge.app.lanes import subscriptions_of
from bridge.leader.picture.chain import chain_of
from bridge.link.connections import check_server, client
from bridge.link.health import EVERY_S, Health
from bridge.link.outage import OutageLog
from bridge.master.dead_notices import DeadNotices
from bridge.master.election import answer_s
from bridge.master.first_group import begin_group
from bridge.master.lane_master import LaneMaster
from bridge.master.layout_watch import LayoutWatch
from bridge.master.leads import Leads
from bridge.master.older_streams import look_at_older
from bridge.master.refusals import refuse_lane
from bridge.master.schedule import Schedule
from bridge.master.sleepers import Sleepers
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.master.health_checks import HealthChecks

logger = get_logger(__name__)

#: A partition of a subscription.
_PARTITION = re.compile(r"(?P<name>.+):p(?P<number>[0-9]{1,4})", re.ASCII)

#: Longest time between two turns of a healthy loop, in seconds: three of the longest sleeps.
TURNS_S = 15.0


class LoopHealth(Health):
    """The health of one loop. It notes when the loop turned."""

    def __init__(self) -> None:
        super().__init__(None)
        self.turned_at = time.monotonic()

    def turn(self) -> None:
        """The loop turned."""
        self.turned_at = time.monotonic()


class Lineup:
    """The lanes of ``app`` in this process. ``announce`` gets a line for each change.

    ``named``: the subscriptions that the master stands for, or partitions of them (``billing:p2``); None: all. Raises
    `ConfigurationError`, and `LaneGone` when the stream got another layout meanwhile, or an older version was retired.
    """

    def __init__(self, app: Celery, announce: Callable[[str], None], named: Collection[str] | None) -> None:
        self._app = app
        settings = bridge_of(app).settings
        chosen = _chosen(subscriptions_of(app), named)
        redis = client(settings.redis_url)
        check_server(redis, settings.redis_url)
        # A master that is refused has changed nothing.
        layouts = read_layouts(app, redis)
        subscriptions = subscriptions_of(app)
        for lane in _of_partitions(chosen, subscriptions):
            refuse_lane(redis, app, lane)
        look_at_older(redis, app, [lane for lanes in subscriptions.values() for lane in lanes])
        layouts[settings.lane.stream] = store_layout(app, redis)
        subscriptions = subscriptions_of(app)
        all_lanes = [lane for lanes in subscriptions.values() for lane in lanes]
        lanes = _of_partitions(chosen, subscriptions)
        for lane in all_lanes:
            # Before any lane is led: entries leave the stream when all groups that exist are done with them.
            begin_group(redis, lane.settings, lane.in_layout)
        redis.close()
        self._announce = announce
        #: Whether the stream has another layout now, so that the process has other lanes.
        self.is_over = False
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stream = settings.lane.stream
        self._loops = [LoopHealth(), LoopHealth()]
        self._failed: list[BaseException] = []
        self._stop = threading.Event()
        self._pings: HealthChecks | None = None
        outages = OutageLog(logger, "waiting for it")
        lease_s = min(lane.settings.leader_lease for lane in lanes)
        self._redis = client(settings.redis_url, timeout_s=answer_s(lease_s))
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
        _chain(self._lanes)
        self._leads = Leads(
            self._redis,
            self._stream,
            self._holder,
            self._lanes,
            shared=_is_shared(all_lanes),
            named=named is not None,
            layouts=LayoutWatch(self._redis, self._stream, layouts, self._relay),
            outage=outages.party(),
            health=self._loops[0],
        )
        newest = sorted(
            (lane for lane in all_lanes if not lane.newer), key=lambda lane: (lane.name, lane.partition or 0)
        )
        self._dead_notices = DeadNotices(app, self._lanes)
        self._schedule = Schedule(app, self._lanes, [lane.settings.keys.leader for lane in newest])

    def _announcing(self, title: str, *, alone: bool) -> Callable[[str], None]:
        return self._announce if alone else partial(_announce_of, self._announce, title)

    @property
    def shares_a_process(self) -> bool:
        """Whether there are several lanes."""
        return len(self._lanes) > 1

    def stop(self) -> None:
        """Asks all lanes to stop. Each lane that leads resigns on its own thread."""
        self._stop.set()
        self._schedule.stop()
        self._dead_notices.stop()
        self._leads.stop()

    def run(self, healthy: Callable[[], None]) -> None:
        """Leads or stands by until `stop`, or until the stream has another layout (`is_over`).

        ``healthy`` is called every second while all loops turn. Raises `ConfigurationError` when no master can lead one
        of the lanes.
        """
        groups = ", ".join(dict.fromkeys(lane.name for lane in self._lanes))
        self._announce(f"master {self._holder}: stream {self._stream}, group {groups}; standing by")
        self._sleepers.start()
        self._leads.start()
        self._schedule.start()
        self._dead_notices.start()
        try:
            while not self._stop.wait(EVERY_S):
                if self._turns():
                    healthy()
                self._ping()
            while self._leads.is_alive():
                self._leads.join(EVERY_S)
            self._sleepers.stop()
            while not all(lane.join(EVERY_S) for lane in self._lanes) or not self._sleepers.join(EVERY_S):
                continue
        finally:
            self._redis.close()
            if self._pings is not None:
                self._pings.stop()
        if self._failed:
            raise self._failed[0]

    def look(self, silent: Collection[str]) -> None:
        """Checks the leases now: heartbeats of these consumers are missing, or they went offline."""
        for lane in self._lanes:
            lane.look(silent)

    def _ping(self) -> None:
        """Pings HTTP consumers, from the first one on that wants it."""
        urls = {name: url for lane in self._lanes for name, url in lane.health_urls.items()}
        if self._pings is None:
            if not urls:
                return
            from bridge.master.health_checks import HealthChecks

            self._pings = HealthChecks(bridge_of(self._app).settings.http_health_networks, self.look)
        self._pings.turn(urls)

    def _turns(self) -> bool:
        """Whether each loop turned within `TURNS_S` seconds."""
        turned = [*(loop.turned_at for loop in self._loops), *(lane.turned_at for lane in self._lanes if lane.loops)]
        return time.monotonic() - min(turned) < TURNS_S

    def _relay(self, text: str) -> None:
        """The stream has another layout."""
        logger.warning("the stream %s has a new layout, %s: taking part in its lanes", self._stream, text)
        self.is_over = True
        self.stop()

    def _fail(self, exc: BaseException) -> None:
        self._failed.append(exc)
        self.stop()

    def _stand_aside(self, chain: str) -> None:
        self._leads.stand_aside(chain)

    def _lane_ended(self) -> None:
        self._leads.lane_ended()

    def _leading(self) -> int:
        return sum(lane.leading for lane in self._lanes)


def _is_shared(lanes: Sequence[AppLane]) -> bool:
    """Whether the masters of the app share its lanes. One chain cannot be shared: the master that leads it keeps it.

    But two masters may each lead some of the lanes that another lane follows, and that one needs a master of them all.
    Then their share says which one gives its own up.
    """
    return len({lane.chain for lane in lanes}) > 1 or any(len(lane.older) > 1 for lane in lanes)


def _chain(lanes: Sequence[LaneMaster]) -> None:
    """Gives each lane its place in its chain."""
    by_keys = {led.keys: led for led in lanes}
    chains: dict[str, list[LaneMaster]] = {}
    for led in lanes:
        led.older = [by_keys[keys] for keys in led.older_keys]
        chains.setdefault(led.chain, []).append(led)
    for members in chains.values():
        if any(led.older for led in members):
            for led, place in zip(members, chain_of([(led.keys, led.older_keys) for led in members]), strict=True):
                led.put_in_chain(place)


def _chosen(subscriptions: Collection[str], named: Collection[str] | None) -> dict[str, set[int] | None]:
    """The subscriptions that a master stands for -> the partitions that were named, or None for all of them.

    Raises `ConfigurationError` for a subscription that there is not.
    """
    if named is None:
        return dict.fromkeys(subscriptions)
    chosen: dict[str, set[int] | None] = {}
    for one in named:
        part = None if one in subscriptions else _PARTITION.fullmatch(one)
        name = part["name"] if part else one
        if name not in subscriptions:
            raise ConfigurationError(
                f"--lanes: there is no subscription {name!r}; this app has: {', '.join(subscriptions)}"
            )
        numbers = chosen.setdefault(name, set())
        if part is None:
            chosen[name] = None
        elif numbers is not None:
            numbers.add(int(part["number"]))
    return {name: chosen[name] for name in subscriptions if name in chosen}


def _of_partitions(
    chosen: Mapping[str, set[int] | None], subscriptions: Mapping[str, Sequence[AppLane]]
) -> list[AppLane]:
    """The lanes that a master stands for: of a partition that was named, the whole chain.

    Raises `ConfigurationError` for a partition that there is not.
    """
    found: list[AppLane] = []
    for name, numbers in chosen.items():
        lanes = subscriptions[name]
        if numbers is None:
            found += lanes
            continue
        chains = {lane.partition: lane.chain for lane in lanes if lane.partition is not None}
        for number in sorted(numbers - chains.keys()):
            has = f"has the partitions p0 to p{max(chains)}" if chains else "is not split into partitions"
            raise ConfigurationError(f"--lanes {name}:p{number}: there is no such lane; the stream {has}")
        named = {chains[number] for number in numbers}
        found += [lane for lane in lanes if lane.chain in named]
    return found


def _announce_of(announce: Callable[[str], None], title: str, line: str) -> None:
    announce(f"{title}: {line}")
