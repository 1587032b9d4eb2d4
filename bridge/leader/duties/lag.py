"""Keeps a lane within ``bridge_max_lag``, so that a subscription that falls behind does not fill the server.

Once a second the leader compares what the lane has undone with the limit. Beyond it, as the setting says:

- ``skip``: the leader reads the oldest unread messages and acknowledges them at once, without a dispatch. Each has a
  row in the history, and is counted as ``skipped``. Those that others overtake until later are delayed.
- ``park``: the leader reads nothing new until masters with a larger limit start. Only unread messages count here:
  those that were read are handled in any case. If they counted, handling them could bring the lane within its limit
  again, or not, by how many it had read. So with its own limit it goes on only after messages were removed by hand.

A delayed message that others overtake does not count until it is due: nobody is late with it. An unread one counts,
since the leader learns that it is delayed when it reads it. What was read before is handled. So the leader reads ahead
at most half of the number; at most half of the bytes (`UNMEASURED` messages before their size is known); and, with an
age, at most what the lane ends within half of it (`READ_COUNT` messages before that is known). With ``skip`` and an
age it reads nothing while the oldest message that it has read is older than half of that. This rule is not for
``park``: one message that runs for long would stop the lane for good.

A ticket that *stands still* is parked, or waits for the end of a backoff. The lane is not late with it, and it must
hurt no other ticket. So its messages that were read do not count, up to the limit by number and bytes: beyond that they
fill the server, as unread ones do. The age of what stands still, or is being retried, is no reason to read nothing.
Messages of a task that no consumer can run, or whose circuit breaker is open, count: all messages of a lane may be
such.

The messages of a ticket that are handled stay in their order. Other lanes are not touched. A lane without a limit asks
for nothing here.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.leader.picture.oldest_undone import oldest_behind
from bridge.leader.stream.reading import READ_COUNT
from bridge.routing.groups import Group, group_in
from bridge.routing.ids import LAST_SEQUENCE, younger_than
from bridge.routing.transitions import survey

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList

logger = get_logger(__name__)

#: Entries that the server looks at to estimate the bytes of the stream.
SAMPLES = 20
#: Messages that are read ahead with a limit of bytes, before any size is known.
UNMEASURED = 16
#: Factor by which the highest rate of ended messages decays at each look.
RATE_KEPT = 0.9
#: Seconds between two log lines about skipped messages.
SAY_S = 10.0
#: Seconds between two looks when the server does not know how many entries are unread, and they are counted.
COUNTED_S = 10.0


class Lag:
    """Watches the lag of one lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, pending: PendingList) -> None:
        self._term = term
        self._lane = lane
        #: Messages that are pending and delayed: nobody is late with them.
        self._delayed = 0
        #: Messages that were read, of tickets that stand still; and most of them that do not count.
        self._standing = 0
        self._most_standing = sys.maxsize
        self._pending = pending
        self._limit = term.settings.max_lag
        #: The oldest unread messages that must be skipped now.
        self.excess = 0
        #: Bytes of a message in the stream, on average, as they were seen last; 0: not known.
        self._size = 0.0
        #: The highest recent rate of ended messages, a second. It decays.
        self._rate = 0.0
        #: Messages that were read since the last look.
        self._read = 0
        #: Messages that were pending at the last look, without the delayed ones.
        self._were_pending = 0
        self._looked_at = time.monotonic()
        #: Most messages that may be pending; None: no limit.
        self._pending_limit = self._most_pending(self._most_undone())
        self._parked = False
        #: Whether tickets that stand still have more messages than the limit.
        self._crowded = False
        #: How many were skipped in this term, and how many of them the log has named.
        self._skipped = self._said = 0
        self._say_at = 0.0
        #: Whether there is more to skip than `excess`, so that the lane is to be compared again at once.
        self.again = False
        self._look_at = 0.0
        #: Whether the oldest message that was read is too old for more to be read.
        self._stale = False

    @property
    def room(self) -> int:
        """How many new entries may be read now."""
        return sys.maxsize if self._pending_limit is None else self._pending_limit - self._undone_read + self._uncounted

    @property
    def open(self) -> bool:
        """Whether new entries may be read."""
        return not self._parked and not self._stale and self.room > 0

    @property
    def _undone_read(self) -> int:
        """How many messages were read and are undone, without the delayed ones."""
        return self._pending.expected - self._delayed

    @property
    def _uncounted(self) -> int:
        """How many of these messages do not count, since their tickets stand still."""
        return min(self._standing, self._most_standing)

    def was_read(self, number: int) -> None:
        """Notes that so many new entries were read, to be handled."""
        self._read += number
        if number and self._limit.bytes is not None and not self._size:
            # Their size can be known now.
            self.look()

    def look(self) -> None:
        """Compares the lane with its limit."""
        self._say()
        if not self._limit or time.monotonic() < self._look_at:
            return
        term, keys = self._term, self._term.keys
        self._delayed = int(term.wire.call("ZCARD", keys.delayed))
        self._measure()
        # A ticket that was parked or retried just now may have some more, until the next look.
        self._standing = sum(ticket.shelved for ticket in self._lane.parked.values()) + self._lane.resting.messages
        try:
            group = group_in(term.wire.call("XINFO", "GROUPS", keys.stream), keys.group)
        except ResponseError:
            group = None
        if group is None:
            # It is repaired first.
            return
        most = self._most_undone()
        self._pending_limit = self._most_pending(most)
        self._stand_within(sys.maxsize if most is None else most)
        parks = self._limit.then == "park"
        over = 0 if most is None else self._unread(group, most) - most
        if most is not None and not parks:
            over += group.pending - self._delayed - self._uncounted
        if self._limit.age is not None:
            over = max(over, self._too_old(group, self._limit.age))
            self._stale = not parks and self._oldest_s() > self._limit.age / 2
        if parks:
            self._park(over > 0)
        else:
            self.excess = max(0, over)

    def took_off(self, number: int, skipped: int) -> None:
        """Notes that so many of the oldest unread entries were read and not taken in, and how many were skipped of
        them. The others are delayed.
        """
        self._skipped += skipped
        self.excess = max(0, self.excess - number) if number else 0

    def _say(self) -> None:
        """Logs how many were skipped. Not while more are to be skipped at once: the number would be too small."""
        if self._skipped > self._said and not self.excess and not self.again and time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + SAY_S
            self._said = self._skipped
            logger.error("the lane is beyond bridge_max_lag: skipped %d messages in this term", self._skipped)

    def _measure(self) -> None:
        """Looks at the size of messages, and at how many the lane ends in a second."""
        now, pending = time.monotonic(), self._undone_read
        ended = self._were_pending + self._read - pending
        self._rate = max(self._rate * RATE_KEPT, ended / max(0.001, now - self._looked_at))
        self._looked_at, self._were_pending, self._read = now, pending, 0
        if self._limit.bytes is not None:
            keys = self._term.keys
            commands = [("XLEN", keys.stream), ("MEMORY", "USAGE", keys.stream, "SAMPLES", SAMPLES)]
            length, used = self._term.wire.call_many(commands)
            if length:
                self._size = used / length

    def _most_undone(self) -> int | None:
        """How many messages may be undone, by number and bytes."""
        limits = [] if self._limit.count is None else [self._limit.count]
        if self._limit.bytes is not None and self._size:
            limits.append(max(1, int(self._limit.bytes / self._size)))
        return min(limits, default=None)

    def _most_pending(self, most: int | None) -> int | None:
        """How many messages may be pending. ``most``: how many may be undone."""
        limits = [] if most is None else [max(1, most // 2)]
        if self._limit.bytes is not None and not self._size:
            limits.append(UNMEASURED)
        if self._limit.age is not None:
            limits.append(max(READ_COUNT, int(self._rate * self._limit.age / 2)))
        return min(limits, default=None)

    def _unread(self, group: Group, most: int) -> int:
        """Messages that the group has not read; beyond ``most`` it may be fewer than there are."""
        unread = group.lag
        if unread is not None and unread > most:
            unread = group.unread(int(self._term.wire.call("XLEN", self._term.keys.stream)))
        if unread is not None:
            return unread
        self._look_at = time.monotonic() + COUNTED_S
        found = 0
        for page in survey(self._term.redis, self._term.keys.stream, *younger_than(group.read_to)):
            found += len(page)
            if found > most:
                break
        return found

    def _too_old(self, group: Group, age_s: float) -> int:
        """The oldest unread messages that are older than ``age_s``; of very many, a part."""
        before_ms = math.floor(self._term.clock.server_ms() - age_s * 1000)
        if before_ms <= 0:
            return 0
        start, end = younger_than(group.read_to, f"{before_ms}-{LAST_SEQUENCE}")
        page = next(survey(self._term.redis, self._term.keys.stream, start, end), [])
        self.again = len(page) >= READ_COUNT
        return len(page)

    def _oldest_s(self) -> float:
        """Age of the oldest message that was read and with which the lane is late, in seconds; 0: there is none."""
        undone = oldest_behind(self._lane)
        return 0.0 if undone is None else (self._term.clock.server_ms() - undone[0]) / 1000

    def _stand_within(self, most: int) -> None:
        """Sets how many messages of tickets that stand still do not count."""
        self._most_standing = most
        beyond = self._standing > most
        if beyond and not self._crowded:
            logger.error("tickets that stand still have more messages than bridge_max_lag: those beyond it count")
        elif self._crowded and not beyond:
            logger.warning("the messages of tickets that stand still are within bridge_max_lag again")
        self._crowded = beyond

    def _park(self, parked: bool) -> None:
        if parked and not self._parked:
            logger.error("the lane is beyond bridge_max_lag: nothing new is read until the limit is raised")
        elif self._parked and not parked:
            logger.warning("the lane is within bridge_max_lag again: new entries are read")
        self._parked = parked
