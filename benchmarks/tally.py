"""Counting executions without slowing them down: each process counts in a small file of its own, mapped into memory.

No peer pays a network call for being counted, and all pay the same: well under a microsecond. Beside the count there
is one file for all processes with the last number that was seen of each ticket, so that a run also tells how many
messages were executed out of their order. Without mutual exclusion (plain Celery) that figure is a lower bound.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

#: Environment variable that names the folder of the files.
FOLDER = "BENCHMARK_TALLY"

_COUNT = struct.Struct("<qq")
_NUMBER = struct.Struct("<q")
_STARTED = struct.Struct("<qq")
#: Tickets whose order is watched; what is not used of the file takes no room.
TICKETS = 1 << 20


def _map(path: Path, size: int) -> mmap.mmap:
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END) < size:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


class Tally:
    """The counting side, in a process that runs tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._done = 0
        self._misplaced = 0
        self._seen = _map(folder / "order", TICKETS * _NUMBER.size)

    def _open(self) -> None:
        # Pool processes are forks of the main process: what was open there is not theirs.
        self._pid = os.getpid()
        self._done = self._misplaced = 0
        self._mine = _map(self._folder / f"count.{self._pid}", _COUNT.size)
        self._starts = os.open(self._folder / f"starts.{self._pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def count(self, ticket: int, number: int) -> None:
        """One execution of message ``number`` (1, 2, …) of ``ticket``."""
        place = ticket * _NUMBER.size
        late = _NUMBER.unpack_from(self._seen, place)[0] != number - 1
        _NUMBER.pack_into(self._seen, place, number)
        self.ran(late=late)

    def ran(self, *, late: bool) -> None:
        """One execution; ``late``: not of the next message of its ticket."""
        if self._pid != os.getpid():
            self._open()
        self._misplaced += late
        self._done += 1
        _COUNT.pack_into(self._mine, 0, self._done, self._misplaced)

    def started(self, number: int, at_ns: int) -> None:
        """Notes when message ``number`` was started, on the monotonic clock that all processes share."""
        if self._pid != os.getpid():
            self._open()
        os.write(self._starts, _STARTED.pack(number, at_ns))


class Reading:
    """The reading side, in the benchmark's own process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: dict[Path, mmap.mmap] = {}

    def done(self) -> int:
        """Executions so far."""
        return sum(done for done, _ in self._read())

    def misplaced(self) -> int:
        """Executions that were not of the next message of their ticket."""
        return sum(misplaced for _, misplaced in self._read())

    def _read(self) -> list[tuple[int, int]]:
        for path in self._folder.glob("count.*"):
            if path not in self._counts and path.stat().st_size == _COUNT.size:
                self._counts[path] = _map(path, _COUNT.size)
        return [_COUNT.unpack_from(found, 0) for found in self._counts.values()]

    def starts(self) -> dict[int, int]:
        """Message number -> when it was started, in ns."""
        found: dict[int, int] = {}
        for path in self._folder.glob("starts.*"):
            raw = path.read_bytes()
            found.update(_STARTED.iter_unpack(raw[: len(raw) // _STARTED.size * _STARTED.size]))
        return found

    def ready(self) -> set[str]:
        """Names of the workers that said that they are ready to receive."""
        return {path.name.removeprefix("ready.") for path in self._folder.glob("ready.*")}
