"""How many messages a worker takes at once (its slots): the size of its pool, which may grow and shrink.

With ``--autoscale`` it is the largest size: Celery grows the pool by the number of messages that have arrived, so
enough messages must arrive to fill it. For a pool that was shrunk to nothing it is 0. Then the leader sends nothing,
and the worker gives back what it has, until the pool grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.shared_page import ROWS


def slots_of(consumer: Any, name: str) -> Callable[[], int]:
    """A function that returns how many messages the pool of ``consumer`` (Celery's) takes now.

    Raises `ConfigurationError` when that is more than the bridge can run.
    """

    def now() -> int:
        scaler = getattr(consumer.controller, "autoscaler", None)
        size = consumer.pool.num_processes if scaler is None else scaler.max_concurrency
        return 1 if size is None else max(0, int(size))

    if now() > ROWS:
        raise ConfigurationError(f"the bridge runs at most {ROWS} messages at once; start {name} with -c {ROWS}")
    return lambda: min(ROWS, now())
