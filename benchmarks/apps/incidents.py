"""The incident log with the demo's fold: by the bridge with its state, or by plain Celery with a lock per incident."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

import bridge
from benchmarks.apps.incidents_names import BRIDGED
from benchmarks.apps.work import URL, configure, counted
from tasks.incidents import fold

bridged = BRIDGED in os.environ
app = configure(Celery("incidents"))
app.set_default()
#: A lock outlives a crash by this many seconds; longer than any task.
TIMEOUT_S = 60
client = redis.Redis.from_url(os.environ[URL], decode_responses=True)

if bridged:
    bridge.install(app)

    @app.task(name="event", bind=True, ignore_result=True, bridge_state=True)
    def by_state(self: Any, ticket_id: str, payload: dict[str, Any]) -> None:
        """Applies an event to the state of its incident."""
        del ticket_id
        state = self.ticket.state
        if int(payload["seq"]) != int(state.get("seq", 0)) + 1:
            raise AssertionError(f"event {payload['seq']} came after event {state.get('seq', 0)}")
        state.update(fold(state, payload))

else:

    @app.task(name="event", ignore_result=True)
    def by_lock(ticket_id: str, payload: dict[str, Any]) -> None:
        """The same, read and written under the lock of its incident. It never fails: order is not its promise."""
        with client.lock(f"lock:{ticket_id}", timeout=TIMEOUT_S):
            state: Any = client.hgetall(f"incident:{ticket_id}")
            late = int(payload["seq"]) != int(state.get("seq", 0)) + 1
            changed: Any = fold(state, payload)
            client.hset(f"incident:{ticket_id}", mapping=changed)
        counted(late=late)
