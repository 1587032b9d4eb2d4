"""The demo's own app and task with the ledger added: what the workers of a soak run."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from celery import signals

import tasks.incidents  # noqa: F401 - masters and workers must know the task
from tasks import app
from tests.chaos.recording import watch

app.conf.update(
    bridge_lease=float(os.environ["CHAOS_LEASE"]),
    bridge_leader_lease=float(os.environ["CHAOS_LEADER_LEASE"]),
    bridge_bundle_ms=float(os.environ["CHAOS_BUNDLE_MS"]),
    bridge_max_attempts=int(os.environ["CHAOS_MAX_ATTEMPTS"]),
    bridge_backoff={"base": 0.1, "factor": 2.0, "limit": 2.0},
    # Nobody looks at them here, and they cost as much as the tasks.
    worker_send_task_events=False,
)
watch(Path(os.environ["CHAOS_LEDGER"]))

#: An event's work, on average, and now and then a long one, in seconds: a fault shall find executions to cut off.
WORK_S = float(os.environ["SOAK_WORK_MS"]) / 1000
LONG_S, LONG_SHARE = 0.3, 0.002


@signals.task_prerun.connect(weak=False)
def work(task: Any, **_: Any) -> None:
    """After the ledger has the start: handlers are called in the order in which they were connected."""
    if getattr(task, "ticket", None) is not None:
        time.sleep(LONG_S if random.random() < LONG_SHARE else random.random() * 2 * WORK_S)
