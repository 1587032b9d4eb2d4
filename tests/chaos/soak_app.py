"""The incident demo's own app and task, under the eyes of the ledger: what the workers of a soak run."""

from __future__ import annotations

import os
from pathlib import Path

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
