"""The shared page: memory that a worker's main process, its pool children and its watcher all see.

- The main process writes the lease (deadline and incarnation), the server's time, which messages it recalls, and which
  messages an operator revoked. A child reads the lease here, so it can check it even when the main process is frozen.
- Each thread, greenlet or process that runs messages has a row. There it writes the fence that it is running. When a
  child or the whole worker dies, the others read here what it was running.

Each number has 8 aligned bytes, which are written at once. So no reader sees half of a number. The deadline is on a
clock that all processes of a machine share. That clock goes on while the machine is suspended, as the server's clock
does.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from weakref import finalize

from bridge.consumer.deadline import now_ns
from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.processes import gone, start_time

#: Number of rows: the most messages that one worker may run at the same time. Rows of dead processes count.
ROWS = 8192

#: Length of an incarnation id, in characters.
INCARNATION_CHARS = 32

#: `SharedPage.recalled_to` of a worker that is stopping: newer than every fence.
EVERYTHING = 2**63 - 1

# Words of the page, 8 bytes each.
_DEADLINE, _RECALLED, _INCARNATION_NUMBER, _USED, _MAIN_PID, _MAIN_START, _REVOKED, _ENDS_NOW = range(8)
_INCARNATION = slice(64, 64 + INCARNATION_CHARS)  # bytes
_SERVER_AHEAD, _LEFT = 12, 13
_FIRST_ROW = 16
_ROW = 5
_PID, _START, _FENCE, _ROW_INCARNATION_NUMBER, _ASKED = range(_ROW)
#: How many revoked ids the page holds: the newest ones, as many as Celery keeps by default.
REVOKED_MAX = 50_000
_DIGEST = 16  # bytes
_FIRST_REVOKED = 8 * (_FIRST_ROW + ROWS * _ROW)  # bytes
_SIZE = _FIRST_REVOKED + REVOKED_MAX * _DIGEST


@dataclass(frozen=True)
class Row:
    """One row: a process, its start time, the fence that it runs (0: none), and the number of the incarnation
    under which it runs that fence.
    """

    pid: int
    started: int
    fence: int
    incarnation_number: int


class SharedPage:
    """The page. The main process makes it before its pool forks. The watcher gets the file, and calls `attach`."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _memory_file() if fd is None else fd
        self._page = mmap.mmap(self.fd, _SIZE)
        self._bytes = memoryview(self._page)
        self._numbers = self._bytes.cast("q")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: Rows of this process that are not in use now.
        self._free: list[int] = []
        #: The revoked ids that this process has read, and how many there were when it read them.
        self._revoked: set[bytes] = set()
        self._revoked_seen = 0
        if fd is None:
            # A program may start and stop many workers.
            finalize(self, os.close, self.fd).atexit = False
            self._numbers[_MAIN_START] = start_time(self._pid)
            self._numbers[_MAIN_PID] = self._pid

    @classmethod
    def attach(cls, fd: int) -> SharedPage:
        """The page behind ``fd``, as another process sees it."""
        return cls(fd)

    # -- the lease -------------------------------------------------------------------------------------------------

    def begin(self, incarnation: str, deadline_ns: int) -> None:
        """A new incarnation holds the lease until ``deadline_ns``."""
        # The deadline is 0 in between: a child must never see the new incarnation with the old deadline, or the
        # old incarnation with the new deadline.
        self._numbers[_DEADLINE] = 0
        self._numbers[_INCARNATION_NUMBER] += 1
        self._bytes[_INCARNATION] = _padded(incarnation)
        self._numbers[_DEADLINE] = deadline_ns

    def extend(self, deadline_ns: int) -> None:
        """The lease was renewed, until ``deadline_ns``."""
        self._numbers[_DEADLINE] = deadline_ns

    def end(self) -> None:
        """The lease is over, or given up: nothing may start."""
        self._numbers[_DEADLINE] = 0

    def leave(self) -> None:
        """The worker has left the lane: no lease begins any more."""
        self._numbers[_LEFT] = 1

    @property
    def is_left(self) -> bool:
        """Whether the worker has left the lane for good."""
        return bool(self._numbers[_LEFT])

    def learn_server_time(self, server_ms: float) -> None:
        """The server just said that its time is ``server_ms`` (Unix ms)."""
        self._numbers[_SERVER_AHEAD] = int(server_ms * 1e6) - now_ns()

    @property
    def server_ms(self) -> float:
        """The server's time (Unix ms), as the newest renewal told it. Before that it is this machine's."""
        ahead = self._numbers[_SERVER_AHEAD]
        return (now_ns() + ahead) / 1e6 if ahead else time.time() * 1000

    @property
    def incarnation(self) -> str:
        """The newest incarnation; '' before the first."""
        return bytes(self._bytes[_INCARNATION]).rstrip(b"\0").decode()

    @property
    def deadline_ns(self) -> int:
        """The deadline, by the clock of `now_ns`; 0 when the lease is over."""
        return self._numbers[_DEADLINE]

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return (self._numbers[_DEADLINE] - now_ns()) / 1e9

    def holds(self, incarnation: str) -> bool:
        """Whether ``incarnation`` holds the lease right now, as far as this machine may trust it."""
        return now_ns() < self._numbers[_DEADLINE] and self._page[_INCARNATION] == _padded(incarnation)

    # -- what the main process recalls -----------------------------------------------------------------------------

    @property
    def recalled_to(self) -> int:
        """A message with this fence or an older one must not start any more: it goes back to the leader."""
        return self._numbers[_RECALLED]

    @recalled_to.setter
    def recalled_to(self, fence: int) -> None:
        self._numbers[_RECALLED] = max(fence, self._numbers[_RECALLED])

    @property
    def ends_now(self) -> bool:
        """Whether the worker is in a cold shutdown: it ends without waiting for running tasks."""
        return bool(self._numbers[_ENDS_NOW])

    def end_now(self) -> None:
        """A cold shutdown began. The messages that it cuts off are not to blame for the worker's end."""
        self._numbers[_ENDS_NOW] = 1

    # -- what an operator revoked ----------------------------------------------------------------------------------

    def revoke(self, ids: Iterable[Any]) -> None:
        """Notes that the messages ``ids`` must not start. Only the main process calls this.

        Celery takes anything as an id, and keeps it over a restart. One that is no text is the id of no message.
        """
        self._learn_revoked()
        for id_ in ids:
            if not isinstance(id_, str):
                continue
            digest = _digest(id_)
            if digest not in self._revoked:
                count = self._numbers[_REVOKED]
                at = _FIRST_REVOKED + count % REVOKED_MAX * _DIGEST
                self._bytes[at : at + _DIGEST] = digest
                self._numbers[_REVOKED] = count + 1
                self._learn_revoked()

    def is_revoked(self, id_: str) -> bool:
        """Whether an operator revoked the message with this id."""
        count = self._numbers[_REVOKED]
        if not count:
            return False
        if count != self._revoked_seen:
            self._learn_revoked()
        return _digest(id_) in self._revoked

    def _learn_revoked(self) -> None:
        count = self._numbers[_REVOKED]
        if len(self._revoked) > 2 * REVOKED_MAX:
            # The page has overwritten half of them long ago.
            self._revoked.clear()
            self._revoked_seen = 0
        for n in range(max(self._revoked_seen, count - REVOKED_MAX), count):
            at = _FIRST_REVOKED + n % REVOKED_MAX * _DIGEST
            self._revoked.add(bytes(self._bytes[at : at + _DIGEST]))
        self._revoked_seen = count

    # -- rows: which process runs which fence ----------------------------------------------------------------------

    def take_row(self) -> int:
        """A row for one thread or greenlet of this process. Raises `ConfigurationError` when all are taken."""
        if self._pid != os.getpid():
            # This process was forked. The free rows belong to the parent, and its lock may never be released here.
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._free = []
        with self._lock:
            return self._free.pop() if self._free else self._claim()

    def give_row(self, row: int) -> None:
        """The row is free for another thread or greenlet of this process. Its content stays until then."""
        self._free.append(row)

    def _claim(self) -> int:
        # A file lock excludes the other processes. The kernel releases it if its holder dies.
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            row = self._unclaimed()
            at = _FIRST_ROW + _ROW * row
            self._numbers[at + _FENCE] = self._numbers[at + _ASKED] = 0
            self._numbers[at + _START] = start_time(self._pid)
            self._numbers[at + _PID] = self._pid
            return row
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def _unclaimed(self) -> int:
        used = self._numbers[_USED]
        # The row of a dead process is kept while it has a fence. The main process clears it, see `forget`.
        for row in range(used):
            at = _FIRST_ROW + _ROW * row
            pid, started = self._numbers[at + _PID], self._numbers[at + _START]
            if self._numbers[at + _FENCE] or pid == self._pid or not started or not gone(pid, started):
                continue
            # Read the fence again: the process may have started a message after the first read, and died then.
            if not self._numbers[at + _FENCE]:
                return row
        if used >= ROWS:
            raise ConfigurationError(f"a worker runs at most {ROWS} messages at once; start it with less concurrency")
        self._numbers[_USED] = used + 1
        return used

    def note_running(self, row: int, fence: int) -> None:
        """Notes that the owner of ``row`` runs the message with ``fence``; 0: none."""
        at = _FIRST_ROW + _ROW * row
        # In this order, so that a reader that sees the fence also sees the number of its incarnation.
        self._numbers[at + _ROW_INCARNATION_NUMBER] = self._numbers[_INCARNATION_NUMBER]
        self._numbers[at + _FENCE] = fence

    def fence_in(self, row: int) -> int:
        """The fence that the owner of ``row`` runs, or ran when it was cut off; 0: none."""
        return self._numbers[_FIRST_ROW + _ROW * row + _FENCE]

    @property
    def in_main(self) -> bool:
        """Whether this process is the main process."""
        return self._numbers[_MAIN_PID] == os.getpid()

    def rows(self) -> Iterator[Row]:
        """All rows that were ever taken."""
        for row in range(self._numbers[_USED]):
            at = _FIRST_ROW + _ROW * row
            fence = self._numbers[at + _FENCE]
            yield Row(
                self._numbers[at + _PID], self._numbers[at + _START], fence, self._numbers[at + _ROW_INCARNATION_NUMBER]
            )

    @property
    def main(self) -> tuple[int, int]:
        """Pid and start time of the main process."""
        return self._numbers[_MAIN_PID], self._numbers[_MAIN_START]

    def row_of(self, pid: int) -> Row | None:
        """The row of pool child ``pid``, alive or dead. If several processes had this pid: the row with a fence."""
        found = None
        for row in self.rows():
            if row.pid == pid and (found is None or row.fence):
                found = row
        return found

    def forget(self, pid: int) -> None:
        """Clears the fences of the dead pool child ``pid``: their outcomes are written."""
        for row, found in enumerate(self.rows()):
            if found.pid == pid and found.fence and gone(pid, found.started):
                self._numbers[_FIRST_ROW + _ROW * row + _FENCE] = 0

    def asked_to_end(self, row: int) -> None:
        """The owner of ``row`` is cut off since its process was asked to end, not since the message crashed it."""
        self._numbers[_FIRST_ROW + _ROW * row + _ASKED] = 1

    def cut_off(self, first: int, last: int) -> tuple[int, bool]:
        """Finds a fence from ``first`` to ``last`` that a dead process was running, and clears it.

        Returns the fence (0: there is none), and whether the process was asked to end. This closes a race: when a pool
        process dies before it has told Celery that it accepted a message, Celery gives the message to another process.
        But the first process may have started it.
        """
        numbers = self._numbers
        if numbers[_MAIN_PID] == os.getpid():
            # The tasks run in the main process. It is alive, since it runs this.
            return 0, False
        for row in range(numbers[_USED]):
            at = _FIRST_ROW + _ROW * row
            fence = numbers[at + _FENCE]
            pid, started = numbers[at + _PID], numbers[at + _START]
            if first <= fence <= last and pid != self._pid and gone(pid, started):
                numbers[at + _FENCE] = 0
                return fence, bool(numbers[at + _ASKED])
        return 0, False

    def left_running(self) -> dict[int, int]:
        """Fence -> pid, of each dead pool process that was running one when it ended."""
        main, _ = self.main
        # What runs in the main process needs no look: it is alive.
        rows = (row for row in self.rows() if row.fence and row.pid != main)
        return {row.fence: row.pid for row in rows if gone(row.pid, row.started)}

    def running_fences(self) -> set[int]:
        """The fences of all rows: they run now, or ran when their process ended."""
        return {row.fence for row in self.rows() if row.fence}

    def overdue(self) -> list[Row]:
        """The rows with a fence whose lease is over."""
        ended = now_ns() >= self._numbers[_DEADLINE]
        return [
            row
            for row in self.rows()
            if row.fence and (ended or row.incarnation_number != self._numbers[_INCARNATION_NUMBER])
        ]


@lru_cache(maxsize=16)
def _padded(incarnation: str) -> bytes:
    return incarnation.encode().ljust(INCARNATION_CHARS, b"\0")


def _digest(id_: str) -> bytes:
    return blake2b(id_.encode(errors="surrogatepass"), digest_size=_DIGEST).digest()


def _memory_file() -> int:
    """A file in memory. It lives as long as a process has it open."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ticket-bridge", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd
