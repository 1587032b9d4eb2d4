"""Leadership of a lane.

Contract:

- Redis is authoritative. The key ``leader`` holds ``<term> <holder>``, or is gone. It expires by Redis's clock.
- Every script that writes for the lane compares that key with the token of the term. A former leader changes nothing,
  however long it slept (invariant I8). The other rules only decide how soon a master notices.
- Each reading of the lane has its own term. A script whose reply was lost may run late, after its sender has read the
  lane again. It has the old term then, and changes nothing.
- A leader trusts itself until a deadline on its own monotonic clock: the time before it *sent* the renewal, plus the
  leader lease, less a margin. A slow reply does not extend the deadline.
- A standby asks at intervals. It is elected within one leader lease of the leader's death, and at once when the leader
  resigns.
- A step of the server's clock may end the key while its leader leads. Then two masters believe that they lead, until
  the
  first one renews or runs a script. That is safe, because Redis refuses its scripts. The new leader does not trust
  leases by a clock that was set (`bridge.link.server_clock`). If the clock was set back, the key would hold for longer.
  The next standby that asks cuts it to one leader lease.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from bridge.link.connections import client, is_outage
from bridge.link.health import Health
from bridge.link.outage import Outage
from bridge.link.server_clock import ServerClock
from bridge.routing.leadership import begin_term, lead, read_token, renew, resign

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Renewals in one leader lease.
RENEWALS = 4
#: Margin of the leader's own deadline before the key expires, as a share of the leader lease.
MARGIN = 0.05
#: Seconds between two questions of a standby.
ASK_S = 0.25
#: Seconds between two tries while the server is away.
RETRY_S = 0.1


class Election:
    """Stands for election in one lane, and keeps the lead.

    ``url``: the lane's server. ``outage``: records that the server is away. ``health``: records that this master is
    alive. ``clock``: a standby compares it with the server's clock each time it asks.
    """

    def __init__(
        self,
        url: str,
        lane: LaneSettings,
        holder: str,
        outage: Outage | None = None,
        health: Health | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self._lane = lane
        self._holder = holder
        self._clock = clock or ServerClock(lane.lease)
        self._outage = outage or Outage(logger, "waiting for it")
        self._health = health or Health(None)
        self._redis = client(url, timeout_s=max(0.2, lane.leader_lease / RENEWALS))
        self._token = ""
        self._deadline_s = 0.0
        self._stop = threading.Event()
        #: Whether a leader uses this term already.
        self._taken = False
        #: Held during a renewal, so that the term changes only between two renewals.
        self._renewing = threading.Lock()

    @property
    def token(self) -> str:
        return self._token

    def leads(self) -> bool:
        """Whether this master may still think that it leads."""
        return time.monotonic() < self._deadline_s

    def stop(self) -> None:
        """Ends `campaign` and the renewals; safe in a signal handler."""
        self._stop.set()

    def campaign(self) -> bool:
        """Waits until this master is elected, even while the server is away. False: `stop` was called first.

        Raises redis errors that do not pass by themselves.
        """
        announced = ""
        while not self._stop.is_set():
            self._health.turn()
            try:
                # So that a new leader knows whether the server's clock was set before.
                self._clock.compare(self._redis)
                sent = time.monotonic()
                elected, token, left_ms = lead(self._redis, self._lane.keys, self._holder, self._lane.leader_lease_ms)
            except (RedisError, OSError) as exc:
                if not is_outage(exc):
                    raise
                self._outage.met(exc)
                self._stop.wait(RETRY_S)
                continue
            if elected:
                # The leader reports the end of the outage when it has read the lane.
                self._token = token
                self._taken = False
                self._deadline_s = self._deadline(sent)
                return True
            self._outage.over()
            if token != announced:
                announced = token
                logger.info("standing by: %s leads", read_token(token).holder)
            self._stop.wait(min(ASK_S, max(0.01, left_ms / 1000)))
        return False

    def take_term(self) -> str:
        """The token for a leader that is about to read the lane.

        Each reading has its own term. A script that the leader before it sent and gave up (a lost reply, a time limit)
        changes nothing then when it arrives late.

        Raises `NotLeading`, redis errors.
        """
        if self._taken:
            self._begin_term()
        self._taken = True
        return self._token

    def _begin_term(self) -> None:
        with self._renewing:
            sent = time.monotonic()
            lease_ms = self._lane.leader_lease_ms
            self._token = begin_term(self._redis, self._lane.keys, self._token, self._holder, lease_ms)
            self._deadline_s = self._deadline(sent)

    def keep(self, lost: threading.Event) -> threading.Thread:
        """Renews the lead on its own thread until the lead is over. Sets ``lost`` then."""
        # With the name of the lane's thread, which log lines show.
        name = threading.current_thread().name
        thread = threading.Thread(target=self._keep, args=(lost,), name=name, daemon=True)
        thread.start()
        return thread

    def forfeit(self) -> None:
        """Ends this master's trust in its lead: a script found that another master leads."""
        self._deadline_s = 0.0

    def resign(self) -> None:
        """Gives the lead up, so that a standby need not wait until the leader lease ends."""
        self._deadline_s = 0.0
        try:
            resign(self._redis, self._lane.keys, self._token)
        except (RedisError, OSError) as exc:
            if not is_outage(exc):
                raise
            logger.warning("could not resign, the leader lease will expire by itself: %s", exc)

    def _keep(self, lost: threading.Event) -> None:
        wait = self._lane.leader_lease / RENEWALS
        while not lost.wait(wait) and not self._stop.is_set():
            sent = time.monotonic()
            try:
                with self._renewing:
                    sent = time.monotonic()
                    renewed = renew(self._redis, self._lane.keys, self._token, self._lane.leader_lease_ms)
            except Exception as exc:
                # Any error: the deadline stays, and after it this master does not lead. The leader meets an outage
                # too, and reports it.
                if is_outage(exc):
                    pass
                elif isinstance(exc, ResponseError):
                    logger.error("cannot renew the lead: %s", exc)
                else:
                    logger.exception("cannot renew the lead")
                self._outage.noted()
                if self.leads():
                    wait = RETRY_S
                    continue
                logger.warning("the lead is over, it could not be renewed in time: %s", exc)
                renewed = False
            if not renewed:
                self._deadline_s = 0.0
                lost.set()
                return
            self._deadline_s = self._deadline(sent)
            wait = self._lane.leader_lease / RENEWALS

    def _deadline(self, sent: float) -> float:
        return sent + self._lane.leader_lease * (1 - MARGIN)
