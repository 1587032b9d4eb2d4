"""What a worker's main process and its pool children must both see at once: one page of shared memory.

The main process writes the lease (deadline and incarnation) and whether the worker is going; each child writes which
fence it is running. A child therefore checks the lease itself, without asking anybody, even when the main process is
frozen; and when a child dies, the main process knows which message it was running.

The deadline is on the system's monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_SLOT = struct.Struct("<qq")
_FIRST_SLOT = 64
SLOTS = 1024

#: Length of an incarnation id, in characters.
INCARNATION_CHARS = 32


class Shared:
    """The page. Writes are single aligned words or happen before the deadline that makes them matter."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _FIRST_SLOT + SLOTS * _SLOT.size)

    def begin(self, incarnation: str, deadline_s: float) -> None:
        """A new incarnation holds the lease until ``deadline_s`` (monotonic)."""
        # Deadline 0 first: a child must never see the new incarnation with the old deadline, or the reverse.
        struct.pack_into("<d", self._page, 0, 0.0)
        struct.pack_into("<32s", self._page, 16, incarnation.encode())
        struct.pack_into("<d", self._page, 0, deadline_s)

    def extend(self, deadline_s: float) -> None:
        struct.pack_into("<d", self._page, 0, deadline_s)

    def end(self) -> None:
        """The lease is over, or given up: nothing may start."""
        struct.pack_into("<d", self._page, 0, 0.0)

    @property
    def incarnation(self) -> str:
        raw: bytes = struct.unpack_from("<32s", self._page, 16)[0]
        return raw.rstrip(b"\0").decode()

    @property
    def deadline_s(self) -> float:
        value: float = struct.unpack_from("<d", self._page, 0)[0]
        return value

    def holds(self, incarnation: str) -> bool:
        """Whether ``incarnation`` holds the lease right now, as far as this machine may trust it."""
        return time.monotonic() < self.deadline_s and self.incarnation == incarnation

    @property
    def going(self) -> bool:
        """Whether the worker is shutting down: what has not started goes back."""
        return bool(self._page[8])

    @going.setter
    def going(self, value: bool) -> None:
        self._page[8] = int(value)

    def running(self, slot: int, fence: int) -> None:
        """This process runs the message with ``fence``; 0: none."""
        _SLOT.pack_into(self._page, _FIRST_SLOT + slot % SLOTS * _SLOT.size, os.getpid(), fence)

    def fence_of(self, pid: int) -> int:
        """The fence that process ``pid`` ran last, 0 when it was running none."""
        for slot in range(SLOTS):
            owner, fence = _SLOT.unpack_from(self._page, _FIRST_SLOT + slot * _SLOT.size)
            if owner == pid:
                return int(fence)
        return 0

    def running_fences(self) -> set[int]:
        """The fences that run now."""
        slots = (_SLOT.unpack_from(self._page, _FIRST_SLOT + slot * _SLOT.size) for slot in range(SLOTS))
        return {fence for _, fence in slots if fence}

    def busy_pids(self) -> set[int]:
        """The processes that run a message."""
        found = set()
        for slot in range(SLOTS):
            owner, fence = _SLOT.unpack_from(self._page, _FIRST_SLOT + slot * _SLOT.size)
            if fence:
                found.add(owner)
        return found
