"""Keeps a Celery worker alive when its broker answers, but not in order.

Celery's consumer reconnects when the connection is lost. An error *reply* ends the worker, however soon it passes: a
primary that became a replica (UNBLOCKED, READONLY), a full server (OOM), a disk that refuses snapshots (MISCONF). Here
such replies become what Celery reconnects for. Its own switch, ``broker_channel_error_retry``, would also retry
for ever what never passes, such as a missing permission.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from bridge.connect import is_outage


def outlast_outages(consumer: Any) -> None:
    """Makes ``consumer`` (Celery's) take replies that pass by themselves for a lost connection."""
    blueprint = consumer.blueprint
    start = blueprint.start

    def start_or_lose(parent: Any) -> None:
        try:
            start(parent)
        except ResponseError as exc:
            if is_outage(exc):
                raise Lost(f"the broker cannot serve now: {exc}") from exc
            raise

    blueprint.start = start_or_lose
