"""A task whose messages say how each of their deliveries ends. It notes what it did in Redis."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from redis import Redis

import bridge

URL = os.environ.get("CELERY_BROKER_URL")
app = Celery("refusing", broker=URL, backend=URL)
bridge.install(app)
app.conf.update(
    bridge_lease=3.0,
    bridge_leader_lease=2.0,
    bridge_backoff={"base": 0.01, "limit": 0.02, "jitter": 0.0},
    bridge_max_attempts=3,
    # Most of these messages fail on purpose.
    bridge_breaker={"share": 0.0},
    bridge_bundle_ms=float(os.environ.get("REFUSING_BUNDLE_MS", "10")),
    task_send_sent_event=False,
)
redis = Redis.from_url(str(URL), decode_responses=True)


class Broken(Exception):
    """A failure."""


def end(how: str) -> str:
    """Ends a delivery. ``nack`` and ``free`` (uncharged) may have a delay in ms behind them."""
    word, _, ms = how.partition(" ")
    delay = int(ms) / 1000 if ms else None
    if word == "fail":
        raise Broken("on purpose")
    if word == "nack":
        raise bridge.Nack("not yet", delay=delay)
    if word == "free":
        raise bridge.Nack("bank closed", delay=delay, charge=False)
    if word == "drop":
        raise bridge.Drop("the ticket is closed")
    if word == "dead":
        raise bridge.Dead("no such account")
    if word == "reject":
        raise Reject("no", requeue=False)
    return word


def deliver(self: Any, ticket_id: str, payload: dict[str, Any]) -> str:
    """Ends as the payload says: ``ends`` has a word for each delivery."""
    delivery = redis.incr(f"deliveries:{self.ticket.message_id}") - 1
    how = payload["ends"][delivery] if delivery < len(payload["ends"]) else "beyond"
    redis.rpush(f"seen:{ticket_id}", json.dumps([payload["n"], self.ticket.attempt, how]))
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    return end(how)


app.task(bind=True, name="refusing.deliver", ignore_result=True)(deliver)
app.task(bind=True, name="refusing.answer")(deliver)
app.task(
    bind=True, name="refusing.eager", ignore_result=True, autoretry_for=(Exception,), retry_kwargs={"countdown": 0}
)(deliver)


@app.task(bind=True, name="refusing.sleep", ignore_result=True)
def sleep(self: Any, ticket_id: str, payload: float) -> None:
    """Notes that it began, and when it ended."""
    redis.rpush(f"began:{ticket_id}", self.ticket.attempt)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload)
    time.sleep(payload)
    redis.rpush(f"ended:{ticket_id}", self.ticket.attempt)


@app.task(name="refusing.call")
def call(how: str) -> str:
    """Is no message: it is called by `apply_async`."""
    return end(how)
