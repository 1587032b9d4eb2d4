"""The worker of a lane in a test: on a thread of the test's process, and ended alone.

Celery's own starter for tests ends its worker by a switch of the whole process, which ends the workers of other lanes
as well.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from celery._state import _set_task_join_will_block
from celery.contrib.testing.worker import TestWorkController, setup_app_for_worker
from celery.exceptions import WorkerTerminate
from celery.worker import state

#: Seconds that its running tasks have when it ends.
SHUTDOWN_S = 30.0


@contextmanager
def worker_on_thread(app: Any, concurrency: int) -> Iterator[None]:
    """A worker of ``app`` with ``concurrency`` threads, until the block ends. It is ready when the block begins."""
    # Celery asks for the level of its own log.
    level = logging.getLogger().getEffectiveLevel() or logging.WARNING
    setup_app_for_worker(app, level, None)
    worker = TestWorkController(
        app=app,
        pool="threads",
        concurrency=concurrency,
        loglevel=level,
        logfile=None,
        hostname=f"test-{uuid.uuid4().hex[:8]}@localhost",
        # Celery's own, which `ensure_started` needs.
        ready_callback=None,
        without_heartbeat=True,
        without_mingle=True,
        without_gossip=True,
    )
    thread = threading.Thread(target=worker.start, name="bridge-worker", daemon=True)
    thread.start()
    worker.ensure_started()
    _set_task_join_will_block(False)
    try:
        yield
    finally:
        _end(worker, thread)


def _end(worker: Any, thread: threading.Thread) -> None:
    if worker.hub is not None:
        worker.hub.call_soon(_terminate)
        thread.join(SHUTDOWN_S)
    else:
        # A program of greenlets: its workers have no loop, and only the switch ends them.
        state.should_terminate = os.EX_OK
        thread.join(SHUTDOWN_S)
        state.should_terminate = None
    if thread.is_alive():
        raise RuntimeError(f"the worker of the lane did not end within {SHUTDOWN_S:g} s: does a task of it still run?")


def _terminate() -> NoReturn:
    raise WorkerTerminate(os.EX_OK)
