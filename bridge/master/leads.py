"""The leads of a master process: it asks for those of its share, renews those that it has, and hands over the others.

One thread and one connection do this for all lanes. A lane's own thread runs only while this master leads it
(`bridge.master.lane_master`).

- **Renewals.** One script renews all leads, `RENEWALS` times in one leader lease. Each lane keeps its own term, token
  and deadline (`bridge.master.election`).
- **Questions.** The master asks for each lane of its share that it does not lead, every `ASK_S` seconds and when the
  leader lease of the lane ends. One round trip asks for all of them.
- **The share** (`bridge.master.share`). An app with one lane has nothing to share: every master asks for the lead, and
  the one that has it keeps it. With several lanes, the master renews its place among the masters with its leads. While
  there are other masters, it reads their places every `ASK_S` seconds. So it asks for the lanes of a lost master as
  soon as their leads end. Where the server refuses that (a key of another type, a missing permission), it asks for all
  lanes: the share is advice, and each lane needs a leader.
- **Handing over.** A lane that belongs to another master is given up in a quiet moment: when nothing is in flight, or
  after `QUIET_S` seconds in any case. The new owner is elected at its next question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.link.connections import is_outage
from bridge.link.server_clock import compare_all
from bridge.master.election import RENEWALS
from bridge.master.older_led import OlderLed
from bridge.master.share import Share
from bridge.protocol.standing import Standing
from bridge.routing.keys import masters, masters_stand
from bridge.routing.leadership import attend, depart, lead, read_token, renew, resign

if TYPE_CHECKING:
    from redis import Redis

    from bridge.link.health import Health
    from bridge.link.outage import Outage
    from bridge.master.lane_master import LaneMaster
    from bridge.master.layout_watch import LayoutWatch

logger = get_logger(__name__)

#: Seconds between two questions of a standby.
ASK_S = 0.25
#: Seconds between two tries while the server is away.
RETRY_S = 0.1
#: Seconds between two looks at the lanes of other masters' shares: whether each has a leader.
WATCH_S = 1.0
#: Longest time for which a lane that is handed over may wait for a quiet moment, in seconds.
QUIET_S = 5.0
#: Seconds for which a master does not ask for a lane in which it had a defect: another master may lead it.
ASIDE_S = 60.0


class Leads:
    """The leads of one process, on a thread of their own.

    ``stream``: the stream that the app names; ``shared``: whether the masters of the app share its lanes; ``named``:
    whether an operator named the lanes of this master; ``layouts``: looked after on this thread.
    """

    def __init__(
        self,
        redis: Redis,
        stream: str,
        holder: str,
        lanes: Sequence[LaneMaster],
        *,
        shared: bool,
        named: bool,
        layouts: LayoutWatch,
        outage: Outage,
        health: Health,
    ) -> None:
        self._redis = redis
        self._stream = stream
        self._holder = holder
        self._lanes = lanes
        self._lease_s = min(lane.settings.leader_lease for lane in lanes)
        self._share = Share(holder, self._lease_s) if shared else None
        self._named = named
        self._layouts = layouts
        self._older_led = OlderLed(redis, lanes)
        self._outage = outage
        self._health = health
        self._stop = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-leads", daemon=True)
        #: Whether the last turn did not reach the server.
        self._missed = False
        #: When the next of these is due (monotonic seconds).
        self._renew_at = 0.0
        self._ask_at = 0.0
        self._attend_at = 0.0 if shared else float("inf")
        self._watch_at = 0.0
        #: The version of the set of masters that is known.
        self._version = ""
        #: Why the server refuses the set, as the log has said it; empty: it does not.
        self._refusal = ""
        #: Lane that another master owns -> since when nobody leads it.
        self._free_since: dict[LaneMaster, float] = {}
        #: Chain -> until when this master stands aside. Written by the threads of lanes.
        self._aside: dict[str, float] = {}
        #: Whether the other masters were told of all these chains.
        self._aside_told = True

    # -- control from other threads --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Ends the thread, which stops all lanes first."""
        self._stop.set()
        self._poked.set()

    def lane_ended(self) -> None:
        """A lane that this master led has ended: it may be asked for again."""
        self._poked.set()

    def stand_aside(self, chain: str) -> None:
        """Leaves ``chain`` to other masters for a while: this one had a defect there."""
        self._aside[chain] = time.monotonic() + ASIDE_S
        if self._share is not None:
            self._aside_told = False
            self._poked.set()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._health.turn()
                if self._poked.wait(self._try_turn()):
                    self._poked.clear()
                    # A lane may have ended.
                    self._ask_at = 0.0
        finally:
            if self._share is not None:
                self._depart()
            for lane in self._lanes:
                lane.stop()

    def _try_turn(self) -> float:
        """One turn. Returns how long to wait for the next one, in seconds. No error ends the thread."""
        try:
            if self._missed:
                # A turn may have nothing to ask for. It would look as if the server were back.
                self._redis.ping()
            wait = self._turn()
            self._missed = False
            self._outage.over()
            return wait
        except (RedisError, OSError) as exc:
            if is_outage(exc):
                self._missed = True
                # What had no answer is asked for again.
                self._ask_at = 0.0
                self._outage.met(exc)
                for lane in self._lanes:
                    # The workers cannot renew their leases either: the next leader spares them.
                    lane.outage.noted()
                return RETRY_S
            logger.error("Redis answers with an error, trying again: %s", exc)
            return 1.0
        except Exception:
            logger.exception("a defect in the share of lanes, trying again")
            return 1.0

    def _turn(self) -> float:
        self._renew()
        if self._share is not None:
            self._attend(self._share)
            self._hand_over(self._share)
        self._ask()
        self._layouts.look()
        self._older_led.look()
        now = time.monotonic()
        return max(0.01, min(self._renew_at, self._ask_at, self._attend_at, self._layouts.look_at) - now)

    # -- renewals --------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        with ExitStack() as stack:
            held = [lane for lane in self._lanes if lane.leading]
            # A lane that begins a new term just now renews its lease with that.
            held = [lane for lane in held if lane.election.renewing.acquire(blocking=False)]
            for lane in held:
                stack.callback(lane.election.renewing.release)
            leads = [lane.election.lead for lane in held]
            sent = time.monotonic()
            try:
                renewed = renew(self._redis, leads) if leads else []
            except Exception as exc:
                self._renew_at = sent + RETRY_S
                self._not_renewed(held, exc)
                raise
            for lane, is_renewed in zip(held, renewed, strict=True):
                if is_renewed:
                    lane.election.renewed(sent)
                else:
                    lane.forfeit()
        self._renew_at = sent + self._lease_s / RENEWALS
        self._look_at_dropped(held)
        if self._share is not None:
            # The place of this master is renewed with its leads, so that both end together.
            self._attend_at = 0.0

    def _not_renewed(self, lanes: Sequence[LaneMaster], exc: Exception) -> None:
        """A renewal failed. The deadlines do not move. A lead past its deadline is over."""
        over = [lane for lane in lanes if lane.election.is_overdue]
        for lane in over:
            lane.forfeit()
        # An outage is logged for the whole process, once, and not each time that a lead ends in it.
        if over and not is_outage(exc):
            which = over[0].title if len(over) == 1 else f"{len(over)} lanes"
            logger.warning("the lead of %s is over, it could not be renewed in time: %s", which, exc)

    # -- the share -------------------------------------------------------------------------------------------------

    def _attend(self, share: Share) -> None:
        now = time.monotonic()
        if self._aside_told and now < self._attend_at:
            return
        # Stays so when there is no answer.
        self._attend_at = 0.0
        # A lane's thread may add a chain from here on: it is told next time.
        self._aside_told = True
        aside = frozenset(chain for chain, until in self._aside.copy().items() if until > now)
        chains = frozenset(lane.chain for lane in self._lanes)
        stands = Standing(chains, self._named, aside).text()
        lease_ms = int(self._lease_s * 1000)
        try:
            found = attend(self._redis, self._stream, self._holder, lease_ms, stands, self._version)
        except RedisError as exc:
            if is_outage(exc):
                raise
            self._do_without(share, exc)
            return
        if self._refusal:
            self._refusal = ""
            logger.warning("the masters share the lanes again")
        self._version = found.version
        if found.masters is not None:
            share.update(found.masters, time.monotonic())
            self._ask_at = 0.0
            mine = sum(share.is_mine(chain) for chain in chains)
            logger.info("%d masters live; %d of %d lanes are this one's", share.others + 1, mine, len(chains))
        # Without other masters, the next renewal is soon enough to look again.
        self._attend_at = now + ASK_S if share.others else float("inf")
        if found.first_ms is not None:
            self._attend_at = min(self._attend_at, now + found.first_ms / 1000)

    def _do_without(self, share: Share, exc: RedisError) -> None:
        """The server refuses the set of masters. Those that were in it may be gone, so this one goes by none."""
        now = time.monotonic()
        share.update({}, now)
        self._version = ""
        self._attend_at = now + WATCH_S
        if str(exc) != self._refusal:
            self._refusal = str(exc)
            logger.error(
                "this master asks for all lanes, and shares none with others, since it cannot use %s and %s: %s",
                *(masters(self._stream), masters_stand(self._stream), exc),
            )

    def _hand_over(self, share: Share) -> None:
        now = time.monotonic()
        for lane in self._lanes:
            if lane.leading:
                lane.hand_over(share.successor(lane.chain, now), now + QUIET_S)

    def _depart(self) -> None:
        try:
            depart(self._redis, self._stream, self._holder)
        except (RedisError, OSError) as exc:
            logger.warning(
                "could not tell the other masters that this one stops; they notice it when its place expires: %s", exc
            )

    # -- questions -------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        now = time.monotonic()
        if now < self._ask_at:
            return
        standing = [lane for lane in self._lanes if not lane.leading]
        self._look_at_dropped(standing)
        wanted = [lane for lane in self._wanted(standing, now) if lane.may_stand(now)]
        self._ask_at = now + ASK_S if standing else float("inf")
        if standing:
            # A new leader must know whether the server's clock was set before.
            compare_all(self._redis, [lane.clock for lane in standing])
        if not wanted:
            return
        sent = time.monotonic()
        replies = lead(self._redis, self._holder, [lane.candidate for lane in wanted])
        away: RedisError | None = None
        lost: list[tuple[LaneMaster, str]] = []
        for lane, reply in zip(wanted, replies, strict=True):
            if isinstance(reply, RedisError):
                if is_outage(reply):
                    away = reply
                else:
                    lane.refused(reply)
                continue
            if reply is None:
                # Nobody leads it any more. `LayoutWatch` takes the lane away, on this thread.
                continue
            if reply.elected:
                lane.elected(reply.token, sent)
                continue
            try:
                holder = read_token(reply.token).holder
            except ValueError as exc:
                lane.refused(exc)
                continue
            if holder == self._holder:
                lost.append((lane, reply.token))
                continue
            lane.follows(holder, reply.token)
            self._ask_at = min(self._ask_at, now + max(0.01, reply.left_ms / 1000))
        if away is not None:
            # The server answers, and refuses writes: it is a replica, has too few replicas, or cannot store them.
            raise away
        self._end_lost(lost)

    def _end_lost(self, leads: Sequence[tuple[LaneMaster, str]]) -> None:
        """Ends leads of this master that no thread of it knows: the reply lacked that said so. Asks again at once.

        Such a term is not taken. A reading under it may have been given up, and a script of that could run late.
        """
        for lane, token in leads:
            logger.info("this master leads %s in a term that it did not learn of: asking again", lane.title)
            resign(self._redis, lane.keys, token)
            self._ask_at = 0.0

    def _look_at_dropped(self, lanes: Sequence[LaneMaster]) -> None:
        """Checks whether other masters lead versions that this one does not name any more."""
        some = [lane for lane in lanes if lane.dropped_leaders]
        if some:
            with self._redis.pipeline(transaction=False) as pipe:
                for lane in some:
                    pipe.exists(*lane.dropped_leaders)
                for lane, led in zip(some, pipe.execute(), strict=True):
                    lane.dropped_is_led(led > 0)

    def _wanted(self, standing: Sequence[LaneMaster], now: float) -> list[LaneMaster]:
        """Those of ``standing`` that this master asks for."""
        share = self._share
        if share is None:
            return list(standing)
        mine = [lane for lane in standing if share.is_mine(lane.chain)]
        others = [lane for lane in standing if not share.is_mine(lane.chain)]
        if others and now >= self._watch_at:
            self._watch_at = now + WATCH_S
            self._watch(others, now)
        self._free_since = {lane: since for lane, since in self._free_since.items() if lane in others}
        for lane, since in self._free_since.items():
            if now - since > lane.settings.leader_lease:
                share.not_taken(lane.chain, now)
                mine.append(lane)
        return mine

    def _watch(self, lanes: Sequence[LaneMaster], now: float) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.get(lane.keys.leader)
            tokens = pipe.execute(raise_on_error=False)
        # Nobody can lead a lane while this master has not handed over one that it follows. So its owner is not late.
        free = [
            lane
            for lane, token in zip(lanes, tokens, strict=True)
            if token is None and not any(older.leading for older in lane.older)
        ]
        self._free_since = {lane: self._free_since.get(lane, now) for lane in free}
