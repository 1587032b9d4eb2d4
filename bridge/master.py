"""A master process: leads the lane, or stands by. What ``bridge run`` runs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.connect import UNAVAILABLE, check_server, client, is_outage
from bridge.election import Election
from bridge.heartbeats import Heartbeats
from bridge.installation import bridge_of
from bridge.leader import Leader
from bridge.outage import Outage
from bridge.settings import check_tasks
from routing.errors import LaneConflict, NotLeading, ServerUnavailable

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.2


class Master:
    """One master of one lane. ``announce`` gets a line for each change: standing by, leading, stopped."""

    def __init__(self, app: Celery, announce: Callable[[str], None] = print) -> None:
        self._app = app
        self._settings = bridge_of(app).settings
        app.loader.import_default_modules()
        app.finalize()
        check_tasks(app, self._settings)
        check_server(client(self._settings.redis_url), self._settings.redis_url)
        self._announce = announce
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._outage = Outage(logger, "waiting for it")
        #: Outages after which the workers' leases were spared.
        self._spared = 0
        self._election = Election(self._settings, self._holder, self._outage)
        self._leader: Leader | None = None
        self._announced = ""
        self._stop = threading.Event()

    def stop(self, *_: Any) -> None:
        """Resigns and ends `run`; safe in a signal handler."""
        self._stop.set()
        self._election.stop()
        leader = self._leader
        if leader is not None:
            leader.stop()

    def run(self) -> None:
        """Leads or stands by until `stop`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        heartbeats = Heartbeats(self._app, self._look)
        heartbeats.start()
        keys = self._settings.keys
        self._announce(f"master {self._holder}: stream {keys.stream}, group {keys.group}; standing by")
        try:
            while not self._stop.is_set():
                try:
                    self._serve()
                except (RedisError, OSError) as exc:
                    if is_outage(exc):
                        self._outage.met(exc)
                        self._stop.wait(RETRY_S)
                        continue
                    logger.error("Redis answers with an error, trying again: %s", exc)
                    self._stop.wait(5 * RETRY_S)
        finally:
            heartbeats.stop()
        self._announce("stopped")

    def _serve(self) -> None:
        if not self._election.leads() and not self._election.campaign():
            return
        lost = threading.Event()
        keeper = self._election.keep(lost)
        if self._announced != self._election.token:
            # Not again after each vain try in an outage that is shorter than the lead.
            self._announced = self._election.token
            self._announce(f"leading, term {self._election.token.partition(' ')[0]}")
        try:
            self._lead()
        finally:
            if self._stop.is_set():
                self._election.resign()
            lost.set()
            keeper.join(timeout=self._settings.leader_lease)

    def _lead(self) -> None:
        """Leads until the lead is over; reads the lane anew whenever the picture may be wrong."""
        while not self._stop.is_set() and self._election.leads():
            try:
                leader = self._leader = Leader(self._app, self._settings, self._election.take_term())
                if self._spared < self._outage.count:
                    # The workers could not renew their leases, either.
                    self._spared = self._outage.count
                    leader.recovery.grant_amnesty()
                if self._stop.is_set():
                    return
                leader.run(self._leads())
            except NotLeading as exc:
                logger.warning("stepping down: %s", exc)
                # The renewals may not have noticed yet.
                self._election.forfeit()
                return
            except LaneConflict as exc:
                logger.warning("reading the lane anew: %s", exc)
                time.sleep(0.05)
            finally:
                self._leader = None

    def _leads(self) -> Callable[[], bool]:
        """Whether this master leads: a new leader asks first when it has read the lane, so the server served."""
        served = False

        def leads() -> bool:
            nonlocal served
            if not served:
                served = True
                self._outage.over()
            return self._election.leads()

        return leads

    def _look(self) -> None:
        leader = self._leader
        if leader is not None:
            leader.look()


def run(app: Celery, announce: Callable[[str], None] = print) -> None:
    """Runs a master until SIGTERM or Ctrl-C. Raises `TicketBridgeError` when it cannot start."""
    try:
        master = Master(app, announce)
    except UNAVAILABLE as exc:
        raise ServerUnavailable(str(exc)) from None
    master.run()
