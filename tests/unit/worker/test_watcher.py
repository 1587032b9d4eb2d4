"""The watcher knows when the main process has ended, and gives notice only when all processes have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.worker.guard.processes import start_time
from bridge.worker.guard.watcher import ANNOUNCED_END, Watched, _worker_died

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no handles of processes")


class Worker:
    """A process that stands for the main process, and the pipe that its pool processes hold, too."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.main = subprocess.Popen(["sleep", "600"])
        main = self.main.pid, start_time(self.main.pid)
        shared: Any = SimpleNamespace(main=main, incarnation="life1", left_s=600.0)
        self.lanes = [Watched(cast("Any", None), shared, 6.0)]

    def close(self) -> None:
        self.main.kill()
        self.main.wait()
        os.close(self.reading)


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def test_the_end_of_the_main_process_alone_is_not_the_end_of_the_worker(worker: Worker) -> None:
    # Given a main process that was killed, while a pool process holds the pipe
    events: list[str] = []

    def main_ended() -> None:
        events.append("main")
        # Only now the last pool process ends
        os.close(worker.writing)

    worker.main.kill()
    assert _worker_died(worker.reading, worker.lanes, main_ended)
    assert events == ["main"]


def test_an_end_that_was_announced_is_one_although_the_main_process_ends_then(worker: Worker) -> None:
    os.write(worker.writing, ANNOUNCED_END)
    os.close(worker.writing)
    worker.main.kill()
    assert not _worker_died(worker.reading, worker.lanes, lambda: None)
