"""Leadership of a lane.

Contract:

- Redis is authoritative: the key ``leader`` holds ``<term> <holder>``, or is gone. Its expiry runs on Redis's clock.
- Every script that writes for the lane compares that key with the token of the term: whoever leads no more changes
  nothing, however long it slept (invariant I8). All that follows only decides how soon a master notices.
- Each reading of the lane has a term of its own. A script whose reply was lost may still run when its sender has read
  the lane anew; with the old term it changes nothing.
- A leader trusts itself until a deadline on its own monotonic clock: the moment before the renewal was *sent*, plus
  the lease, less a margin. A slow reply does not extend it.
- A standby asks again and again; it is elected within one lease of the leader's death, and at once when it resigned.
- A step of the server's clock may end the key while its leader leads: then two think that they do, until the first
  one's next renewal or script. That is safe, since whatever it sends is refused; who takes over judges no worker's
  lease by a clock that was set (`bridge.link.server_clock`). A step back would make the key hold for longer: the next
  standby that asks cuts it to one lease.
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
from bridge.routing.leadership import extend, lead, renew, resign

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Renewals in one lease.
RENEWALS = 4
#: Share of the lease by which the leader's own deadline comes before the key's end.
MARGIN = 0.05
#: Seconds between two questions of a standby.
ASK_S = 0.25
#: Seconds between two tries while the server is away.
RETRY_S = 0.1


class Election:
    """Runs for the lead of one lane, and keeps it. ``url``: the lane's server; ``outage``: where it tells that the
    server is away; ``health``: where it tells that it goes on; ``clock``: what a standby compares with the server's,
    with each question.
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
        #: Whether a leader was made with this term.
        self._taken = False
        #: The term changes between two renewals, not during one.
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
        """Waits until elected, also while the server is away. False: `stop` was called first.

        Raises redis errors that do not pass by themselves.
        """
        announced = ""
        while not self._stop.is_set():
            self._health.turn()
            try:
                # So that who takes over knows what was done to the server's clock before.
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
                # Whether the outage is over is for the leader to say, when it has read the lane.
                self._token = token
                self._taken = False
                self._deadline_s = self._deadline(sent)
                return True
            self._outage.over()
            if token != announced:
                announced = token
                logger.info("standing by: %s leads", token.partition(" ")[2])
            self._stop.wait(min(ASK_S, max(0.01, left_ms / 1000)))
        return False

    def take_term(self) -> str:
        """The token for a leader that is about to read the lane: each has a term of its own, so that what the one
        before it sent and gave up (a lost reply, a time limit) changes nothing when it arrives late.

        Raises `NotLeading`, redis errors.
        """
        if self._taken:
            self._renew()
        self._taken = True
        return self._token

    def _renew(self) -> None:
        with self._renewing:
            sent = time.monotonic()
            lease_ms = self._lane.leader_lease_ms
            self._token = renew(self._redis, self._lane.keys, self._token, self._holder, lease_ms)
            self._deadline_s = self._deadline(sent)

    def keep(self, lost: threading.Event) -> threading.Thread:
        """Renews the lead on a thread of its own until it is over; sets ``lost`` then."""
        thread = threading.Thread(target=self._keep, args=(lost,), name="bridge-leader", daemon=True)
        thread.start()
        return thread

    def forfeit(self) -> None:
        """A script said that another master leads: believes it at once."""
        self._deadline_s = 0.0

    def resign(self) -> None:
        """Gives the lead up, so that a standby need not wait for the lease."""
        self._deadline_s = 0.0
        try:
            resign(self._redis, self._lane.keys, self._token)
        except (RedisError, OSError) as exc:
            if not is_outage(exc):
                raise
            logger.warning("could not resign, the lead will run out by itself: %s", exc)

    def _keep(self, lost: threading.Event) -> None:
        wait = self._lane.leader_lease / RENEWALS
        while not lost.wait(wait) and not self._stop.is_set():
            sent = time.monotonic()
            try:
                with self._renewing:
                    sent = time.monotonic()
                    renewed = extend(self._redis, self._lane.keys, self._token, self._lane.leader_lease_ms)
            except Exception as exc:
                # Whatever it is: the deadline stands, and beyond it this master leads no more. The leader itself meets
                # an outage, too, and tells of it.
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
