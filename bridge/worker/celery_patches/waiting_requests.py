"""The requests that wait in a prefork worker's main process until a pool process is free, and which of them is next.

The queue of tickets is consumed without a limit, so all that the leader sends ahead waits here. Celery has no public
name for that line: it is the one of kombu's semaphore, which counts the free pool processes.
"""

from __future__ import annotations

from typing import Any


def put_first(semaphore: Any, request: Any) -> None:
    """``request`` was given to Celery last, and goes first: before all that wait, but behind others that go first.

    Changes nothing when it does not wait. ``semaphore``: None in pools that have no such line.
    """
    waiting = getattr(semaphore, "_waiting", None)
    if not waiting or waiting[-1][1][:1] != (request,):
        return
    request.goes_first = True
    entry = waiting.pop()
    at = 0
    while at < len(waiting) and waiting[at][1] and getattr(waiting[at][1][0], "goes_first", False):
        at += 1
    waiting.insert(at, entry)
