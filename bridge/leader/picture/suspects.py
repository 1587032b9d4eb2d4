"""Suspects: messages that may have ended their consumers. Each goes out alone, to a consumer that has no other work.
If that consumer ends too, the message is to blame.

A suspect occupies a whole consumer, from the moment when the consumer is being emptied until the message has run. While
other work waits, all suspects together may use a quarter of the lane (`SUSPECTS_SHARE`). With four or more consumers,
every fourth one may serve suspects at a time. With fewer, one consumer may; after that the lane pauses suspects, so
that the share stays at a quarter. The other suspects wait.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from bridge.leader.picture.flight import SUSPECTS_SHARE
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket

#: Most suspects that one step looks at.
LOOKED_AT = 64


class Isolation:
    """Gives suspects consumers of their own, in the planner's lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def run(self, now_ms: int, send: Callable[[Consumer, Ticket], None]) -> None:
        """Calls ``send`` for each suspect that can go out now, and keeps consumers empty for the next ones.

        To be called after the other work was planned: work that still waits has no room.
        """
        lane = self._lane
        for consumer in lane.consumers.values():
            if consumer.alone is not None and not consumer.alone.run and not consumer.serving:
                lane.end_solitude(consumer)
        taken = [consumer for consumer in lane.consumers.values() if consumer.alone is not None]
        kept_for = {consumer.alone for consumer in taken}
        full: set[str] = set()
        for ticket in list(islice(lane.suspects, LOOKED_AT)):
            if ticket in kept_for:
                continue
            if not self._may_begin(now_ms):
                break
            task = ticket.waiting[0].task
            own = None if task in full else self._choose(task)
            if own is None:
                full.add(task)
                continue
            own.alone = ticket
            own.alone_since = now_ms
            lane.free_ready(own)
            taken.append(own)
        for consumer in taken:
            suspect = consumer.alone
            if suspect is not None and not (suspect.run or consumer.parcels or consumer.doubted):
                lane.suspects.remove(suspect)
                lane.left_queue(suspect)
                send(consumer, suspect)

    def _choose(self, task: str) -> Consumer | None:
        """The consumer that a suspect of ``task`` gets for itself: an idle one, or the one that is idle soonest."""
        able = [c for c in self._lane.consumers.values() if c.serving and c.runs(task)]
        if sum(1 for c in able if c.alone is not None) >= max(1, len(able) // SUSPECTS_SHARE):
            return None
        return min((c for c in able if c.open), key=lambda c: (c.parcels > 0, len(c.ready), c.load), default=None)

    def _may_begin(self, now_ms: int) -> bool:
        lane = self._lane
        return now_ms >= lane.rest_until or not (lane.ready or any(c.ready for c in lane.crowded))
