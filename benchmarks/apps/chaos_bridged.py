"""The bridge under chaos, with its own defaults."""

from __future__ import annotations

from typing import Any

from celery import Celery

import bridge
from benchmarks.apps.chaos import done, effects_key, work
from benchmarks.apps.work import Payload, configure

app = configure(bridge.install(Celery("chaos")))


@app.task(name="work", bind=True, ignore_result=True)
def run(self: Any, ticket: str, payload: Payload) -> None:
    """Takes its time, and leaves its number."""
    del ticket
    work(payload)
    self.ticket.effects.rpush(effects_key(payload), payload["n"])
    done(payload)
