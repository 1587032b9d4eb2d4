"""Says for certain whether a process is gone.

The kernel reuses pids, so a pid may belong to another process by now. And a zombie may still have running threads. So a
process is identified by its pid and its start time: the two together never come again while the machine runs.
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
    # The field before the state is the name in parentheses. It may contain spaces and parentheses.
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
    """When process ``pid`` started, in clock ticks since boot; 0 when there is no such process, or no ``/proc``."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0
    return int(fields[19]) if fields else 0


def parent_of(pid: int) -> int:
    """The pid of the parent of process ``pid``; 0 when it has none, or when there is no such process."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0
    return int(fields[1]) if fields else 0


def gone(pid: int, started: int) -> bool:
    """Whether process ``pid``, which started at ``started``, runs no code any more. False when in doubt."""
    fields = _stat(pid)
    if fields is None:
        # Without /proc every process looks gone. So ask the kernel whether the pid is in use at all.
        return not _exists(pid)
    if int(fields[19]) != started:
        return True
    if fields[0] not in _ENDED:
        return False
    # A process whose first thread has ended is a zombie too, even while its other threads run.
    try:
        return len(list((PROC / str(pid) / "task").iterdir())) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def handle_of(pid: int, started: int) -> int | None:
    """A file descriptor of process ``pid`` that started at ``started``. It is readable when the process has ended.

    None: there is no such process, or this system has no such handles.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        held = os.pidfd_open(pid)
    except OSError:
        # The process is gone, or the kernel does not know the call.
        return None
    # Opened before the start time is read: so the pid cannot pass to another process in between.
    if start_time(pid) != started:
        os.close(held)
        return None
    return held


def kill(pid: int, started: int) -> bool:
    """Sends SIGKILL to process ``pid`` if it started at ``started``. Returns whether it did."""
    held = handle_of(pid, started)
    try:
        if held is not None:
            signal.pidfd_send_signal(held, signal.SIGKILL)
        elif start_time(pid) != started:
            return False
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        if held is not None:
            os.close(held)
    return True
