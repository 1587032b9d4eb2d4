"""A master process: leads the lane, or stands by. What ``bridge run`` runs.

A master does these steps after SIGTERM or Ctrl-C:

1. `Master.stop` wakes the election and the leader. A standby only ends: it goes on with step 4.
2. The leader finishes the turn of its loop, and closes its connections. It waits for no worker: what is in flight stays
   in flight, and the next leader settles it.
3. `Election.resign` deletes the leader lease, so that a standby leads at once. The renewing thread ends.
4. The thread of the heartbeats ends, and the master prints "stopped".
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.adoption import adopt_all
from bridge.app.installed import bridge_of
from bridge.app.task_options import check_tasks
from bridge.leader.leader import Leader
from bridge.link.connections import UNAVAILABLE, check_server, client, is_outage
from bridge.link.health import Health
from bridge.link.key_types import refuse_misplaced
from bridge.link.outage import Outage
from bridge.link.server_clock import ServerClock
from bridge.master.election import Election
from bridge.master.heartbeats import Heartbeats
from bridge.protocol.agreement import arrive, differences, facts, leaders_facts
from bridge.routing.errors import LaneConflict, NotLeading, ServerUnavailable, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

logger = get_logger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.2
#: The same after a defect of its own.
DEFECT_S = 2.0


class Master:
    """One master of one lane. ``announce`` gets a line for each change: standing by, leading, stopped."""

    def __init__(self, app: Celery, announce: Callable[[str], None] = print) -> None:
        self._app = app
        settings = self._settings = bridge_of(app).settings
        self._lane = settings.lane
        app.loader.import_default_modules()
        app.finalize()
        adopt_all(app)
        check_tasks(app, self._lane)
        redis = client(self._settings.redis_url)
        check_server(redis, self._settings.redis_url)
        try:
            refuse_misplaced(redis, self._lane.keys)
            arrive(redis, app)
            self._compare(redis)
        except (RedisError, OSError) as exc:
            # The server went away just now. A leader checks again.
            if not is_outage(exc):
                raise
        self._announce = announce
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._outage = Outage(logger, "waiting for it")
        #: Number of outages after which a leader spared the leases (`LeaseWatch.spare_leases`).
        self._spared = 0
        self._health = Health(self._settings.health_file)
        self._clock = ServerClock(self._lane.lease)
        self._election = Election(settings.redis_url, self._lane, self._holder, self._outage, self._health, self._clock)
        self._leader: Leader | None = None
        self._announced = ""
        self._stop = threading.Event()

    def _compare(self, redis: Redis) -> None:
        """Logs how this master differs from the one that led last. Either may replace the other."""
        text: Any = redis.hget(self._lane.keys.about, "master")
        theirs = leaders_facts(text)
        for difference in differences(facts(self._app, master=True), theirs):
            logger.warning("this master differs from the one that led last: %s", difference)

    def stop(self, *_: Any) -> None:
        """Resigns and ends `run`; safe in a signal handler."""
        self._stop.set()
        self._election.stop()
        leader = self._leader
        if leader is not None:
            leader.stop()

    def run(self) -> None:
        """Leads or stands by until `stop`. Raises `ConfigurationError` when no master can lead the lane."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.stop)
        heartbeats = Heartbeats(self._app, self._look)
        heartbeats.start()
        keys = self._lane.keys
        self._announce(f"master {self._holder}: stream {keys.stream}, group {keys.group}; standing by")
        try:
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
        finally:
            heartbeats.stop()
        self._announce("stopped")

    def _judge(self, exc: Exception) -> None:
        """Raises `ConfigurationError` when a key of the lane has another type. Trying again would not help then."""
        if "WRONGTYPE" in str(exc):
            with suppress(RedisError, OSError), client(self._settings.redis_url) as redis:
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
                leader = self._leader = Leader(
                    self._app, self._settings.redis_url, self._lane, self._election.take_term(), self._clock
                )
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

    def _look(self, silent: Collection[str]) -> None:
        leader = self._leader
        if leader is not None:
            leader.look(silent)


def run(app: Celery, announce: Callable[[str], None] = print) -> None:
    """Runs a master until SIGTERM or Ctrl-C. Raises `TicketBridgeError` when it cannot start."""
    try:
        master = Master(app, announce)
    except UNAVAILABLE as exc:
        raise ServerUnavailable(str(exc)) from None
    master.run()
