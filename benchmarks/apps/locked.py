"""The peer with a Redis lock for each ticket, the usual solution: exclusion, no order.

redis-py's own lock with its own defaults: who finds it held tries again every 100 ms, in the pool process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps

import redis
from celery import Celery

from benchmarks.apps.work import TASKS, URL, Payload, configure

#: A lock outlives a crash by this many seconds; longer than any task.
TIMEOUT_S = 60

app = configure(Celery("locked"))
client = redis.Redis.from_url(os.environ[URL])


def locked(body: Callable[[str, Payload], None]) -> Callable[[str, Payload], None]:
    """``body`` under the lock of its ticket."""

    @wraps(body)
    def task(ticket: str, payload: Payload) -> None:
        with client.lock(f"lock:{ticket}", timeout=TIMEOUT_S):
            body(ticket, payload)

    return task


for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(locked(body))
