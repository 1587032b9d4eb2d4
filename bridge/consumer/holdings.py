"""The runs that a worker holds (received and not finished), and the newest fence that it saw of each ticket.

This is the worker's half of "one at a time". While its lease holds, no other worker may have the ticket. So the check
needs this process's memory only. A fence that is not newer than the newest one seen means that a Celery message came
twice. That happens in two cases: a server that lost its last second of writes delivers a popped message again, or the
leader sent a run again, with the same fences, since it seemed to be lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum

#: Tickets whose newest fence is remembered after they were finished.
REMEMBERED = 100_000


class Taking(Enum):
    """The decision about a run that arrives."""

    #: Not seen before.
    TAKEN = "taken"
    #: Seen before. Its outcome is written, or will be.
    REFUSED = "refused"
    #: Seen before, and not held now. Without an outcome it was lost in this worker.
    FORGOTTEN = "forgotten"


class Holdings:
    """Used by the main process's event loop and by the thread of the lease.

    While the worker stops, the thread that empties its queue uses it too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()

    def take(self, ticket: str, first: int, last: int, doubt: bool) -> Taking:
        """Takes a run with the fences ``first`` to ``last`` if it is newer than every fence of its ticket seen here.

        The ticket's previous run may still be held, and is no reason to refuse. The leader sends the next run when it
        has read the last outcome. That is often before the pool process has told the main process that it is done.
        ``doubt``: the leader sends the run again, since it seems to be lost.
        """
        with self._lock:
            if first <= self._newest.get(ticket, 0):
                return Taking.FORGOTTEN if doubt and ticket not in self._held else Taking.REFUSED
            self._held[ticket] = first
            self._newest[ticket] = last
            self._newest.move_to_end(ticket)
            if len(self._newest) > REMEMBERED:
                self._newest.popitem(last=False)
            return Taking.TAKEN

    def drop(self, ticket: str, fence: int) -> None:
        """The run is finished, or given back."""
        with self._lock:
            if self._held.get(ticket) == fence:
                del self._held[ticket]

    def forget(self) -> None:
        """The lease ended: nothing is held any more. The thread of the lease calls it."""
        with self._lock:
            self._held = {}

    def report(self) -> list[int]:
        """The first fences of the runs that are held."""
        return list(self._held.copy().values())
