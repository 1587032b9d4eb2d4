"""The ledger of a chaos run: what ran, when and where. The tasks themselves write it into files.

A folder with one file for each pool process. A record is one line, written with one call: what was written is in the
kernel, and stays whatever happens to the process at its next instruction. Nothing of it goes through the bridge or its
server. The lines, JSON arrays::

    ["process", pid, parent, consumer, pool]
    ["start", ticket, fence, at, wall, message id, n, attempt]
    ["step", ticket, fence, at]
    ["end", ticket, fence, at, "done" | "raised"]

``at`` is CLOCK_BOOTTIME in nanoseconds, which all processes of a machine share and which goes on while the machine
sleeps; ``wall`` is Unix time in nanoseconds, for comparison with the server's. A ``step`` says that the execution is
still alive: when it is cut off later, it ended after that.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.facts import Execution

SUFFIX = ".jsonl"


def now_ns() -> int:
    """The ledger's clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LedgerWriter:
    """Appends to one file for each process. After a fork it opens a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1
        self._lock = threading.Lock()

    def start(self, consumer: str, ticket: str, fence: int, message_id: str, n: int, attempt: int) -> None:
        """An execution begins."""
        self._write(consumer, ["start", ticket, fence, now_ns(), time.time_ns(), message_id, n, attempt])

    def step(self, ticket: str, fence: int) -> None:
        """It is still running."""
        self._write("", ["step", ticket, fence, now_ns()])

    def end(self, ticket: str, fence: int, outcome: str) -> None:
        """It ended by itself: ``done`` or ``raised``."""
        self._write("", ["end", ticket, fence, now_ns(), outcome])

    def _write(self, consumer: str, record: list[Any]) -> None:
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._open(consumer)
        os.write(self._file, json.dumps(record).encode() + b"\n")

    def _open(self, consumer: str) -> None:
        pid = os.getpid()
        path = self._folder / f"{pid}-{now_ns()}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        header = ["process", pid, os.getppid(), consumer, os.environ.get("CHAOS_POOL", "")]
        os.write(self._file, json.dumps(header).encode() + b"\n")
        self._pid = pid


class LedgerReader:
    """Reads a ledger, again and again while it grows; each line once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._process: dict[Path, tuple[int, int, str, str]] = {}
        self._open: dict[Path, dict[tuple[str, int], list[Any]]] = {}
        self._executions: list[Execution] = []

    def executions(self) -> list[Execution]:
        """All executions so far, those that did not end among them."""
        self.catch_up()
        unended = [self._made(path, key, data) for path, found in self._open.items() for key, data in found.items()]
        return self._executions + unended

    def running(self) -> set[int]:
        """The processes in which an execution has begun and not ended, as far as the files tell."""
        self.catch_up()
        return {self._process[path][0] for path, found in self._open.items() if found}

    def catch_up(self) -> None:
        """Reads what was written since the last time."""
        for path in self._folder.glob(f"*{SUFFIX}"):
            self._read_on(path)

    def _read_on(self, path: Path) -> None:
        if path.stat().st_size == self._read.get(path, 0):
            return
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        # A last line without its end was being written when its process was killed, or is being written now.
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        running = self._open.setdefault(path, {})
        for line in whole.splitlines():
            kind, *rest = json.loads(line)
            if kind == "process":
                pid, parent, consumer, pool = rest
                self._process[path] = (pid, parent, consumer, pool)
            elif kind == "start":
                ticket, fence, at, *more = rest
                key = (ticket, fence)
                if key in running:  # began twice under one fence: the check shall see both
                    self._executions.append(self._made(path, key, running[key]))
                running[key] = [at, at, None, "", *more]
            else:
                ticket, fence, at, *outcome = rest
                data_of = running[ticket, fence]
                data_of[1] = at
                if kind == "end":
                    data_of[2], data_of[3] = at, outcome[0]
                    self._executions.append(self._made(path, (ticket, fence), running.pop((ticket, fence))))

    def _made(self, path: Path, key: tuple[str, int], data: list[Any]) -> Execution:
        ticket, fence = key
        start, seen, end, outcome, wall, message_id, n, attempt = data
        pid, parent, consumer, pool = self._process[path]
        return Execution(
            ticket, message_id, n, attempt, fence, consumer, pool, pid, parent, start, wall, seen, end, outcome
        )
