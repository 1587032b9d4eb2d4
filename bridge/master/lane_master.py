"""One lane of a master process: stands by, or leads it.

A process has one of these for each lane that it stands for. `bridge.master.leads` asks for the lead and renews it.
While this master leads, the lane has a thread of its own, which runs `bridge.master.lane_lead`, unless it sleeps
(`bridge.master.sleepers`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.link.connections import is_outage
from bridge.link.server_clock import ServerClock
from bridge.master.election import Election
from bridge.master.lane_lead import RETRY_S, LaneLead
from bridge.master.lane_versions import LaneVersions
from bridge.master.log_lines import name_thread, thread_named
from bridge.protocol.agreement import arrive, differences, facts, readable_facts
from bridge.routing.errors import TicketBridgeError
from bridge.routing.keys import LaneKeys
from bridge.routing.leadership import Candidate

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.leader.leader import Leader
    from bridge.leader.picture.chain import Place
    from bridge.link.outage import Outage
    from bridge.master.sleepers import Sleepers

logger = get_logger(__name__)

#: Seconds before the next try after a bug in this program, or when no thread can start.
DEFECT_S = 2.0


class LaneMaster:
    """This process's part in one lane.

    ``redis``: for the lead; several threads use it. ``holder``: the name of this process in the leader key.
    ``announce`` gets a line for each term. ``failed`` gets an error for which no master can lead the lane.
    ``defective`` is called with the chain after a defect, and ``ended`` when the lead is over.

    Raises `ConfigurationError` when the lane is not for this app.
    """

    def __init__(
        self,
        app: Celery,
        lane: AppLane,
        redis: Redis,
        holder: str,
        outage: Outage,
        *,
        announce: Callable[[str], None],
        failed: Callable[[BaseException], None],
        defective: Callable[[str], None],
        ended: Callable[[], None],
        sleepers: Sleepers,
    ) -> None:
        self._app = app
        self._app_lane = lane
        self.settings = lane.settings
        self._failed = failed
        self._defective = defective
        self._ended = ended
        self._sleepers = sleepers
        self.outage = outage
        self.clock = ServerClock(self.settings.lease)
        self.election = Election(redis, self.settings, holder)
        self._versions = LaneVersions(lane)
        self._lead = LaneLead(
            app,
            bridge_of(app).settings.redis_url,
            lane,
            self.election,
            self.clock,
            self._versions,
            outage,
            sleepers,
            announce=announce,
            defective=self._has_defect,
        )
        self._older: Sequence[LaneMaster] = ()
        #: Whether this master leads the lane, or is just giving it up. The lane has a thread then, unless it sleeps.
        self.leading = False
        #: Whether it sleeps (`bridge.master.sleepers`): it has a leader, and no thread.
        self.asleep = False
        self._follows = ""
        #: This master does not ask for the lead before this time (monotonic seconds).
        self._stand_at = 0.0
        self._thread: threading.Thread | None = None
        try:
            arrive(redis, app, self.settings, lane.in_layout)
            self._versions.read_dropped(redis)
            self._compare(redis)
        except (RedisError, OSError) as exc:
            # The connection was lost. The leader makes these checks again.
            if not is_outage(exc):
                raise

    @property
    def name(self) -> str:
        """The name of the lane's subscription."""
        return self._app_lane.name

    @property
    def id_suffix(self) -> str:
        """What follows the stream ids in the ids of its messages."""
        return self._app_lane.id_suffix

    @property
    def title(self) -> str:
        return self._app_lane.title

    @property
    def chain(self) -> str:
        return self._app_lane.chain

    @property
    def keys(self) -> LaneKeys:
        return self.settings.keys

    @property
    def candidate(self) -> Candidate:
        """How it asks for the lead."""
        return Candidate(self.keys, self._app_lane.in_layout, self.settings.leader_lease_ms)

    @property
    def older_keys(self) -> tuple[LaneKeys, ...]:
        """The lanes that this one follows."""
        return tuple(older.keys for older in self._app_lane.older)

    @property
    def older(self) -> Sequence[LaneMaster]:
        """The lanes of the chain that come before this one: of older versions of the stream."""
        return self._older

    @older.setter
    def older(self, lanes: Sequence[LaneMaster]) -> None:
        self._older = lanes
        self._lead.older = [lane.election for lane in lanes]

    def put_in_chain(self, place: Place) -> None:
        self._versions.place = place

    @property
    def in_charge(self) -> bool:
        """Whether this master leads the lane, and its picture is complete."""
        leader = self._lead.leader
        return self.leading and leader is not None and leader.complete

    def _compare(self, redis: Redis) -> None:
        """Logs how this master differs from the one that led last. Either may replace the other."""
        text: Any = redis.hget(self.keys.about, "master")
        theirs = readable_facts(self.keys, text)
        for difference in differences(facts(self._app, self.settings, master=True), theirs):
            logger.warning("this master differs from the one that led last: %s", difference)

    # -- control from other threads --------------------------------------------------------------------------------

    def may_stand(self, now: float) -> bool:
        """Whether this master may ask for the lead now (monotonic seconds)."""
        return now >= self._stand_at and not self._versions.yields and all(lane.in_charge for lane in self.older)

    @property
    def dropped_leaders(self) -> list[str]:
        """The leader keys of the versions that the app does not name any more."""
        return self._versions.dropped_leaders

    def dropped_is_led(self, led: bool) -> None:
        """Notes whether another master leads such a version. If so, this one leaves it all lanes of the chain."""
        if self._versions.dropped_is_led(led):
            self._defective(self.chain)
        if led and self.leading:
            self._poke()

    def follows(self, holder: str, token: str) -> None:
        """Another master leads."""
        if token != self._follows:
            self._follows = token
            logger.info("standing by: %s leads %s", holder, self.title)

    def refused(self, exc: Exception) -> None:
        """Redis answered with an error, or with what no leader writes, when this master asked for the lead."""
        self._stand_at = time.monotonic() + 5 * RETRY_S
        try:
            self._lead.judge(exc)
        except TicketBridgeError as failure:
            self._failed(failure)
            return
        logger.error("Redis answers with an error, trying again: %s", exc)

    def elected(self, token: str, sent: float) -> None:
        """This master was elected, by what was sent at ``sent`` (monotonic seconds)."""
        self.election.elected(token, sent)
        self._follows = ""
        self._lead.elected()
        self.leading = True
        self._start()

    def forfeit(self) -> None:
        """The lead is over."""
        self.election.forfeit()
        self._poke()

    def hand_over(self, successor: str | None, by: float) -> None:
        """Gives the lane up to the master ``successor`` when nothing is in flight, and at ``by`` at the latest. None:
        keeps it.
        """
        if successor != self._lead.successor:
            self._lead.successor, self._lead.hand_over_by = successor, by
            if successor is not None:
                logger.info("%s goes to %s", self.title, successor)
                self._poke()
        elif successor is not None and time.monotonic() >= self._lead.hand_over_by:
            self._poke()

    def stop(self) -> None:
        """Resigns and ends the lane's thread."""
        self._lead.stopped.set()
        leader = self._lead.leader
        if leader is not None:
            leader.stop()
        if self.asleep:
            self._sleepers.poke()

    def join(self, timeout_s: float) -> bool:
        """Waits for the lane's thread. Returns whether this master is done with the lane."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return not self.leading

    def look(self, silent: Collection[str]) -> None:
        """Checks the leases now: heartbeats of these consumers are missing, or they went offline."""
        leader = self._lead.leader
        # A lane that sleeps has nothing in flight: no ticket would move.
        if leader is not None and not self.asleep:
            leader.look(silent)

    @property
    def health_urls(self) -> dict[str, str]:
        """The URLs of HTTP consumers, by name, as long as this master leads the lane."""
        leader = self._lead.leader
        return {} if leader is None or self.asleep else leader.health_urls

    def _poke(self) -> None:
        leader = self._lead.leader
        if self.asleep:
            self._sleepers.poke()
        elif leader is not None:
            leader.wake()

    def _has_defect(self) -> None:
        """A defect of this program, or of its machine, ended the lead. Another master may be able to lead."""
        self._stand_at = time.monotonic() + DEFECT_S
        self._defective(self.chain)

    @property
    def turned_at(self) -> float:
        """When the lane's loop turned last (monotonic seconds)."""
        return self._lead.turned_at

    @property
    def loops(self) -> bool:
        """Whether the lane's loop should turn."""
        return self.leading and not self.asleep and self._lead.leader is not None

    # -- asleep: called by the thread of `bridge.master.sleepers` --------------------------------------------------

    @property
    def leader(self) -> Leader:
        """The leader of a lane that sleeps."""
        assert self._lead.leader is not None
        return self._lead.leader

    @property
    def sleeps_on(self) -> bool:
        """Whether this master still leads, and keeps the lane."""
        return not self._lead.stopped.is_set() and self.election.leads() and self._lead.successor is None

    def named_thread(self) -> AbstractContextManager[None]:
        """Within the block, the log lines of this thread name the lane."""
        return thread_named(self._app_lane)

    def wake_up(self, *, again: bool) -> None:
        """Goes on with a thread of its own. ``again``: the lane is read again."""
        if again:
            self._lead.drop_leader()
        self.asleep = False
        self._lead.turned_at = time.monotonic()
        self._start()

    def end(self, *, at_once: bool = False) -> None:
        """The lead is over, or is given up. ``at_once``: another master should not wait for the leader lease."""
        self.asleep = False
        try:
            try:
                self._lead.drop_leader()
            finally:
                self._lead.give_up(at_once=at_once)
        except BaseException as exc:
            self._failed(exc)
        finally:
            self.leading = False
            self._ended()

    # -- the lane's thread -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"bridge-lane-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            # The system has no room for one more. Else the lead would be renewed for ever, and nobody would use it.
            logger.error("cannot lead %s: %s; trying again in %g s", self.title, exc, DEFECT_S)
            self._has_defect()
            self.end(at_once=True)
            return
        self._thread = thread

    def _run(self) -> None:
        name_thread(self._app_lane)
        try:
            rests = self._lead.serve()
        except BaseException as exc:
            self._failed(exc)
            rests = False
        if rests:
            self.asleep = True
            if self._sleepers.add(self):
                return
        self.end()
