"""Leadership of a lane.

Contract:

- Redis is authoritative. The key ``leader`` holds ``<term> <holder>``, or is gone. It expires by Redis's clock.
- Every script that writes for the lane compares that key with the token of the term. A former leader changes nothing,
  however long it slept (invariant I8). The other rules only decide how soon a master notices.
- Each reading of the lane has its own term. A script whose reply was lost may run late, after its sender has read the
  lane again. It has the old term then, and changes nothing. When the reply to a new term was lost, a master looks
  whether the key has a term of its own that it does not know.
- A leader trusts itself until a deadline on its own monotonic clock: the time before it *sent* the renewal, plus the
  leader lease, less a margin. A slow reply does not extend the deadline.
- A standby asks at intervals. It is elected within one leader lease of the leader's death, and at once when the leader
  resigns.
- A step of the server's clock may end the key while its leader leads. Then two masters believe that they lead, until
  the first one renews or runs a script. That is safe, because Redis refuses its scripts. The new leader does not trust
  leases by a clock that was set (`bridge.link.server_clock`). If the clock was set back, the key would hold for longer.
  The next standby that asks cuts it to one leader lease.

One thread of a master process asks and renews for all its lanes (`bridge.master.leads`). It needs one script to renew
them all. Each lane has its own term, token and deadline, which are here.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.link.connections import is_outage
from bridge.routing.leadership import Lead, begin_term, read_token, resign
from bridge.routing.return_codes import text_of

if TYPE_CHECKING:
    from redis import Redis

    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Margin of the leader's own deadline before the key expires, as a share of the leader lease.
MARGIN = 0.05
#: Renewals in one leader lease.
RENEWALS = 4


def answer_s(lease_s: float) -> float:
    """Longest time for the reply to a command that renews a lead or begins a term, in seconds."""
    return max(0.2, lease_s / RENEWALS)


class Election:
    """One master in the election of one lane: what it knows of its lead. ``redis``: may be used by several threads."""

    def __init__(self, redis: Redis, lane: LaneSettings, holder: str) -> None:
        self._redis = redis
        self._lane = lane
        self._holder = holder
        self._token = ""
        self._deadline_s = 0.0
        #: Whether this master gave the lead up. A renewal that was sent before changes nothing then.
        self._over = True
        #: Whether a leader uses this term already.
        self._taken = False
        #: Whether the reply to a new term was lost. It may have begun: then the leader key has another token than this.
        self._unsure = False
        #: Held during a renewal, so that the term changes only between two renewals.
        self.renewing = threading.Lock()

    @property
    def token(self) -> str:
        return self._token

    @property
    def lead(self) -> Lead:
        """What `bridge.routing.leadership.renew` needs."""
        return Lead(self._lane.keys, self._token, self._lane.leader_lease_ms)

    @property
    def is_unsure(self) -> bool:
        """Whether the leader key may have a term of this master that it does not know."""
        return self._unsure

    def leads(self) -> bool:
        """Whether this master may still think that it leads."""
        return not self._over and time.monotonic() < self._deadline_s

    @property
    def is_overdue(self) -> bool:
        """Whether the lead was not renewed in time, and was not given up yet."""
        return not self._over and time.monotonic() >= self._deadline_s

    def elected(self, token: str, sent: float) -> None:
        """This master was elected, by what was sent at ``sent`` (monotonic seconds)."""
        self._token = token
        self._taken = False
        self._unsure = False
        self._over = False
        self.renewed(sent)

    def take_term(self, redis: Redis) -> str:
        """The token for a leader that is about to read the lane.

        Each reading has its own term. A script that the leader before it sent and gave up (a lost reply, a time limit)
        changes nothing then when it arrives late. ``redis``: used where another term has to begin.

        Raises `NotLeading`, redis errors.
        """
        if self._taken:
            self._begin_term(redis)
        self._taken = True
        return self._token

    def _begin_term(self, redis: Redis) -> None:
        with self.renewing:
            self._find_term(redis)
            sent = time.monotonic()
            lease_ms = self._lane.leader_lease_ms
            try:
                self._token = begin_term(redis, self._lane.keys, self._token, self._holder, lease_ms)
            except (RedisError, OSError):
                self._unsure = True
                raise
            self._unsure = False
            self.renewed(sent)

    def _find_term(self, redis: Redis) -> None:
        """Learns whether a term has begun whose reply was lost. Otherwise this master would be deposed by itself, and
        stand by until the leader lease ends.
        """
        if not self._unsure:
            return
        found: Any = redis.get(self._lane.keys.leader)
        if found is None:
            return
        with suppress(ValueError):
            # Another program may have written there.
            if read_token(found).holder == self._holder:
                self._token = text_of(found)

    def renewed(self, sent: float) -> None:
        """The leader lease was renewed by what was sent at ``sent`` (monotonic seconds)."""
        self._deadline_s = sent + self._lane.leader_lease * (1 - MARGIN)

    def forfeit(self) -> None:
        """Ends this master's trust in its lead: another master leads, or may lead."""
        self._over = True

    def resign(self) -> None:
        """Gives the lead up, so that a standby need not wait until the leader lease ends."""
        self._over = True
        try:
            self._find_term(self._redis)
            if not resign(self._redis, self._lane.keys, self._token) and self._unsure:
                # The term may have begun since it looked.
                self._find_term(self._redis)
                resign(self._redis, self._lane.keys, self._token)
        except (RedisError, OSError) as exc:
            if not is_outage(exc):
                raise
            logger.warning("could not resign, the leader lease will expire by itself: %s", exc)
