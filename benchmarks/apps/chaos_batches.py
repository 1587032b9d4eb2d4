"""celery-batches under chaos: a worker gathers messages, and runs up to ten of them as one task."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery_batches import Batches

from benchmarks.apps.chaos import client, done, effects_key, patience_s, work
from benchmarks.apps.work import configure

app = configure(Celery("chaos"))
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
# It must hold a whole batch for each process.
app.conf.worker_prefetch_multiplier = 10
app.conf.broker_transport_options = {"visibility_timeout": patience_s}


@app.task(name="work", base=Batches, flush_every=10, flush_interval=0.1, ignore_result=True)
def run(requests: list[Any]) -> None:
    """Each takes its time, and leaves its number."""
    for request in requests:
        payload = request.args[1]
        work(payload)
        client.rpush(effects_key(payload), payload["n"])
        done(payload)
