"""What an audit remembers about one ticket while it reads the history."""

from __future__ import annotations

from collections import deque

from bridge.routing.ids import IdKey, Place, id_key

#: Before all ids.
NONE: IdKey = (-1, 0)


class Trail:
    """The state of one ticket by its rows so far: its undone messages, and a few numbers."""

    __slots__ = ("fence", "finished_id", "finished_us", "host", "last", "late", "name", "replayed", "undone")

    def __init__(self, name: str) -> None:
        self.name = name
        #: The youngest message that ran to an end.
        self.last: IdKey = NONE
        #: The largest fence of a delivery.
        self.fence = 0
        #: Host and time of the end of the last execution, in Unix us by that host's clock. 0: none yet.
        self.host = ""
        self.finished_us = 0
        self.finished_id = ""
        #: Ids of undone messages in id order. A message that ended stays in it until it is first.
        self.undone: deque[str] = deque()
        #: Replayed undone messages -> a fence. Dispatches with a smaller fence came before the replay.
        self.replayed: dict[str, int] | None = None
        #: Undone messages that were delayed and are due -> their places, and a fence as in `replayed`.
        self.late: dict[str, tuple[Place, int]] | None = None

    def add(self, id_: str, key: IdKey) -> None:
        """Adds an undone message."""
        undone = self.undone
        if not undone or id_key(undone[-1]) < key:
            undone.append(id_)
            return
        # Known from a row only, and older than the entries that were read: almost always the first.
        at = 0
        while id_key(undone[at]) < key:
            at += 1
        if undone[at] != id_:
            undone.insert(at, id_)

    def replay(self, id_: str, bound: int) -> None:
        """Adds a replayed message. Dispatches with a smaller fence than ``bound`` came before the replay."""
        if self.replayed is None:
            self.replayed = {}
        self.replayed[id_] = bound

    def come_late(self, id_: str, place: Place, bound: int) -> None:
        """Adds a message that was delayed, and is due. ``bound``: as in `replay`."""
        if self.late is None:
            self.late = {}
        self.late[id_] = (place, bound)

    def forget_messages(self) -> None:
        """Forgets the messages, because rows are missing. Fences and times stay: they only grow."""
        self.last = NONE
        self.undone.clear()
        self.replayed = None
        self.late = None
