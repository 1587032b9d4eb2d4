"""For how long no worker will want for work: so long may outcomes gather, and be settled in fewer, larger steps.

It is asked after every step, and there may be hundreds of consumers. So it looks only at those of which something
landed or went out (`Lane.flight_changed`), and at nobody else once it found one that has nothing left to wait with.
"""

from __future__ import annotations

from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer

#: Longest pause, in seconds, in which outcomes gather before they are read.
GATHER_S = 0.002
#: Shortest one: a selector sleeps whole milliseconds, and what is shorter is none.
WORTH_S = GATHER_S / 4


class OutcomePause:
    """Works on one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        #: `Consumer.changes` when all were looked at.
        self._seen = -1
        #: Consumers that want for work before the longest pause is over, and in how many seconds.
        self._short: dict[Consumer, float] = {}
        #: The last one that was found to want for it at once: most likely it still does.
        self._wanting: Consumer | None = None

    def seconds(self) -> float:
        """The pause that nobody will notice, in seconds; 0: none is worth it."""
        lane = self._lane
        if self._seen != Consumer.changes:
            # Somebody came or went, or has another number of slots.
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
        # Every process has something ahead; half of it is left for what follows.
        return consumer.backlog_ms / slots / 2000 / 2
    pause_s = GATHER_S
    for parcel in {ticket.parcel for ticket in consumer.tickets}:
        if parcel is None or parcel.left < 2:
            return 0.0
        pause_s = min(pause_s, (parcel.left - 1) * parcel.share_ms / 2000)
    return pause_s
