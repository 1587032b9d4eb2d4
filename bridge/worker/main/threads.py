"""Starts a thread from within a signal handler."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def run_in_thread(run: Callable[[], None]) -> threading.Event:
    """Runs ``run`` on a daemon thread. The event is set when ``run`` has returned.

    `threading.Thread.start` waits until the thread runs. With gevent a signal handler may be called in the event loop,
    where a wait raises an error, and the rest of the handler would not run.
    """
    over = threading.Event()

    def to_the_end() -> None:
        try:
            run()
        finally:
            over.set()

    _thread.start_new_thread(to_the_end, ())
    return over
