"""An app whose tasks accept any payload: it runs the messages that a generator makes."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import bridge

app = Celery("anything", broker=os.environ.get("CELERY_BROKER_URL"), backend=os.environ.get("CELERY_BROKER_URL"))
bridge.install(app)
app.conf.update(
    bridge_default_task="anything.takes",
    bridge_lease=15.0,
    bridge_leader_lease=15.0,
    bridge_max_attempts=2,
    bridge_max_payload=65_536,
    bridge_unknown_after=0.0,
    bridge_backoff={"base": 0.01, "factor": 1.0, "limit": 0.01},
    result_expires=60,
)


@app.task(name="anything.takes", ignore_result=True)
def takes(ticket_id: str, payload: Any) -> None:
    """Succeeds."""


@app.task(name="anything.returns")
def returns(ticket_id: str, payload: Any) -> Any:
    """Has the payload as its result."""
    return payload


@app.task(bind=True, name="anything.records", ignore_result=True)
def records(self: Any, ticket_id: str, payload: Any) -> None:
    """Records effects from the message. Some cannot be recorded, others not applied."""
    effects = self.ticket.effects
    effects.expire(f"any:{ticket_id}", 60)
    if isinstance(payload, dict):
        effects.hset(f"any:{ticket_id}", mapping=payload)
    elif isinstance(payload, list):
        effects.rpush(f"any:{ticket_id}", *payload)
    elif isinstance(payload, int | float):
        effects.incrby(f"any:{ticket_id}", payload)
    else:
        effects.set(f"any:{ticket_id}", payload)


@app.task(bind=True, name="anything.commits")
def commits(self: Any, ticket_id: str, payload: Any) -> Any:
    """The same, and its success is written before its result is stored."""
    self.ticket.effects.append(f"any:{ticket_id}", json.dumps(payload))
    return payload


@app.task(name="anything.raises")
def raises(ticket_id: str, payload: Any) -> None:
    """Fails with an error made from the message."""
    raise ValueError(ticket_id, payload)


@app.task(bind=True, name="anything.asks")
def asks(self: Any, ticket_id: str, payload: Any) -> None:
    """Asks for a retry, after a delay from the message."""
    raise self.retry(countdown=payload if isinstance(payload, float) and payload < 0.01 else 0)


@app.task(name="anything.counts", bind=True, ignore_result=True)
def counts(self: Any, ticket_id: str, payload: Any) -> None:
    """The task of the healthy ticket."""
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
