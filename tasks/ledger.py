"""Writes the ledger: what ran, when, and in which process. This evidence does not come from the bridge.

Each pool process appends to its own file, with one write for each record. A written record is in the kernel, so it
stays when the process is killed at the next instruction. Celery's signals around every execution write the records, and
the tasks know nothing of it. The end is written before the bridge writes the outcome, so an acknowledged message has an
end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import signals

from bridge.app.task import TicketTask
from bridge.stack.demo.ledger import Kind, Process, Record, file_name


class LedgerWriter:
    """Appends to one file for each process. After a fork it opens a new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = 0
        self._file = -1

    def write(self, kind: Kind, task: TicketTask, arguments: Any) -> None:
        """One record; nothing for a task that was called without the bridge."""
        ticket = task.ticket
        if ticket is None:
            return
        at_ns = time.monotonic_ns()
        pid = os.getpid()
        if pid != self._pid:
            self._open(pid, task.request.hostname, at_ns)
        seq = _seq_of(arguments)
        record = Record(kind, ticket.id, seq, ticket.fence, ticket.attempt, at_ns, pid, ticket.subscription)
        os.write(self._file, record.encode())

    def _open(self, pid: int, hostname: str, at_ns: int) -> None:
        path = self._directory / file_name(pid, at_ns)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pid = pid
        os.write(self._file, Process(pid, os.getppid(), hostname).encode())


def keep_ledger(directory: Path) -> None:
    """Records every execution of this process and its children from now on in ``directory``, which must exist."""
    writer = LedgerWriter(directory)

    def started(task: TicketTask, args: Any, **_: Any) -> None:
        writer.write(Kind.START, task, args)

    def ended(task: TicketTask, args: Any, state: str, **_: Any) -> None:
        writer.write(Kind.DONE if state == "SUCCESS" else Kind.FAILED, task, args)

    signals.task_prerun.connect(started, weak=False)
    signals.task_postrun.connect(ended, weak=False)


def _seq_of(arguments: Any) -> int:
    """The event's number within its ticket: the arguments are (ticket, payload). 0 when it has none."""
    try:
        return int(arguments[1]["seq"])
    except (LookupError, TypeError, ValueError):
        return 0
