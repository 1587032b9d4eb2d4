"""How long the leader may pause between two reads of outcomes. Then it settles more of them in fewer, larger steps.

The pause must end before any worker is idle. The leader asks after every step, and there may be hundreds of consumers.
So this looks only at consumers whose messages in flight changed (`Lane.flight_changed`). It stops as soon as it finds a
consumer that allows no pause.
"""

from __future__ import annotations

from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer

#: Longest pause, in seconds, in which outcomes gather before they are read.
GATHER_S = 0.002
#: Shortest pause, in seconds. A selector sleeps whole milliseconds, so a shorter pause has no effect.
WORTH_S = GATHER_S / 4


class OutcomePause:
    """The pause of one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        #: `Consumer.changes` when all consumers were looked at last.
        self._seen = -1
        #: Consumer that needs work before the longest pause is over -> in how many seconds.
        self._short: dict[Consumer, float] = {}
        #: The last consumer that needed work at once. Most likely it still does.
        self._wanting: Consumer | None = None

    def seconds(self) -> float:
        """The longest pause that leaves no worker idle, in seconds; 0: no useful pause."""
        lane = self._lane
        if self._seen != Consumer.changes:
            # A consumer came, left, or changed its number of slots.
            self._seen = Consumer.changes
            self._short = {}
            self._wanting = None
            lane.flight_changed = dict.fromkeys(lane.consumers.values())
        if self._wanting is not None and _pause_s(self._wanting) < WORTH_S:
            return 0.0
        while lane.flight_changed:
            consumer, _ = lane.flight_changed.popitem()
            pause_s = _pause_s(consumer)
            if pause_s >= GATHER_S:
                self._short.pop(consumer, None)
                continue
            self._short[consumer] = pause_s
            if pause_s < WORTH_S:
                self._wanting = consumer
                return 0.0
        pause_s = min(self._short.values(), default=GATHER_S)
        return pause_s if pause_s >= WORTH_S else 0.0


def _pause_s(consumer: Consumer) -> float:
    if not consumer.tickets:
        return GATHER_S
    slots = consumer.slots
    if consumer.parcels >= 2 * slots:
        # Every pool process has work ahead. The pause may use half of it.
        return consumer.backlog_ms / slots / 2000 / 2
    pause_s = GATHER_S
    for parcel in {ticket.parcel for ticket in consumer.tickets}:
        if parcel is None or parcel.left < 2:
            return 0.0
        pause_s = min(pause_s, (parcel.left - 1) * parcel.share_ms / 2000)
    return pause_s
