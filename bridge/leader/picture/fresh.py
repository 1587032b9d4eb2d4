"""Whether fresh messages come beside a backlog, so that they go before what lies ahead of workers. No I/O.

A message is *fresh* when nothing of its ticket is undone, and the stream has no more unread messages after it. It could
start at once. So it waits for nothing but what lies ahead of it: in a queue of the leader, or in that of a consumer.
While such messages come and are few among all, they go out without room, in parcels that their worker runs before what
waits there. And the lane *hurries*: bundles are smaller, since a fresh message waits for the one that runs, and the
leader's turns are shorter. That costs more for each message. So a lane with nothing but a backlog does not hurry, and
neither does one in which most messages are fresh: there they would only wait for each other, and longer.
"""

from __future__ import annotations

#: Fresh messages count for at least so long, in ms, and for at most twice as long.
WINDOW_MS = 150
#: Fresh messages are few while at most one of so many messages that are sent is fresh.
FEW = 4
#: A lane also hurries while no more fresh messages than this count: a backlog may come at any time.
LITTLE = 100


class Fresh:
    """Counts the fresh messages of a lane, and all that are sent."""

    __slots__ = ("_before", "_until_ms", "are_few", "came", "hurries", "sent")

    def __init__(self) -> None:
        #: Fresh messages that came, and messages that were sent, in the present window of time.
        self.came = 0
        self.sent = 0
        #: The same in the window before.
        self._before = (0, 0)
        self._until_ms = 0
        #: Whether fresh messages come, and few. They take turns with all others then.
        self.are_few = False
        #: Whether the lane hurries.
        self.hurries = False

    def comes(self) -> None:
        """A fresh message came."""
        self.came += 1
        self._judge()

    def look(self, now_ms: int) -> None:
        """The time is ``now_ms``. To be called before each step is planned."""
        if now_ms >= self._until_ms:
            late = now_ms >= self._until_ms + WINDOW_MS
            self._before = (0, 0) if late else (self.came, self.sent)
            self._until_ms = now_ms + WINDOW_MS
            self.came = self.sent = 0
        self._judge()

    def _judge(self) -> None:
        came, sent = self._before
        came += self.came
        self.are_few = 0 < came * FEW <= sent + self.sent
        self.hurries = self.are_few or 0 < came <= LITTLE
