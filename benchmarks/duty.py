"""Processes that run only a part of the time, as if each had a slow core of its own.

So a machine with few cores shows how a rate grows with the number of processes: four that run a fifth of the time each,
one after another, need less than one core.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

#: Seconds from one start of a process to its next one. Much shorter than a lease, so that none ends.
PERIOD_S = 0.04


@contextmanager
def duty(processes: Sequence[psutil.Process], part: float) -> Iterator[None]:
    """Lets each process run ``part`` of the time, one after another, from 0 (never) to 1 / their number."""
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(processes, part, over), name="duty")
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def _keep(processes: Sequence[psutil.Process], part: float, over: threading.Event) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    while not over.is_set():
        for process in processes:
            process.send_signal(signal.SIGCONT)
            over.wait(part * PERIOD_S)
            process.send_signal(signal.SIGSTOP)
        over.wait((1 - part * len(processes)) * PERIOD_S)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
