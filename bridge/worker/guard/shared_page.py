"""What a worker's main process, its pool children and its watcher must all see at once: one page of shared memory.

The main process writes the lease (deadline and incarnation), which messages it wants back, and what an operator
revoked; whoever runs messages writes which fence it is running, into a row of its own. A child therefore checks the
lease itself, without asking anybody, even when the main process is frozen; and when a child or the whole worker dies,
whoever is left knows what it was running.

Every number is one aligned word, written in one go: nobody ever sees half of one. The deadline is on a clock that all
processes of one machine share, and that goes on while the machine is suspended, as the server's clock does.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from bridge.consumer.deadline import now_ns
from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.processes import gone, start_time

#: Rows: most messages that one worker may run at the same time, and some for processes that died.
ROWS = 8192

#: Length of an incarnation id, in characters.
INCARNATION_CHARS = 32

#: `Shared.recalled_to` of a worker that is going: newer than every fence.
EVERYTHING = 2**63 - 1

# Words of the page, 8 bytes each.
_DEADLINE, _RECALLED, _LIFE, _USED, _MAIN_PID, _MAIN_START, _REVOKED, _ENDS_NOW = range(8)
_INCARNATION = slice(64, 64 + INCARNATION_CHARS)  # bytes
_FIRST_ROW = 16
_ROW = 5
_PID, _START, _FENCE, _ROW_LIFE, _ASKED = range(_ROW)
#: Revoked ids that the page holds: the newest ones, as many as Celery keeps by default.
REVOKED_MAX = 50_000
_DIGEST = 16  # bytes
_FIRST_REVOKED = 8 * (_FIRST_ROW + ROWS * _ROW)  # bytes
_SIZE = _FIRST_REVOKED + REVOKED_MAX * _DIGEST


@dataclass(frozen=True)
class Row:
    """Who runs what: process, its start time, the fence (0: none), and the life of the worker that it belongs to."""

    pid: int
    started: int
    fence: int
    life: int


class Shared:
    """The page. Made by the main process before its pool forks; `attach` is for a process that got the file."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _memory_file() if fd is None else fd
        page = mmap.mmap(self.fd, _SIZE)
        self._bytes = memoryview(page)
        self._words = self._bytes.cast("q")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: Rows of this process that nobody uses now.
        self._free: list[int] = []
        #: What this process knows of the revoked ids, and how many there were when it looked.
        self._revoked: set[bytes] = set()
        self._revoked_seen = 0
        if fd is None:
            self._words[_MAIN_START] = start_time(self._pid)
            self._words[_MAIN_PID] = self._pid

    @classmethod
    def attach(cls, fd: int) -> Shared:
        """The page behind ``fd``, as another process sees it."""
        return cls(fd)

    # -- the lease -------------------------------------------------------------------------------------------------

    def begin(self, incarnation: str, deadline_ns: int) -> None:
        """A new incarnation holds the lease until ``deadline_ns``."""
        # Deadline 0 first: a child must never see the new incarnation with the old deadline, or the reverse.
        self._words[_DEADLINE] = 0
        self._words[_LIFE] += 1
        self._bytes[_INCARNATION] = incarnation.encode().ljust(INCARNATION_CHARS, b"\0")
        self._words[_DEADLINE] = deadline_ns

    def extend(self, deadline_ns: int) -> None:
        self._words[_DEADLINE] = deadline_ns

    def end(self) -> None:
        """The lease is over, or given up: nothing may start."""
        self._words[_DEADLINE] = 0

    @property
    def incarnation(self) -> str:
        return bytes(self._bytes[_INCARNATION]).rstrip(b"\0").decode()

    @property
    def deadline_ns(self) -> int:
        return self._words[_DEADLINE]

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return (self._words[_DEADLINE] - now_ns()) / 1e9

    def holds(self, incarnation: str) -> bool:
        """Whether ``incarnation`` holds the lease right now, as far as this machine may trust it."""
        return now_ns() < self._words[_DEADLINE] and self.incarnation == incarnation

    # -- what the main process wants back --------------------------------------------------------------------------

    @property
    def recalled_to(self) -> int:
        """A message with this fence or an older one shall not begin any more, but go back."""
        return self._words[_RECALLED]

    @recalled_to.setter
    def recalled_to(self, fence: int) -> None:
        self._words[_RECALLED] = max(fence, self._words[_RECALLED])

    @property
    def ends_now(self) -> bool:
        """Whether the worker was told to end without waiting for what runs (a cold shutdown)."""
        return bool(self._words[_ENDS_NOW])

    def end_now(self) -> None:
        """It was. What it cuts off did not end it, however that comes about."""
        self._words[_ENDS_NOW] = 1

    # -- what an operator revoked ----------------------------------------------------------------------------------

    def revoke(self, ids: Iterable[str]) -> None:
        """Tells whoever runs messages here that these shall not begin. For the main process."""
        self._learn_revoked()
        for id_ in ids:
            digest = _digest(id_)
            if digest not in self._revoked:
                count = self._words[_REVOKED]
                at = _FIRST_REVOKED + count % REVOKED_MAX * _DIGEST
                self._bytes[at : at + _DIGEST] = digest
                self._words[_REVOKED] = count + 1
                self._learn_revoked()

    @property
    def has_revoked(self) -> bool:
        """Whether anything was revoked at all: it costs one look."""
        return self._words[_REVOKED] > 0

    def is_revoked(self, id_: str) -> bool:
        """Whether an operator revoked the message with this id."""
        count = self._words[_REVOKED]
        if not count:
            return False
        if count != self._revoked_seen:
            self._learn_revoked()
        return _digest(id_) in self._revoked

    def _learn_revoked(self) -> None:
        count = self._words[_REVOKED]
        if len(self._revoked) > 2 * REVOKED_MAX:
            # Half of them were written over long ago.
            self._revoked.clear()
            self._revoked_seen = 0
        for n in range(max(self._revoked_seen, count - REVOKED_MAX), count):
            at = _FIRST_REVOKED + n % REVOKED_MAX * _DIGEST
            self._revoked.add(bytes(self._bytes[at : at + _DIGEST]))
        self._revoked_seen = count

    # -- who runs what ---------------------------------------------------------------------------------------------

    def take_row(self) -> int:
        """A row for one line of execution of this process. Raises `ConfigurationError` when all are taken."""
        if self._pid != os.getpid():
            # Forked: what was free belongs to the parent, and its lock may be held for ever.
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._free = []
        with self._lock:
            return self._free.pop() if self._free else self._claim()

    def give_row(self, row: int) -> None:
        """The row is free for another line of execution of this process; what it says stays until then."""
        self._free.append(row)

    def _claim(self) -> int:
        # Processes exclude each other by a lock that ends with its holder.
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            row = self._unclaimed()
            at = _FIRST_ROW + _ROW * row
            self._words[at + _FENCE] = self._words[at + _ASKED] = 0
            self._words[at + _START] = start_time(self._pid)
            self._words[at + _PID] = self._pid
            return row
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def _unclaimed(self) -> int:
        used = self._words[_USED]
        # A dead process's row is kept while it says what it ran; main settles that, see `forget`.
        for row in range(used):
            at = _FIRST_ROW + _ROW * row
            pid, started = self._words[at + _PID], self._words[at + _START]
            if self._words[at + _FENCE] or pid == self._pid or not started or not gone(pid, started):
                continue
            # Looked at again: between the two looks it may have begun something, and died of it.
            if not self._words[at + _FENCE]:
                return row
        if used >= ROWS:
            raise ConfigurationError(f"a worker runs at most {ROWS} messages at once; start it with less concurrency")
        self._words[_USED] = used + 1
        return used

    def running(self, row: int, fence: int) -> None:
        """The line of execution with this row runs the message with ``fence``; 0: none."""
        at = _FIRST_ROW + _ROW * row
        # In this order: whoever sees the fence sees its life.
        self._words[at + _ROW_LIFE] = self._words[_LIFE]
        self._words[at + _FENCE] = fence

    def fence_in(self, row: int) -> int:
        """What the line of execution with this row runs, or ran when it was cut off."""
        return self._words[_FIRST_ROW + _ROW * row + _FENCE]

    @property
    def in_main(self) -> bool:
        """Whether this process is the main process."""
        return self._words[_MAIN_PID] == os.getpid()

    def rows(self) -> Iterator[Row]:
        """All rows that were ever claimed."""
        for row in range(self._words[_USED]):
            at = _FIRST_ROW + _ROW * row
            fence = self._words[at + _FENCE]
            yield Row(self._words[at + _PID], self._words[at + _START], fence, self._words[at + _ROW_LIFE])

    @property
    def main(self) -> tuple[int, int]:
        """Process and start time of the main process."""
        return self._words[_MAIN_PID], self._words[_MAIN_START]

    def row_of(self, pid: int) -> Row | None:
        """The row of pool child ``pid``, or what its end left of it; the busy one, when the number came twice."""
        found = None
        for row in self.rows():
            if row.pid == pid and (found is None or row.fence):
                found = row
        return found

    def forget(self, pid: int) -> None:
        """What pool child ``pid`` ran when it ended is settled."""
        for row, found in enumerate(self.rows()):
            if found.pid == pid and found.fence and gone(pid, found.started):
                self._words[_FIRST_ROW + _ROW * row + _FENCE] = 0

    def asked_to_end(self, row: int) -> None:
        """What the line of execution with this row runs is cut off since its process was asked to end."""
        self._words[_FIRST_ROW + _ROW * row + _ASKED] = 1

    def cut_off(self, first: int, last: int) -> tuple[int, bool]:
        """The fence from ``first`` to ``last`` that a process which is gone was running (0: there is none), and whether
        it was asked to end. Once.

        Celery gives a Celery message to another process when the first one died before it could say that it had begun.
        It may well have begun.
        """
        words = self._words
        if words[_MAIN_PID] == os.getpid():
            # A pool within the main process: nothing of it can be gone while this runs.
            return 0, False
        for row in range(words[_USED]):
            at = _FIRST_ROW + _ROW * row
            fence = words[at + _FENCE]
            if first <= fence <= last and words[at + _PID] != self._pid and gone(words[at + _PID], words[at + _START]):
                words[at + _FENCE] = 0
                return fence, bool(words[at + _ASKED])
        return 0, False

    def running_fences(self) -> set[int]:
        """The fences that run now, or ran when their process ended."""
        return {row.fence for row in self.rows() if row.fence}

    def overdue(self) -> list[Row]:
        """Rows of what runs although its lease is over."""
        ended = now_ns() >= self._words[_DEADLINE]
        return [row for row in self.rows() if row.fence and (ended or row.life != self._words[_LIFE])]


def _digest(id_: str) -> bytes:
    return blake2b(id_.encode(), digest_size=_DIGEST).digest()


def _memory_file() -> int:
    """A file that lives in memory only, and as long as somebody has it open."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ticket-bridge", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd
