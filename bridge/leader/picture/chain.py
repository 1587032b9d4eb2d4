"""What the leaders of a chain share: the lanes of one subscription and partition on all versions of a stream.

While a stream is repartitioned, a chain has the older partitions and the new ones that can have tickets in common: each
new one follows each old one, and two old ones, or two new ones, have nothing to do with each other.

One master process leads all lanes of a chain, each on a thread of its own. Their work never overlaps: a leader works
only in its turn (`Place.turn`), and the turns are given in the order in which they were asked for. Between two turns of
a leader its picture agrees with Redis. So the leader of a newer lane can look into the pictures of the older ones, and
the other way round (`Place.defers`):

- A newer lane may dispatch no message of a ticket that an older lane has undone.
- An older lane may dispatch no message of a ticket that a newer lane has in flight.

The pictures do not show entries of an older version that its leader has not read, and runs in flight in a newer lane
that this process does not lead. The script that dispatches finds those (``routing/lua/advance.lua``). A ticket that may
not go out is *deferred* (`bridge.leader.picture.chained_lane`), until the other leader says that something of it ended.

A lane without other versions has no place in a chain, and none of this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.leader.picture.chained_lane import ChainedLane
    from bridge.routing.ids import IdKey
    from bridge.routing.keys import LaneKeys


class Turns:
    """A lock that threads get in the order in which they asked for it. With a plain lock, a busy leader could keep the
    others waiting for ever.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Waits for the turn."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def give(self) -> None:
        """Ends the turn. The next thread has it at once."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class Place:
    """The place of one lane in its chain."""

    def __init__(self, turns: Turns, keys: LaneKeys) -> None:
        self._turns = turns
        self.keys = keys
        #: The places of the older lanes and of the newer ones, oldest first.
        self.older: tuple[Place, ...] = ()
        self.newer: tuple[Place, ...] = ()
        #: The newer lanes that may have messages in flight, also those that only Redis knows of.
        self.newer_keys: tuple[LaneKeys, ...] = ()
        #: The picture of the leader here, and the token of its term; None: there is none, or it does not know yet what
        #: is in flight.
        self.lane: ChainedLane | None = None
        self.token = ""
        #: Whether the stream has entries that the leader has not read, as far as it is known.
        self.unread = True
        #: Whether a step dispatched nothing because the older lanes were not open.
        self.paused = False
        #: Tickets whose messages the script refused for a reason that no picture shows.
        self.refused: set[str] = set()
        #: Id up to which the leader had read at the end of its last turn.
        self._read_to: IdKey = (0, 0)
        #: Tickets of this lane of which something ended in another lane. They are tried again in the next turn.
        self._to_look_at: list[str] = []
        self._wake: Callable[[], None] = lambda: None
        #: Whether the other leaders know that this one has read its lane.
        self._announced = False

    @property
    def open(self) -> bool:
        """Whether the pictures of the older lanes are complete, so that this lane may dispatch."""
        return all(older.lane is not None and not older.lane.behind and not older.unread for older in self.older)

    def older_lanes(self) -> list[tuple[Place, ChainedLane]]:
        """The older places and their pictures. Only for a place that is `open`."""
        return [(older, older.lane) for older in self.older if older.lane is not None]

    def wait_for(self, stream: str) -> None:
        """Dispatches nothing until the leader of an older version has read on."""
        self.paused = True
        for older in self.older:
            older.unread = older.unread or older.keys.stream == stream

    def defers(self, ticket: str) -> bool:
        """Whether the pictures of other lanes say that no message of ``ticket`` may go out here."""
        for older in self.older:
            lane = older.lane
            if lane is not None and (ticket in lane.tickets or ticket in lane.parked):
                return True
        for newer in self.newer:
            lane = newer.lane
            if lane is not None and (there := lane.tickets.get(ticket)) is not None and there.run:
                return True
        return False

    # -- turns -----------------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn of the leader's loop."""
        self._turns.take()
        try:
            self._begin_turn()
            yield
            self._end_turn()
        except BaseException:
            # The picture may be wrong. No other leader may look at it.
            self.lane = None
            raise
        finally:
            self._turns.give()

    def enter(self, lane: ChainedLane, token: str, wake: Callable[[], None]) -> None:
        """A leader begins its term. It calls this in its first turn."""
        self.lane, self.token, self._wake = lane, token, wake
        self.unread, self.paused, self._announced = True, False, False
        self.refused.clear()
        self._to_look_at.clear()

    def leave(self) -> None:
        """The term is over, or the picture may be wrong. The leader calls this outside of its turns."""
        self._turns.take()
        self.lane, self.token, self._wake = None, "", lambda: None
        self._turns.give()

    def look(self) -> None:
        """Tries again what was deferred for a reason that no picture shows. Called at intervals, in a turn."""
        lane = self.lane
        if lane is None:
            return
        self._to_look_at += self.refused
        if any(newer.lane is None for newer in self.newer):
            # This process does not hear when something ends that such a lane had in flight.
            self._to_look_at += lane.deferred
        self._wake()

    def _begin_turn(self) -> None:
        lane = self.lane
        if lane is None or not self._to_look_at:
            return
        ids, self._to_look_at = self._to_look_at, []
        self.refused.difference_update(ids)
        lane.try_again(ids)

    def _end_turn(self) -> None:
        """Tells the other leaders what ended in this turn."""
        lane = self.lane
        if lane is None:
            return
        ended, lane.ended = lane.ended, []
        begins = not self._announced and not lane.behind
        self._announced = self._announced or begins
        has_read = lane.read_to != self._read_to
        self._read_to = lane.read_to
        for other in (*self.older, *self.newer):
            if other.lane is not None:
                other._hear(ended, complete=begins, has_read=has_read)

    def _hear(self, ended: Sequence[str], *, complete: bool, has_read: bool) -> None:
        """Another leader's turn is over. ``ended``: tickets of which something ended in it. ``complete``: it has read
        its lane now. ``has_read``: it has read entries, which its picture shows now.
        """
        lane = self.lane
        assert lane is not None
        found: list[str] = [id_ for id_ in ended if id_ in lane.deferred] if lane.deferred else []
        if complete:
            found += lane.deferred
        if has_read:
            # Not after each turn: two leaders that are refused again and again would wake each other without end.
            found += self.refused
        self._to_look_at += found
        if found or (self.paused and self.open):
            self._wake()


def chain_of(lanes: Sequence[tuple[LaneKeys, Collection[LaneKeys]]]) -> tuple[Place, ...]:
    """The places of a chain with these lanes, oldest first. Each comes with the lanes that it follows."""
    turns = Turns()
    places = tuple(Place(turns, keys) for keys, _ in lanes)
    for place, (_, older) in zip(places, lanes, strict=True):
        place.older = tuple(one for one in places if one.keys in older)
        for one in place.older:
            one.newer += (place,)
    for place in places:
        place.newer_keys = tuple(newer.keys for newer in place.newer)
    return places
