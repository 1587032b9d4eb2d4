"""Ends the tasks that still run in a cold shutdown, and writes their outcomes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated

from bridge.protocol.outcomes import Kind
from bridge.worker.guard.processes import gone, kill

if TYPE_CHECKING:
    from collections.abc import Collection
    from threading import Thread

    from bridge.worker.guard.shared_page import SharedPage

#: Seconds between two checks of processes that are ending.
EXIT_CHECK_S = 0.002
#: Longest wait for the end of a killed process or greenlet, in seconds.
PATIENCE_S = 2.0


def end_running_tasks(
    shared: SharedPage,
    pool: Any,
    requests: Collection[Any],
    waiting_threads: Collection[Thread],
    *,
    forks: bool,
    can_end: bool,
) -> bool:
    """Ends the tasks that still run, and writes their outcomes. False: a task may still run.

    It is called after Celery has ended its pool. What that means depends on the pool:

    - Pool processes have ended. The outcomes of the messages that they were running may not be written yet.
    - Greenlets may still run, and are killed here.
    - Threads cannot be ended.
    """
    main, _ = shared.main
    deadline = time.monotonic() + PATIENCE_S
    if can_end and not forks:
        _end_greenlets(shared, pool, requests, deadline)
    for row in list(shared.rows()):
        if not row.fence:
            continue
        if row.pid == main:
            return False
        kill(row.pid, row.started)
        while not gone(row.pid, row.started):
            if time.monotonic() > deadline:
                return False
            time.sleep(EXIT_CHECK_S)
    for request in list(requests):
        request.lost(Kind.INTERRUPTED, Terminated("the worker was told to end at once"))
    for thread in list(waiting_threads):
        thread.join(timeout=max(0.0, shared.left_s))
    return True


def _end_greenlets(shared: SharedPage, pool: Any, requests: Collection[Any], deadline: float) -> None:
    for request in list(requests):
        if request.worker_pid:
            pool.terminate_job(request.worker_pid)
    # With greenlets, each sleep lets them run, and end.
    while shared.running_fences() and time.monotonic() < deadline:
        time.sleep(EXIT_CHECK_S)
