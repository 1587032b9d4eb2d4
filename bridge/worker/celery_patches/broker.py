"""Keeps a Celery worker alive over broker errors that will pass, and over a pool child that dies while Celery
reconnects.

Celery's consumer reconnects when the connection is lost. But an error *reply* ends the worker, even if the error passes
within a second: a primary that became a replica (UNBLOCKED, READONLY), a full server (OOM), a disk that refuses
snapshots (MISCONF). This module turns such replies into a lost connection, for which Celery reconnects. Celery's own
switch, ``broker_channel_error_retry``, would also retry errors that never pass, such as a missing permission.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from bridge.link.connections import is_outage


def ignore_dead_children() -> None:
    """Lets a worker survive a pool child that dies while Celery reconnects.

    After a lost connection Celery's prefork pool tracks all its children again. A child that has just died has no
    sentinel, and Celery would end the worker with an error.
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
            # The child is dead. The pool checks its processes all the time, and will notice that.

    track_if_it_lives.of_ticket_bridge = True  # type: ignore[attr-defined]
    AsynPool._track_child_process = track_if_it_lives


def reconnect_on_outage_replies(consumer: Any) -> None:
    """Makes ``consumer`` (Celery's) treat error replies that will pass as a lost connection."""
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
