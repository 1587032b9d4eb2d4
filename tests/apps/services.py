"""An app whose tasks, name, routes and settings depend on each process's environment.

Every task appends ``[number, its own name, its consumer]`` to the ticket's list, with its success.
"""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import bridge

app = Celery(
    os.environ.get("SERVICE_TITLE", "services"),
    broker=os.environ.get("CELERY_BROKER_URL"),
    backend=os.environ.get("CELERY_RESULT_BACKEND"),
)
bridge.install(app)
app.conf.update(
    bridge_lease=2.0,
    bridge_leader_lease=2.0,
    bridge_max_attempts=3,
    bridge_backoff={"base": 0.05, "factor": 2.0, "limit": 1.0},
    task_routes=json.loads(os.environ.get("SERVICE_ROUTES", "{}")),
)
app.conf.update(json.loads(os.environ.get("SERVICE_SETTINGS", "{}")))


def append(self: Any, ticket_id: str, payload: Any) -> str:
    """Records what ran where. Raises until attempt ``payload['until']``."""
    if self.ticket.attempt < payload.get("until", 1):
        raise ValueError(f"attempt {self.ticket.attempt} fails")
    note = json.dumps([payload["n"], self.name, self.request.hostname])
    self.ticket.effects.rpush(f"log:{ticket_id}", note)
    return note


for _name in os.environ.get("SERVICE_TASKS", "service.old").split(","):
    app.task(bind=True, name=_name, **json.loads(os.environ.get("SERVICE_OPTIONS", "{}")))(append)
