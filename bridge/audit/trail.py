"""What an audit keeps of one ticket while it reads the history."""

from __future__ import annotations

from collections import deque

from bridge.routing.ids import IdKey, id_key

#: Before all ids.
NONE: IdKey = (-1, 0)


class Trail:
    """How far the rows of a ticket have come. Memory: what is undone of it, and a few numbers."""

    __slots__ = ("fence", "finished_id", "finished_us", "host", "last", "name", "replayed", "undone")

    def __init__(self, name: str) -> None:
        self.name = name
        #: The youngest message that ran to an end.
        self.last: IdKey = NONE
        #: The largest fence of a delivery.
        self.fence = 0
        #: Where and when the last execution ended: a host's name, Unix us by that host's clock; 0: never.
        self.host = ""
        self.finished_us = 0
        self.finished_id = ""
        #: Ids of undone messages in id order. An id that became final in the middle stays until it is first.
        self.undone: deque[str] = deque()
        #: Undone messages that were replayed -> the fence below which everything was dispatched before that.
        self.replayed: dict[str, int] | None = None

    def add(self, id_: str, key: IdKey) -> None:
        """An undone message."""
        undone = self.undone
        if not undone or id_key(undone[-1]) < key:
            undone.append(id_)
            return
        # Known from a row only, and older than the entries that were read: nearly always the first.
        at = 0
        while id_key(undone[at]) < key:
            at += 1
        if undone[at] != id_:
            undone.insert(at, id_)

    def forget_messages(self) -> None:
        """Rows are missing from here on: what was undone may have become anything. Fences and times still grow."""
        self.last = NONE
        self.undone.clear()
        self.replayed = None
