"""The bridge for the failover figures: a task of 40 ms that notes in Redis when it began, per ticket."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import bridge
from benchmarks.apps.work import configure
from benchmarks.starts import LEASE, STARTS, WORK_S, Start

app = configure(bridge.install(Celery("failing")))
if LEASE in os.environ:
    app.conf.bridge_lease = float(os.environ[LEASE])
    app.conf.bridge_leader_lease = float(os.environ[LEASE])


@app.task(bind=True, ignore_result=True)
def hold(self: Any, ticket_id: str, payload: object) -> None:
    """Says that it runs, and takes its time."""
    del payload
    app.bridge.client.hset(STARTS, ticket_id, Start(time.monotonic(), self.ticket.fence).encode())
    time.sleep(WORK_S)
