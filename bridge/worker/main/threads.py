"""Starts a thread from within a signal handler."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def run_in_thread(run: Callable[[], None]) -> threading.Event:
    """Runs ``run`` on a thread of its own, which does not keep the process alive; the event says that it returned.

    `threading.Thread.start` waits until the thread runs. With gevent the handler may be called in the event loop
    itself, which must not wait: it raises there, and what was to be done after it is not done.
    """
    over = threading.Event()

    def to_the_end() -> None:
        try:
            run()
        finally:
            over.set()

    _thread.start_new_thread(to_the_end, ())
    return over
