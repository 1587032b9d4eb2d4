"""One lane of a master process: leads it, or stands by.

A process has one of these for each lane of its app, each with a thread of its own (`bridge.master.process`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.leader.leader import Leader
from bridge.link.connections import client, is_outage
from bridge.link.health import Health
from bridge.link.key_types import refuse_misplaced
from bridge.link.outage import Outage
from bridge.link.server_clock import ServerClock
from bridge.master.election import Election
from bridge.master.log_lines import name_thread
from bridge.protocol.agreement import arrive, differences, facts, leaders_facts
from bridge.routing.errors import LaneConflict, NotLeading, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane

logger = get_logger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.2
#: The same after a defect of its own.
DEFECT_S = 2.0


class LaneMaster:
    """This process's part in one lane. ``announce`` gets a line for each change: standing by, leading.

    ``holder``: the name of this process in the lane's lead. Raises `ConfigurationError` when the lane is not for this
    app.
    """

    def __init__(
        self, app: Celery, lane: AppLane, redis: Redis, holder: str, health: Health, announce: Callable[[str], None]
    ) -> None:
        self._app = app
        self._app_lane = lane
        self._lane = lane.settings
        self._url: str = bridge_of(app).settings.redis_url
        self._announce = announce
        self._holder = holder
        self._health = health
        self._outage = Outage(logger, "waiting for it")
        #: Number of outages after which a leader spared the leases (`LeaseWatch.spare_leases`).
        self._spared = 0
        self._clock = ServerClock(self._lane.lease)
        self._election = Election(self._url, self._lane, holder, self._outage, health, self._clock)
        self._leader: Leader | None = None
        self._announced = ""
        self._stop = threading.Event()
        try:
            refuse_misplaced(redis, self._lane.keys)
            arrive(redis, app, self._lane)
            self._compare(redis)
        except (RedisError, OSError) as exc:
            # The server went away just now. A leader checks again.
            if not is_outage(exc):
                raise

    @property
    def name(self) -> str:
        """The name of the lane's subscription."""
        return self._app_lane.name

    def _compare(self, redis: Redis) -> None:
        """Logs how this master differs from the one that led last. Either may replace the other."""
        text: Any = redis.hget(self._lane.keys.about, "master")
        theirs = leaders_facts(text)
        for difference in differences(facts(self._app, self._lane, master=True), theirs):
            logger.warning("this master differs from the one that led last: %s", difference)

    def stop(self) -> None:
        """Resigns and ends `run`; safe in a signal handler."""
        self._stop.set()
        self._election.stop()
        leader = self._leader
        if leader is not None:
            leader.stop()

    def look(self, silent: Collection[str]) -> None:
        """Checks the leases now: heartbeats of these consumers are missing, or they went offline."""
        leader = self._leader
        if leader is not None:
            leader.look(silent)

    def run(self) -> None:
        """Leads or stands by until `stop`. Raises `ConfigurationError` when no master can lead the lane."""
        name_thread(self._app_lane)
        while not self._stop.is_set():
            self._health.turn()
            try:
                self._serve()
            except (RedisError, OSError) as exc:
                if is_outage(exc):
                    self._outage.met(exc)
                    self._stop.wait(RETRY_S)
                    continue
                self._judge(exc)
                logger.error("Redis answers with an error, trying again: %s", exc)
                self._stop.wait(5 * RETRY_S)

    def _judge(self, exc: Exception) -> None:
        """Raises `ConfigurationError` when a key of the lane has another type. Trying again would not help then."""
        if "WRONGTYPE" in str(exc):
            with suppress(RedisError, OSError), client(self._url) as redis:
                refuse_misplaced(redis, self._lane.keys, queues=True)

    def _serve(self) -> None:
        if not self._election.leads() and not self._election.campaign():
            return
        lost = threading.Event()
        keeper = self._election.keep(lost)
        if self._announced != self._election.token:
            # Announce a term once, not after each failed try in an outage that is shorter than the leader lease.
            self._announced = self._election.token
            self._announce(f"leading, term {self._election.token.partition(' ')[0]}")
        try:
            self._lead()
        finally:
            if self._stop.is_set():
                self._election.resign()
            lost.set()
            keeper.join(timeout=self._lane.leader_lease)

    def _lead(self) -> None:
        """Leads until the lead is over. Reads the lane again whenever the picture may be wrong."""
        while not self._stop.is_set() and self._election.leads():
            try:
                term = self._election.take_term()
                leader = self._leader = Leader(self._app, self._url, self._app_lane, term, self._clock)
                if self._spared < self._outage.count:
                    # The workers could not renew their leases in the outage.
                    self._spared = self._outage.count
                    leader.lease_watch.spare_leases()
                if self._stop.is_set():
                    return
                leader.run(self._leads())
            except NotLeading as exc:
                logger.warning("stepping down: %s", exc)
                # The renewals may not have noticed yet.
                self._election.forfeit()
                return
            except LaneConflict as exc:
                logger.warning("reading the lane again: %s", exc)
                time.sleep(0.05)
            except (RedisError, OSError, TicketBridgeError):
                raise
            except Exception:
                # A defect of this master. The process goes on, and another master may be able to lead.
                logger.exception("cannot lead: stepping down")
                self._election.resign()
                self._stop.wait(DEFECT_S)
                return
            finally:
                self._leader = None

    def _leads(self) -> Callable[[], bool]:
        """A function that says whether this master leads.

        A new leader calls it first when it has read the lane. So the outage is over at the first call.
        """
        served = False

        def leads() -> bool:
            nonlocal served
            if not served:
                served = True
                self._outage.over()
            self._health.turn()
            return self._election.leads()

        return leads
