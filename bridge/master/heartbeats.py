"""Listens to Celery's worker heartbeats. A missing heartbeat only makes the leader check the leases sooner.

The leader checks all leases once a second. It checks the lease of a silent worker again at the moment when that lease
ends. So the tickets move at once, and not up to a second later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: How many heartbeats must be missing before the leader checks. Celery's workers send one every two seconds.
MISSING = 2
INTERVAL_S = 2.0


class Heartbeats:
    """Receives heartbeats on its own thread. Calls ``look`` with the names of workers that are offline or silent."""

    def __init__(self, app: Celery, look: Callable[[Collection[str]], None]) -> None:
        self._app = app
        # Celery imports this class now, on this thread. Two threads that import `celery.events` can block each other.
        self._receiver_class = app.events.Receiver
        self._look = look
        self._heard: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._app.connection_for_read() as link:
                    # Only events of workers. Events of tasks would cost the master more than its own work.
                    receiver = self._receiver_class(
                        link,
                        handlers={
                            "worker-heartbeat": self._on_heartbeat,
                            "worker-online": self._on_heartbeat,
                            "worker-offline": self._on_offline,
                        },
                        routing_key="worker.#",
                    )
                    # Do not ask the workers for a heartbeat: the next one comes anyway. So the master need not publish
                    # commands. That is a permission which would also let it stop workers.
                    with receiver.consumer_context(wakeup=False) as (own_link, _, _):
                        # The receiver consumes through its own connection.
                        while not self._stop.is_set():
                            self._drain(own_link)
            except Exception as exc:
                # Heartbeats are only a hint. The leases are checked at intervals in any case.
                logger.debug("no heartbeats for a while: %s", exc)
                # Nothing was received for a while, so a worker without a heartbeat may be alive.
                self._heard.clear()
                self._stop.wait(1.0)

    def _drain(self, link: Any) -> None:
        with suppress(TimeoutError):
            link.drain_events(timeout=INTERVAL_S)
        now = time.monotonic()
        silent = [name for name, heard in self._heard.items() if now - heard > MISSING * INTERVAL_S + 0.5]
        for name in silent:
            del self._heard[name]
        if silent:
            logger.info("no heartbeat of %s: checking the leases", ", ".join(silent))
            self._look(silent)

    def _on_heartbeat(self, event: dict[str, Any]) -> None:
        self._heard[event["hostname"]] = time.monotonic()

    def _on_offline(self, event: dict[str, Any]) -> None:
        self._heard.pop(event["hostname"], None)
        self._look([event["hostname"]])
