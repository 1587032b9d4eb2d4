"""Leads one lane while this master is elected: begins a leader, lets its loop turn, and ends it.

`bridge.master.lane_master` calls `LaneLead.serve` on the lane's thread when this master is elected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.leader.leader import Leader
from bridge.link.connections import client, is_outage, lacks_command
from bridge.link.key_types import refuse_misplaced
from bridge.link.outage import has_no_file_descriptor
from bridge.master.election import answer_s
from bridge.routing.errors import LaneConflict, LaneGone, NotLeading, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.link.outage import Outage
    from bridge.link.server_clock import ServerClock
    from bridge.master.election import Election
    from bridge.master.lane_versions import LaneVersions
    from bridge.master.sleepers import Sleepers

logger = get_logger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.2
#: The same while this process may open no more files. To try sooner frees none.
FILES_RETRY_S = 2.0
#: Turns of its loop after which a lane has begun. A lane without new messages is at rest by then.
BEGUN = 4


class LaneLead:
    """Leads ``lane`` while this master is elected. Other threads ask it to stop, or to hand the lane over.

    ``announce`` gets a line for each term. ``defective`` is called after a defect of this program.
    """

    def __init__(
        self,
        app: Celery,
        url: str,
        lane: AppLane,
        election: Election,
        clock: ServerClock,
        versions: LaneVersions,
        outage: Outage,
        sleepers: Sleepers,
        *,
        announce: Callable[[str], None],
        defective: Callable[[], None],
    ) -> None:
        self._app = app
        self._url = url
        self._lane = lane
        self._election = election
        self._clock = clock
        self._versions = versions
        self._outage = outage
        self._sleepers = sleepers
        self._announce = announce
        self._defective = defective
        #: The elections of the lanes of the chain that come before this one: of older versions of the stream.
        self.older: Sequence[Election] = ()
        #: None: the lane is not read, or has to be read again.
        self.leader: Leader | None = None
        #: When the loop turned last (monotonic seconds).
        self.turned_at = time.monotonic()
        #: The master to which the lane goes, and when it goes at the latest (monotonic seconds).
        self.successor: str | None = None
        self.hand_over_by = 0.0
        #: Set when this master is done with the lane.
        self.stopped = threading.Event()
        self._announced = ""
        #: Number of outages after which a leader spared the leases (`LeaseWatch.spare_leases`).
        self._spared = 0

    def elected(self) -> None:
        """A new term begins, and the lane goes to no other master."""
        self.successor = None
        self.turned_at = time.monotonic()

    def serve(self) -> bool:
        """Leads until the lead is over, or the lane is at rest. Returns whether it is at rest.

        Raises `ConfigurationError` when no master can lead the lane.
        """
        while self._goes_on():
            if self._announced != self._election.token:
                # Announce a term once, not after each failed try in an outage that is shorter than the leader lease.
                self._announced = self._election.token
                self._announce(f"leading, term {self._election.token.partition(' ')[0]}")
            try:
                if self._lead():
                    return True
            except (RedisError, OSError) as exc:
                if is_outage(exc):
                    self._outage.met(exc)
                    self.stopped.wait(FILES_RETRY_S if has_no_file_descriptor(exc) else RETRY_S)
                    continue
                self.judge(exc)
                logger.error("Redis answers with an error, trying again: %s", exc)
                self.stopped.wait(5 * RETRY_S)
        return False

    def judge(self, exc: Exception) -> None:
        """Raises a line when ``exc`` is due to a key of another type or form, or to a command that the server has not:
        to try again is no help.
        """
        if (lacks := lacks_command(exc)) is not None:
            raise lacks from exc
        with suppress(RedisError, OSError), client(self._url) as redis:
            refuse_misplaced(redis, self._lane.settings.keys, queues="WRONGTYPE" in str(exc))

    def drop_leader(self) -> None:
        leader, self.leader = self.leader, None
        if leader is not None:
            leader.close()

    def give_up(self, *, at_once: bool = False) -> None:
        """Ends the lead. The leader key is deleted where another master may lead ``at_once``."""
        at_once = at_once or self.stopped.is_set() or self.successor is not None or self._election.is_unsure
        if at_once or not self._leads_older or self._versions.yields:
            self._election.resign()
        self._election.forfeit()
        self._outage.over()

    def _lead(self) -> bool:
        """Leads until the lead is over, or the lane is at rest. Reads the lane again whenever the picture may be wrong.

        Returns whether the lane is at rest.
        """
        while self._goes_on():
            rests = False
            try:
                with ExitStack() as starting:
                    leader = self.leader
                    if leader is None:
                        starting.enter_context(self._sleepers.starting)
                        if not self._goes_on():
                            break
                        leader = self._begin()
                    rests = leader.go_on(self._leads(starting), self._sleepers.may_rest)
                    return rests
            except NotLeading as exc:
                if self._election.leads() or self._spared == self._outage.count:
                    # Else it ended in an outage, which is logged once for the whole process.
                    logger.warning("stepping down: %s", exc)
                self._versions.suppose_led()
                # The thread that renews may not have noticed it.
                self._election.forfeit()
                break
            except LaneConflict as exc:
                logger.warning("reading the lane again: %s", exc)
                time.sleep(0.05)
            except LaneGone as exc:
                # It happened between the election and the first step. Other lanes of this process go on.
                logger.info("stepping down: %s", exc)
                self._election.resign()
                break
            except (RedisError, OSError, TicketBridgeError):
                raise
            except Exception as exc:
                self.judge(exc)
                # A defect of this master. The process goes on, and another master may be able to lead.
                logger.exception("cannot lead: stepping down")
                self._defective()
                self._election.resign()
                break
            finally:
                if not rests:
                    self.drop_leader()
        return False

    def _begin(self) -> Leader:
        # Not the client that all lanes share: many lanes begin at once after an outage, and its pool would keep a
        # connection for each.
        with client(self._url, timeout_s=answer_s(self._lane.settings.leader_lease)) as redis:
            term = self._election.take_term(redis)
        with client(self._url) as redis:
            place, dropped = self._versions.place_in_chain(redis)
        leader = self.leader = Leader(self._app, self._url, self._lane, term, self._clock, place, dropped)
        if self._spared < self._outage.count:
            # The workers could not renew their leases in the outage.
            self._spared = self._outage.count
            leader.lease_watch.spare_leases()
        leader.begin()
        return leader

    @property
    def _leads_older(self) -> bool:
        """Whether this master leads the lane on all older versions, too."""
        return all(election.leads() for election in self.older)

    def _goes_on(self) -> bool:
        self.turned_at = time.monotonic()
        free = not self.stopped.is_set() and not self._versions.yields
        return free and self._election.leads() and self._leads_older and not self._goes_over()

    def _goes_over(self) -> bool:
        """Whether the lane is handed over now."""
        if self.successor is None:
            return False
        leader = self.leader
        return leader is None or leader.quiet or time.monotonic() >= self.hand_over_by

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
                self._outage.over()
            elif calls == BEGUN:
                starting.close()
            return self._goes_on()

        return leads
