"""An app with several logical consumers of its stream: accounts, a search index, and a trail of everything.

Each execution appends ``n`` to the list ``<subscription>:<ticket>``, by its effects.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

import bridge

app = Celery("subscribers", broker=os.environ.get("CELERY_BROKER_URL"), backend=os.environ.get("CELERY_RESULT_BACKEND"))
bridge.install(app)
app.conf.update(
    bridge_subscriptions={
        "billing": {
            "task": "billing.apply",
            "max_attempts": 2,
            "backoff": {"base": 0.05, "factor": 2.0, "limit": 1.0},
        },
        "search": {"task": "search.index", "filter": {"kind": ["created", "changed"]}},
        "trail": {},
    },
    bridge_lease=2.0,
    bridge_leader_lease=2.0,
    # Too long for a test: a subscription that fails has its own.
    bridge_backoff={"base": 600.0, "limit": 600.0},
)
app.conf.update(json.loads(os.environ.get("SUBSCRIBERS_CONF", "{}")))
if rest_s := os.environ.get("SUBSCRIBERS_REST_S"):
    # How long a lane is at rest before it sleeps: tests wait for that again and again.
    from bridge.leader import leader

    leader.REST_S = float(rest_s)


def append(task: Any, ticket_id: str, payload: Any) -> None:
    """Does what a payload asks for, then appends its number."""
    here = task.ticket.subscription
    asked = payload.get(here, {})
    time.sleep(asked.get("ms", 0) / 1000)
    if task.ticket.attempt <= asked.get("fail", 0):
        raise RuntimeError(f"{here} was asked to fail")
    task.ticket.effects.rpush(f"{here}:{ticket_id}", payload["n"])


@app.task(bind=True, shared=False, name="billing.apply")
def apply(self: Any, ticket_id: str, payload: Any) -> str:
    """The default task of ``billing``."""
    append(self, ticket_id, payload)
    return f"billed {payload['n']}"


@app.task(bind=True, shared=False, name="billing.refund", bridge_subscription="billing", ignore_result=True)
def refund(self: Any, ticket_id: str, payload: Any) -> None:
    """A second task of ``billing``."""
    append(self, ticket_id, {**payload, "n": -payload["n"]})


@app.task(bind=True, shared=False, name="search.index")
def index(self: Any, ticket_id: str, payload: Any) -> str:
    """The default task of ``search``."""
    append(self, ticket_id, payload)
    return f"indexed {payload['n']}"


@app.task(bind=True, shared=False, name="trail.note", bridge_subscription="trail", ignore_result=True)
def note(self: Any, ticket_id: str, payload: Any) -> None:
    """The only task of ``trail``, which has no default task: only what names it comes here."""
    append(self, ticket_id, payload)
