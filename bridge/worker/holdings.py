"""What a worker holds: the runs that it received and has not finished; and the newest fence it saw of each ticket.

This is the local half of "one at a time": while the lease holds, nobody else may have the ticket, so a look into this
process's own memory suffices. A fence that is not newer than what was seen is a Celery message that came twice (a
server that lost its last second gives a popped message out again).
"""

from __future__ import annotations

from collections import OrderedDict

#: Tickets whose newest fence is remembered after they were finished.
REMEMBERED = 100_000


class Holdings:
    """Used by the main process's event loop only, but for `report`, which only reads."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()

    def take(self, ticket: str, fence: int, doubt: bool) -> bool:
        """Whether the run may be taken: its fence is the newest of its ticket, and no older run can be here.

        The leader sends the next run when it has read the last outcome of the one before, which is often sooner than
        the pool process has told the main process that it is done: so a run that is held still does not stand in the
        way, unless the leader is in doubt itself.
        """
        if fence <= self._newest.get(ticket, 0) or (doubt and ticket in self._held):
            return False
        self._held[ticket] = fence
        self._newest[ticket] = fence
        self._newest.move_to_end(ticket)
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)
        return True

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
