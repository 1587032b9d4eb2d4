"""How long the leader lets new entries gather when nothing that it reads can start. No I/O.

A lane may be stuck: its tickets are parked, its consumers are full, or there are none. Every message would still wake
it. Then it would work beside the other lanes of its process in the worst moment: they all wake for the same entry of
the stream. So a stuck lane reads at intervals.

Messages start no later for that. What gives a consumer room, or releases a ticket, is an outcome or a notice, and then
the lane reads at once. One message may, where consumers have room: that of a ticket that is free, if it comes behind
`STREAK` messages of tickets that are not. It waits for the end of an interval, which is short then.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.leader.picture.lane import Lane

#: How many messages in a row could not start before the lane counts as stuck.
STREAK = 32
#: The interval, in seconds, while no consumer has room, and while some have: then a free ticket may come at any time.
WITHOUT_ROOM_S = 0.05
WITH_ROOM_S = 0.01


class ReadPause:
    """The pause of one lane."""

    def __init__(self, lane: Lane, has_room: Callable[[], bool]) -> None:
        """``has_room``: whether a consumer has room."""
        self._lane = lane
        self._has_room = has_room
        self._in_a_row = 0

    def seconds(self, count: int, *, moved: bool) -> float:
        """The pause after a step that read ``count`` messages; 0: none. ``moved``: whether it dispatched, delayed or
        ended any.
        """
        has_room = self._has_room()
        if moved or (self._lane.in_flight and has_room):
            self._in_a_row = 0
            return 0.0
        self._in_a_row += count
        if self._in_a_row < STREAK:
            return 0.0
        return WITH_ROOM_S if has_room else WITHOUT_ROOM_S
