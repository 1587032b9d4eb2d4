"""Keeps a Celery worker alive over broker errors that will pass, and over a pool child that dies while Celery
reconnects.

Celery's consumer reconnects when the connection is lost. But an error *reply* ends the worker, even if the error passes
within a second: a primary that became a replica (UNBLOCKED, READONLY), a full server (OOM), a disk that refuses
snapshots (MISCONF). This module turns such replies into a lost connection, for which Celery reconnects. Celery's own
switch, ``broker_channel_error_retry``, would also retry errors that never pass, such as a missing permission. That one
ends the worker with a line that says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from bridge.link.connections import is_outage
from bridge.link.failures import missing_permission
from bridge.routing.errors import TicketBridgeError


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


def take_error_replies(consumer: Any, end: Callable[[TicketBridgeError], NoReturn]) -> None:
    """Makes ``consumer`` (Celery's) treat error replies that will pass as a lost connection.

    ``end`` ends the worker. It is called when the worker's user lacks a permission.
    """
    blueprint = consumer.blueprint
    start = blueprint.start

    def start_or_lose(parent: Any) -> None:
        try:
            start(parent)
        except (ResponseError, OperationalError) as exc:
            if isinstance(exc, ResponseError) and is_outage(exc):
                raise Lost(f"the broker cannot serve now: {exc}") from exc
            if (refused := missing_permission(exc)) is not None:
                end(refused)
            raise

    blueprint.start = start_or_lose
