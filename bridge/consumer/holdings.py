"""What a worker holds: the runs that it received and has not finished; and the newest fence it saw of each ticket.

This is the local half of "one at a time": while the lease holds, nobody else may have the ticket, so a look into this
process's own memory suffices. A fence that is not newer than what was seen is a Celery message that came twice: a
server that lost its last second gives a popped message out again, and the leader sends again, with the same fences,
what seems to be lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum

#: Tickets whose newest fence is remembered after they were finished.
REMEMBERED = 100_000


class Taking(Enum):
    """What becomes of a run that arrives."""

    #: It is new here.
    TAKEN = "taken"
    #: It came before: what became of it is told by its outcomes, or will be.
    REFUSED = "refused"
    #: It came before, and is not here any more. Whatever outcomes it had are written: if it has none, it was forgotten.
    FORGOTTEN = "forgotten"


class Holdings:
    """Used by the main process's event loop, and while the worker goes by the thread that empties its queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()

    def take(self, ticket: str, first: int, last: int, doubt: bool) -> Taking:
        """Takes a run with the fences ``first`` to ``last`` if it is newer than all of its ticket that were seen here.

        The leader sends the next run when it has read the last outcome of the one before, which is often sooner than
        the pool process has told the main process that it is done: so a run that is held still does not stand in the
        way. ``doubt``: the leader sends it again, since it seems to be lost.
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
        if self._held.get(ticket) == fence:
            del self._held[ticket]

    def forget(self) -> None:
        """The lease ended: whatever was held is held no more."""
        self._held = {}

    def report(self) -> list[int]:
        """The fences of what is held."""
        return list(self._held.copy().values())
