"""The bridge, with its own defaults; the environment says how long a bundle lasts (0: none)."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

import bridge
from benchmarks.apps.work import TASKS, URL, Payload, configure, folded, noop

#: Environment variable with `bridge_bundle_ms`.
BUNDLE_MS = "BENCHMARK_BUNDLE_MS"

#: The same with `bridge_history`, if it is there.
HISTORY = "BENCHMARK_HISTORY"

#: The same with other settings, as JSON.
CONF = "BENCHMARK_CONF"

app = configure(bridge.install(Celery("bridged")))
app.conf.bridge_bundle_ms = float(os.environ[BUNDLE_MS])
if HISTORY in os.environ:
    app.conf.bridge_history = int(os.environ[HISTORY])

app.conf.update(json.loads(os.environ.get(CONF, "{}")))

for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(body)


app.task(name="noop_with_result")(noop)

client = redis.Redis.from_url(os.environ[URL], decode_responses=True)


@app.task(name="fold", bind=True, ignore_result=True, bridge_state=True)
def fold(self: Any, ticket: str, payload: Payload) -> None:
    """Changes the state of its ticket."""
    state = self.ticket.state
    state.update(folded(state, payload))
    noop(ticket, payload)


@app.task(name="fold_by_effects", bind=True, ignore_result=True)
def fold_by_effects(self: Any, ticket: str, payload: Payload) -> None:
    """Reads its ticket's hash by itself, and writes it back with its success."""
    state: dict[str, str] = client.hgetall(f"state:{ticket}")  # type: ignore[assignment]
    self.ticket.effects.hset(f"state:{ticket}", mapping=folded(state, payload))
    noop(ticket, payload)
