"""Listens to Celery's worker heartbeats. A missing one makes the leader look at the leases, and decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Heartbeats that may be missing before the leader looks. Celery's workers send one every two seconds.
MISSING = 2
INTERVAL_S = 2.0


class Heartbeats:
    """Receives on a thread of its own; calls ``look`` when a worker went offline or has not been heard."""

    def __init__(self, app: Celery, look: Callable[[], None]) -> None:
        self._app = app
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
                    # Only the workers' own events: those of the tasks would cost the master more than its work.
                    receiver = self._app.events.Receiver(
                        link,
                        handlers={
                            "worker-heartbeat": self._on_heartbeat,
                            "worker-online": self._on_heartbeat,
                            "worker-offline": self._on_offline,
                        },
                        routing_key="worker.#",
                    )
                    # Not waking the workers up: their next heartbeat comes anyway, and a master that need not publish
                    # need not be allowed to, since whoever may publish commands can stop workers.
                    with receiver.consumer_context(wakeup=False) as (own_link, _, _):
                        # The receiver consumes through a link of its own.
                        while not self._stop.is_set():
                            self._drain(own_link)
            except Exception as exc:
                # Heartbeats are a hint: whatever is wrong here, the leases are looked at anyway.
                logger.debug("no heartbeats for a while: %s", exc)
                # Whoever was not heard because nothing was received is not missing.
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
            logger.info("no heartbeat of %s: looking at the leases", ", ".join(silent))
            self._look()

    def _on_heartbeat(self, event: dict[str, Any]) -> None:
        self._heard[event["hostname"]] = time.monotonic()

    def _on_offline(self, event: dict[str, Any]) -> None:
        self._heard.pop(event["hostname"], None)
        self._look()
