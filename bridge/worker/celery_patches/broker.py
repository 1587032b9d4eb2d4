"""Keeps a Celery worker alive over broker errors that will pass, and over a pool child that dies while Celery
reconnects.

Celery's consumer reconnects when the connection is lost. But an error *reply* ends the worker, even if the error passes
within a second: a primary that became a replica (UNBLOCKED, READONLY), a full server (OOM), a disk that refuses
snapshots (MISCONF). This module turns such replies into a lost connection, for which Celery reconnects. Celery's own
switch, ``broker_channel_error_retry``, would also retry errors that never pass, such as a missing permission. That one
ends the worker with a line that says which.

Celery waits before it connects again only where it cannot connect. A server that refuses writes is connected at once,
and refuses again. So this module makes the pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from celery.bootsteps import CLOSE, TERMINATE
from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError, ResponseError

from bridge.link.connections import is_outage
from bridge.link.failures import missing_permission
from bridge.routing.errors import TicketBridgeError

#: The pause before a further try, in seconds: it grows by the first, up to the second.
PAUSE_S = 1.0
LONGEST_S = 5.0
#: After so many seconds without an error, the server served.
SERVED_S = 10.0
#: Seconds between two looks, in a pause, whether the worker is to stop.
LOOK_S = 0.2


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
    refused = 0

    def start_or_lose(parent: Any) -> None:
        nonlocal refused
        if not _paused(blueprint, min(LONGEST_S, PAUSE_S * refused)):
            return
        before, refused = refused, 0
        began = time.monotonic()
        try:
            start(parent)
        except (ResponseError, OperationalError) as exc:
            if isinstance(exc, ResponseError) and _will_pass(exc):
                refused = before + 1 if time.monotonic() - began < SERVED_S else 0
                raise Lost(f"the broker cannot serve now: {exc}") from exc
            if (refusal := missing_permission(exc)) is not None:
                end(refusal)
            raise

    blueprint.start = start_or_lose


def _paused(blueprint: Any, seconds: float) -> bool:
    """Waits. Returns False when the consumer was stopped meanwhile. Raises Celery's request to stop the worker."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        maybe_shutdown()
        if blueprint.state in (CLOSE, TERMINATE):
            return False
        time.sleep(min(left, LOOK_S))
    return True


def _will_pass(exc: ResponseError) -> bool:
    # A script that the server does not know is kombu's. It loads it and calls it again, which may fail for the same
    # reason, and loads it at the next connection. The bridge sends its own scripts whole then.
    return is_outage(exc) or isinstance(exc, NoScriptError)
