"""The peer without order: Celery as it comes. Results are ignored, as the other peers ignore them."""

from __future__ import annotations

import os

import redis
from celery import Celery

from benchmarks.apps.work import TASKS, URL, Payload, configure, folded, noop

app = configure(Celery("plain"))

for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(body)


client = redis.Redis.from_url(os.environ[URL], decode_responses=True)


@app.task(name="fold", ignore_result=True)
def fold(ticket: str, payload: Payload) -> None:
    """Reads its ticket's hash, and writes it back."""
    state: dict[str, str] = client.hgetall(f"state:{ticket}")  # type: ignore[assignment]
    client.hset(f"state:{ticket}", mapping=folded(state, payload))  # type: ignore[arg-type]
    noop(ticket, payload)
