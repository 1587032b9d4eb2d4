"""The worker of a lane in a test: on a thread of the test's process, and ended alone.

Celery's own starter for tests ends its worker by a switch of the whole process, which ends the workers of other lanes
as well. It also makes the app the current one of the whole process, and replaces the handlers of its log. Here the app
is the current one on the threads of its worker alone, and the log is the test's.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from celery._state import _set_task_join_will_block
from celery.concurrency.thread import TaskPool
from celery.contrib.testing.worker import TestWorkController
from celery.exceptions import WorkerTerminate
from celery.worker import state

#: Seconds that its running tasks have when it ends.
SHUTDOWN_S = 30.0


class _Worker(TestWorkController):
    """Celery's worker for tests. Celery's own event of its start is also set by a worker that refuses to start."""

    def __init__(self, **options: Any) -> None:
        self.is_ready = False
        #: What ended it.
        self.error: BaseException | None = None
        #: Set when it is ready, and when its thread ends.
        self.is_decided = threading.Event()
        super().__init__(**options)

    def on_consumer_ready(self, consumer: Any) -> None:
        super().on_consumer_ready(consumer)
        self.is_ready = True
        self.is_decided.set()

    def run(self) -> None:
        self.app.set_current()
        try:
            self.start()
        finally:
            self.is_decided.set()

    def stop(self, in_sighandler: bool = False, exitcode: int | None = None) -> None:
        # Celery logs the error that ends a worker, and calls this while it handles it.
        self.error = sys.exception()
        super().stop(in_sighandler, exitcode)


class _Threads(TaskPool):
    """Celery's pool of threads, on which tasks find the app as the current one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # No thread of the first executor has started.
        self.executor = ThreadPoolExecutor(self.limit, initializer=self.app.set_current)


@contextmanager
def worker_on_thread(app: Any, concurrency: int) -> Iterator[None]:
    """A worker of ``app`` with ``concurrency`` threads, until the block ends. It is ready when the block begins.

    Raises `RuntimeError` when it ends before it is ready; the cause is its own error.
    """
    app.finalize()
    worker = _Worker(
        app=app,
        pool=_Threads,
        concurrency=concurrency,
        hostname=f"test-{uuid.uuid4().hex[:8]}@localhost",
        # The worker's own.
        ready_callback=None,
        without_heartbeat=True,
        without_mingle=True,
        without_gossip=True,
    )
    thread = threading.Thread(target=worker.run, name="bridge-worker", daemon=True)
    try:
        thread.start()
        worker.is_decided.wait()
        if not worker.is_ready:
            thread.join()
            raise RuntimeError(f"the worker of the lane did not start: {worker.error}") from worker.error
        _set_task_join_will_block(False)
        yield
    finally:
        try:
            _end(worker, thread)
        finally:
            # A pool sets it for the whole process. Else results could not be waited for after a worker that failed.
            _set_task_join_will_block(False)


def _end(worker: Any, thread: threading.Thread) -> None:
    if not thread.is_alive():
        return
    if worker.hub is not None and worker.is_ready:
        worker.hub.call_soon(_terminate)
        thread.join(SHUTDOWN_S)
    else:
        # Only the switch ends a worker that has no loop, as in a program of greenlets, or whose loop has not begun.
        state.should_terminate = os.EX_OK
        thread.join(SHUTDOWN_S)
        state.should_terminate = None
    if thread.is_alive():
        raise RuntimeError(f"the worker of the lane did not end within {SHUTDOWN_S:g} s: does a task of it still run?")


def _terminate() -> NoReturn:
    raise WorkerTerminate(os.EX_OK)
