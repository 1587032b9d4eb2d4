"""Celery under chaos, as its documentation advises where nothing may be lost: late acknowledgement, and what a worker
had that died comes back after the visibility timeout. With a lock for each ticket where the environment says so.
"""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.apps.chaos import client, done, effects_key, patience_s, work
from benchmarks.apps.chaos_names import LOCKS
from benchmarks.apps.work import Payload, configure

app = configure(Celery("chaos"))
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {"visibility_timeout": patience_s}


@app.task(name="work", ignore_result=True)
def run(ticket: str, payload: Payload) -> None:
    """Takes its time, and leaves its number."""
    if LOCKS in os.environ:
        with client.lock(f"lock:{ticket}", timeout=patience_s):
            _run(payload)
    else:
        _run(payload)


def _run(payload: Payload) -> None:
    work(payload)
    client.rpush(effects_key(payload), payload["n"])
    done(payload)
