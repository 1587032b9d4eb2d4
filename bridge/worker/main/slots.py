"""How many messages a worker takes at once: as many as its pool, which may grow and shrink while it runs.

With ``--autoscale`` that is the largest pool: Celery grows it by what has arrived, so what fills it must arrive. Of a
pool that was shrunk to nothing it is 0: the worker gets nothing, and gives back what it has, until it grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.shared_page import ROWS


def slots_of(consumer: Any, name: str) -> Callable[[], int]:
    """What answers for the pool of ``consumer`` (Celery's) how many messages it takes now.

    Raises `ConfigurationError` when they are more than the bridge can run.
    """

    def now() -> int:
        scaler = getattr(consumer.controller, "autoscaler", None)
        size = consumer.pool.num_processes if scaler is None else scaler.max_concurrency
        return 1 if size is None else max(0, int(size))

    if now() > ROWS:
        raise ConfigurationError(f"the bridge runs at most {ROWS} messages at once; start {name} with -c {ROWS}")
    return lambda: min(ROWS, now())
