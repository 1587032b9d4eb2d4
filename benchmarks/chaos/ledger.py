"""What every peer's task writes while it runs, and its reader: a line when an execution begins, one when it ends.

Each line is one write to a file of the process, so it survives the death of the process. ``benchmarks/peers`` has the
same for Node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.judge import Execution, Message


class Ledger:
    """The writing side, in a process that runs tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1

    def began(self, ticket: int, number: int) -> None:
        """The execution of a message begins."""
        self._write("s", ticket, number)

    def ended(self, ticket: int, number: int) -> None:
        """It ends, and did what it had to do."""
        self._write("e", ticket, number)

    def _write(self, word: str, ticket: int, number: int) -> None:
        if self._pid != os.getpid():
            # Pool processes are forks of the main process: what was open there is not theirs.
            self._pid = os.getpid()
            path = self._folder / f"ledger.{self._pid}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, f"{word} {ticket} {number} {time.monotonic_ns()}\n".encode())


def read(folder: Path) -> list[Execution]:
    """All executions of all processes."""
    found: list[Execution] = []
    for path in folder.glob("ledger.*"):
        found += _of_process(int(path.suffix[1:]), path.read_text(encoding="ascii").splitlines())
    return found


def _of_process(pid: int, lines: list[str]) -> Iterator[Execution]:
    # A process may have several under way at once: those of Node have.
    begun: dict[Message, list[int]] = {}
    for line in lines:
        word, ticket, number, at = line.split()
        message = (int(ticket), int(number))
        if word == "s":
            begun.setdefault(message, []).append(int(at))
        else:
            yield Execution(pid, message, begun[message].pop(0), int(at))
    for message, starts in begun.items():
        for start in starts:
            yield Execution(pid, message, start, None)
