"""An app whose stream has versions: each has a task of its own, which notes in a ledger what it does and when.

``VERSIONS_CONF`` (JSON) changes the settings, so that apps of before and after a deploy are made of the same code.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import bridge

app = Celery("versions", broker=os.environ.get("CELERY_BROKER_URL"), backend=os.environ.get("CELERY_RESULT_BACKEND"))
bridge.install(app)
app.conf.update(
    bridge_default_task="versions.v2",
    bridge_stream="orders:v2",
    bridge_follows=[{"stream": "orders", "task": "versions.v1"}],
    bridge_lease=2.0,
    bridge_leader_lease=2.0,
    bridge_max_attempts=3,
    bridge_backoff={"base": 0.05, "factor": 2.0, "limit": 1.0, "jitter": 0.0},
)
app.conf.update(json.loads(os.environ.get("VERSIONS_CONF", "{}")))


def _note(*fields: Any) -> None:
    path = Path(os.environ["VERSIONS_LEDGER"]) / f"{os.getpid()}.jsonl"
    with path.open("a") as ledger:
        ledger.write(json.dumps([*fields, time.monotonic_ns(), os.getpid()]) + "\n")


def handle(task: Any, version: str, ticket_id: str, payload: Any) -> None:
    """Does what a payload asks for, and notes its begin and its end. With ``gate`` it ends when the ledger's folder has
    a file of that name.
    """
    n, fence = payload["n"], task.ticket.fence
    _note("start", ticket_id, version, n, fence)
    time.sleep(payload.get("ms", 0) / 1000)
    if "gate" in payload:
        gate = Path(os.environ["VERSIONS_LEDGER"]) / payload["gate"]
        while not gate.exists():
            time.sleep(0.01)
    failed = task.ticket.attempt <= payload.get("fail", 0)
    _note("failed" if failed else "end", ticket_id, version, n, fence)
    if failed:
        raise RuntimeError("asked to fail")
    task.ticket.effects.rpush(f"log:{ticket_id}", f"{version}:{n}")


@app.task(bind=True, shared=False, name="versions.v1", ignore_result=True)
def v1(self: Any, ticket_id: str, payload: Any) -> None:
    """The task of the oldest version."""
    handle(self, "v1", ticket_id, payload)


@app.task(bind=True, shared=False, name="versions.v2", ignore_result=True)
def v2(self: Any, ticket_id: str, payload: Any) -> None:
    """The task of the next version."""
    handle(self, "v2", ticket_id, payload)


@app.task(bind=True, shared=False, name="versions.v3", ignore_result=True)
def v3(self: Any, ticket_id: str, payload: Any) -> None:
    """The task of the third version."""
    handle(self, "v3", ticket_id, payload)


@app.task(bind=True, shared=False, name="versions.answer")
def answer(self: Any, ticket_id: str, payload: Any) -> str:
    """A task with a result, for messages of each version that name it."""
    handle(self, "answer", ticket_id, payload)
    return f"{ticket_id} {payload['n']}"
