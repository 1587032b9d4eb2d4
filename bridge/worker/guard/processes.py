"""Whether a process is gone, for certain: its number may belong to another one by now, and a zombie may still run.

A process is known by its number and its start time; the two together never come again while the machine runs.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

PROC = Path("/proc")

#: What ``/proc/PID/stat`` calls a process that will never run again.
_ENDED = (b"Z", b"X", b"x")


def _stat(pid: int) -> list[bytes] | None:
    """The fields of ``/proc/PID/stat`` from the state on; None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses before, and may hold spaces and parentheses itself.
    return text.rpartition(b")")[2].split()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def start_time(pid: int) -> int:
    """When process ``pid`` started, in clock ticks since the machine did; 0 when there is none, or no ``/proc``."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0
    return int(fields[19]) if fields else 0


def parent_of(pid: int) -> int:
    """The process that ``pid`` is a child of; 0 when there is none, or no such process."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0
    return int(fields[1]) if fields else 0


def gone(pid: int, started: int) -> bool:
    """Whether the process that started at ``started`` runs nothing any more. False when in doubt."""
    fields = _stat(pid)
    if fields is None:
        # On a machine without /proc no process seems to be there; of a number that nobody has, nobody runs.
        return not _exists(pid)
    if int(fields[19]) != started:
        return True
    if fields[0] not in _ENDED:
        return False
    # A process whose first thread has ended is a zombie too, while its other threads run on.
    try:
        return len(list((PROC / str(pid) / "task").iterdir())) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill(pid: int, started: int) -> bool:
    """SIGKILL to the process that started at ``started``, and to no other one; whether it was there."""
    if not hasattr(os, "pidfd_open"):
        if start_time(pid) != started:
            return False
        os.kill(pid, signal.SIGKILL)
        return True
    try:
        # Held first, then looked at: the number cannot become another process's in between.
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(held)
    return True
