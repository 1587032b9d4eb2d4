"""Gives each worker of a process an event loop of its own.

Celery and kombu (5.7) keep one loop for the whole process. So a second worker, which a program or a test started on
another thread, would share the loop of the first one: its timers never fire, each thread handles what the other one
should, and the worker that ends first closes the loop of both.
"""

from __future__ import annotations

from typing import Any

from kombu.asynchronous import Hub, get_event_loop, set_event_loop


def give_own_loop(worker: Any) -> None:
    """Gives ``worker`` (Celery's) a new loop, if another worker has the one that it got. It has not started yet."""
    hub = getattr(worker, "hub", None)
    if hub is None or hub is not get_event_loop() or hub.timer is worker.timer:
        return
    # A transport may need a loop of its own kind.
    worker.hub = set_event_loop((getattr(worker._conninfo, "requires_hub", None) or Hub)(worker.timer))
