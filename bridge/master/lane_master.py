"""One lane of a master process: stands by, or leads it.

A process has one of these for each lane that it stands for. `bridge.master.leads` asks for the lead and renews it.
While this master leads, the lane has a thread of its own, unless it sleeps (`bridge.master.sleepers`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.leader.leader import Leader
from bridge.leader.picture.chain import chain_of
from bridge.leader.step.dropped_versions import DroppedVersions
from bridge.link.connections import client, is_outage
from bridge.link.key_types import refuse_misplaced
from bridge.link.server_clock import ServerClock
from bridge.master.election import Election
from bridge.master.log_lines import name_thread, thread_named
from bridge.protocol.agreement import arrive, differences, facts, leaders_facts
from bridge.routing.errors import LaneConflict, NotLeading, TicketBridgeError
from bridge.routing.keys import LaneKeys
from bridge.routing.versions import dropped_versions, newer_versions

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.leader.picture.chain import Place
    from bridge.link.outage import Outage
    from bridge.master.sleepers import Sleepers

logger = get_logger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.2
#: Seconds before the next try after a bug in this program.
DEFECT_S = 2.0
#: Turns of its loop after which a lane has begun. One to which nothing has come is at rest by then.
BEGUN = 4
#: Seconds between two notes that another master leads a version that this one does not name.
NOTE_S = 30.0


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
        self._redis = redis
        self._app_lane = lane
        self.settings = lane.settings
        self._url: str = bridge_of(app).settings.redis_url
        self._announce = announce
        self._failed = failed
        self._defective = defective
        self._ended = ended
        self._sleepers = sleepers
        self.outage = outage
        #: Number of outages after which a leader spared the leases (`LeaseWatch.spare_leases`).
        self._spared = 0
        self.clock = ServerClock(self.settings.lease)
        self.election = Election(redis, self.settings, holder)
        #: The lanes of the chain that come before this one: of older versions of the stream.
        self.older: Sequence[LaneMaster] = ()
        #: The lane's place in that chain; None: its stream has no other versions, as far as this process knows.
        self.place: Place | None = None
        #: Whether this master leads the lane, or is just giving it up. The lane has a thread then, unless it sleeps.
        self.leading = False
        #: Whether it sleeps (`bridge.master.sleepers`): it has a leader, and no thread.
        self.asleep = False
        #: When the loop turned last (monotonic seconds).
        self.turned_at = time.monotonic()
        self._leader: Leader | None = None
        self._announced = ""
        self._follows = ""
        #: This master does not ask for the lead before this time (monotonic seconds).
        self._stand_at = 0.0
        #: The master to which the lane goes, and when it goes at the latest (monotonic seconds).
        self._successor: str | None = None
        self._hand_over_by = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: The older versions that the app does not name any more.
        self._dropped: Sequence[str] = ()
        self._note_at = 0.0
        #: Whether another master leads one of them.
        self._yields = False
        try:
            arrive(redis, app, self.settings)
            older = [version.stream for version in lane.older]
            self._dropped = dropped_versions(redis, self.settings.stream, self.name, older, lane.partition_streams)
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
    def title(self) -> str:
        return self._app_lane.title

    @property
    def chain(self) -> str:
        return self._app_lane.chain

    @property
    def keys(self) -> LaneKeys:
        return self.settings.keys

    @property
    def older_keys(self) -> tuple[LaneKeys, ...]:
        """The lanes that this one follows."""
        return tuple(older.keys for older in self._app_lane.older)

    @property
    def in_charge(self) -> bool:
        """Whether this master leads the lane, and its picture is complete."""
        leader = self._leader
        return self.leading and leader is not None and leader.complete

    def _compare(self, redis: Redis) -> None:
        """Logs how this master differs from the one that led last. Either may replace the other."""
        text: Any = redis.hget(self.keys.about, "master")
        theirs = leaders_facts(text)
        for difference in differences(facts(self._app, self.settings, master=True), theirs):
            logger.warning("this master differs from the one that led last: %s", difference)

    # -- control from other threads --------------------------------------------------------------------------------

    def may_stand(self, now: float) -> bool:
        """Whether this master may ask for the lead now (monotonic seconds)."""
        return now >= self._stand_at and not self._yields and all(lane.in_charge for lane in self.older)

    @property
    def dropped_leaders(self) -> list[str]:
        """The leader keys of the versions that the app does not name any more."""
        return [LaneKeys(stream, self.keys.group).leader for stream in self._dropped]

    def dropped_is_led(self, led: bool) -> None:
        """Notes whether another master leads such a version. If so, this one leaves it all lanes of the chain."""
        self._yields = led
        now = time.monotonic()
        if led and now >= self._note_at:
            self._note_at = now + NOTE_S
            logger.info(
                "standing by: another master leads %s, which this one does not name", " or ".join(self._dropped)
            )
            self._defective(self.chain)
        if led and self.leading:
            self._poke()

    def follows(self, holder: str, token: str) -> None:
        """Another master leads."""
        if token != self._follows:
            self._follows = token
            logger.info("standing by: %s leads %s", holder, self.title)

    def refused(self, exc: RedisError) -> None:
        """Redis answered with an error when this master asked for the lead."""
        self._stand_at = time.monotonic() + 5 * RETRY_S
        try:
            self._judge(exc)
        except TicketBridgeError as failure:
            self._failed(failure)
            return
        logger.error("Redis answers with an error, trying again: %s", exc)

    def elected(self, token: str, sent: float) -> None:
        """This master was elected, by what was sent at ``sent`` (monotonic seconds)."""
        self.election.elected(token, sent)
        self._follows = ""
        self._successor = None
        self.turned_at = time.monotonic()
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
        if successor != self._successor:
            self._successor, self._hand_over_by = successor, by
            if successor is not None:
                logger.info("%s goes to %s", self.title, successor)
                self._poke()
        elif successor is not None and time.monotonic() >= self._hand_over_by:
            self._poke()

    def stop(self) -> None:
        """Resigns and ends the lane's thread."""
        self._stop.set()
        leader = self._leader
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
        leader = self._leader
        # A lane that sleeps has nothing in flight: no ticket would move.
        if leader is not None and not self.asleep:
            leader.look(silent)

    def _poke(self) -> None:
        leader = self._leader
        if self.asleep:
            self._sleepers.poke()
        elif leader is not None:
            leader.wake()

    @property
    def loops(self) -> bool:
        """Whether the lane's loop should turn."""
        return self.leading and not self.asleep and self._leader is not None

    # -- asleep: called by the thread of `bridge.master.sleepers` --------------------------------------------------

    @property
    def leader(self) -> Leader:
        """The leader of a lane that sleeps."""
        assert self._leader is not None
        return self._leader

    @property
    def sleeps_on(self) -> bool:
        """Whether this master still leads, and keeps the lane."""
        return not self._stop.is_set() and self.election.leads() and self._successor is None

    def named_thread(self) -> AbstractContextManager[None]:
        """Within the block, the log lines of this thread name the lane."""
        return thread_named(self._app_lane)

    def wake_up(self, *, again: bool) -> None:
        """Goes on with a thread of its own. ``again``: the lane is read again."""
        if again:
            self._drop_leader()
        self.asleep = False
        self.turned_at = time.monotonic()
        self._start()

    def end(self) -> None:
        """The lead is over, or is given up."""
        self.asleep = False
        try:
            try:
                self._drop_leader()
            finally:
                self._give_up()
        except BaseException as exc:
            self._failed(exc)
        finally:
            self.leading = False
            self._ended()

    # -- the lane's thread -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"bridge-lane-{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        name_thread(self._app_lane)
        try:
            rests = self._serve()
        except BaseException as exc:
            self._failed(exc)
            rests = False
        if rests:
            self.asleep = True
            if self._sleepers.add(self):
                return
        self.end()

    def _give_up(self) -> None:
        if self._stop.is_set() or self._successor is not None or not self._leads_older or self._yields:
            self.election.resign()
        self.election.forfeit()
        self.outage.over()

    def _drop_leader(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.close()

    def _serve(self) -> bool:
        """Leads until the lead is over, or the lane is at rest. Returns whether it is at rest.

        Raises `ConfigurationError` when no master can lead the lane.
        """
        while self._goes_on():
            if self._announced != self.election.token:
                # Announce a term once, not after each failed try in an outage that is shorter than the leader lease.
                self._announced = self.election.token
                self._announce(f"leading, term {self.election.token.partition(' ')[0]}")
            try:
                if self._lead():
                    return True
            except (RedisError, OSError) as exc:
                if is_outage(exc):
                    self.outage.met(exc)
                    self._stop.wait(RETRY_S)
                    continue
                self._judge(exc)
                logger.error("Redis answers with an error, trying again: %s", exc)
                self._stop.wait(5 * RETRY_S)
        return False

    def _judge(self, exc: Exception) -> None:
        """Raises `ConfigurationError` when a key of the lane has another type. Trying again would not help then."""
        if "WRONGTYPE" in str(exc):
            with suppress(RedisError, OSError), client(self._url) as redis:
                refuse_misplaced(redis, self.keys, queues=True)

    def _lead(self) -> bool:
        """Leads until the lead is over, or the lane is at rest. Reads the lane again whenever the picture may be wrong.

        Returns whether the lane is at rest.
        """
        while self._goes_on():
            rests = False
            try:
                with ExitStack() as starting:
                    if self._leader is None:
                        starting.enter_context(self._sleepers.starting)
                        if not self._goes_on():
                            break
                        self._begin()
                    rests = self.leader.go_on(self._leads(starting), self._sleepers.may_rest)
                    return rests
            except NotLeading as exc:
                logger.warning("stepping down: %s", exc)
                self._yields = bool(self._dropped)
                # The thread that renews may not have noticed it.
                self.election.forfeit()
                break
            except LaneConflict as exc:
                logger.warning("reading the lane again: %s", exc)
                time.sleep(0.05)
            except (RedisError, OSError, TicketBridgeError):
                raise
            except Exception:
                # A defect of this master. The process goes on, and another master may be able to lead.
                logger.exception("cannot lead: stepping down")
                self._stand_at = time.monotonic() + DEFECT_S
                self._defective(self.chain)
                self.election.resign()
                break
            finally:
                if not rests:
                    self._drop_leader()
        return False

    def _begin(self) -> None:
        term = self.election.take_term()
        place, dropped = self._place_in_chain()
        leader = self._leader = Leader(self._app, self._url, self._app_lane, term, self.clock, place, dropped)
        if self._spared < self.outage.count:
            # The workers could not renew their leases in the outage.
            self._spared = self.outage.count
            leader.lease_watch.spare_leases()
        leader.begin()

    def _place_in_chain(self) -> tuple[Place | None, DroppedVersions | None]:
        """(the lane's place; None: its stream has no other versions; the dropped versions; None: there are none). Asked
        in each term: another master may have led a newer version meanwhile, and may have messages in flight there.
        """
        older = [one.stream for one in self._app_lane.older]
        with client(self._url) as redis:
            newer = newer_versions(redis, self.keys.stream)
            partitions = self._app_lane.partition_streams
            self._dropped = dropped_versions(redis, self.keys.stream, self.keys.group, older, partitions)
            dropped = DroppedVersions(redis, self.keys, self._dropped) if self._dropped else None
        if self.place is None and (newer or dropped is not None):
            [self.place] = chain_of([(self.keys, ())])
        if self.place is not None:
            known = {*newer, *(one.stream for one in self._app_lane.newer)}
            self.place.newer_keys = tuple(LaneKeys(stream, self.keys.group) for stream in sorted(known))
        return self.place, dropped

    @property
    def _leads_older(self) -> bool:
        """Whether this master leads the lane on all older versions, too."""
        return all(lane.election.leads() for lane in self.older)

    def _goes_on(self) -> bool:
        self.turned_at = time.monotonic()
        free = not self._stop.is_set() and not self._yields
        return free and self.election.leads() and self._leads_older and not self._goes_over()

    def _goes_over(self) -> bool:
        """Whether the lane is handed over now."""
        if self._successor is None:
            return False
        leader = self._leader
        return leader is None or leader.quiet or time.monotonic() >= self._hand_over_by

    def _leads(self, starting: ExitStack) -> Callable[[], bool]:
        """A function that says whether this master goes on leading.

        A new leader calls it for the first time when it has read the lane. So an outage is over then. After `BEGUN`
        calls it closes ``starting``: the lane has begun.
        """
        calls = 0

        def leads() -> bool:
            nonlocal calls
            calls += 1
            if calls == 1:
                self.outage.over()
            elif calls == BEGUN:
                starting.close()
            return self._goes_on()

        return leads
