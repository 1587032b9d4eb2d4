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

from bridge.link.connections import is_outage


def ignore_dead_children() -> None:
    """Keeps Celery's prefork pool from ending the worker when it watches its children anew after a lost connection, and
    one of them has just died: it has no sentinel then, which Celery takes for an error of its own.
    """
    from celery.concurrency.asynpool import AsynPool

    track = AsynPool._track_child_process
    if getattr(track, "of_ticket_bridge", False):
        return

    def track_if_it_lives(pool: Any, process: Any, hub: Any) -> None:
        try:
            track(pool, process, hub)
        except (ValueError, AttributeError):
            if process.exitcode is None and getattr(process, "_sentinel_poll", 0) is not None:
                raise
            # Its end is noticed elsewhere: the pool looks after its processes all the time.

    track_if_it_lives.of_ticket_bridge = True  # type: ignore[attr-defined]
    AsynPool._track_child_process = track_if_it_lives


def reconnect_on_outage_replies(consumer: Any) -> None:
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
