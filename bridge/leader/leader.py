"""The leader of one lane: it reads messages and outcomes, and writes each batch with one script.

The leader has one thread and one loop. The loop waits in two blocking reads at once: one of the stream, one of the
outcome stream. So the leader wakes up within one round trip, and an idle lane costs nothing. Under load, all that
arrives while a script runs goes into the next batch. What a turn of the loop does is in the leader's parts.

The leader keeps a picture of its lane in memory. When the picture may differ from Redis (a lost reply, a refused
record), the leader throws the picture away and reads the lane again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from redis.exceptions import RedisError

from bridge.app.state_home import keys_of_states
from bridge.leader.parts import Parts
from bridge.leader.picture.chained_lane import ChainedLane
from bridge.leader.stream.blocking_reads import BLOCK_S, BlockingReads
from bridge.leader.takeover.formats import bring_up
from bridge.link.connections import Wire
from bridge.protocol.agreement import LANE_FORMAT, arrive
from bridge.routing.batch import Batch
from bridge.routing.errors import GroupMoved, NotLeading
from bridge.routing.ids import id_key, id_text
from bridge.routing.transitions import introduce
from bridge.routing.versions import follow

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.leader.picture.chain import Place
    from bridge.leader.step.dropped_versions import DroppedVersions
    from bridge.link.server_clock import ServerClock
    from bridge.routing.keys import LaneKeys
    from bridge.routing.transitions import Leadership

#: Seconds without work after which a lane may rest.
REST_S = 5.0
#: Seconds between two checks of the leases, and of everything else that is checked at intervals.
LEASE_CHECK_S = 1.0
#: After a check, messages have the loop for at least this many times the time that the check took. A check waits for
#: some twelve replies one after the other. On a slow line it would take most of the time.
CHECK_REST = 3


class SleepingPlace(NamedTuple):
    """How a lane was left when it went to rest."""

    leadership: Leadership
    read_to: str
    last_outcome: str
    #: Number of entries that are pending in the group: those of parked tickets.
    pending: int

    @property
    def keys(self) -> LaneKeys:
        """The keys of the lane."""
        return self.leadership.keys


class Leader:
    """Leads a lane for one term: runs the loop over its `Parts`.

    `run` returns when it was asked to stop, and raises when it cannot go on.
    """

    def __init__(
        self,
        app: Celery,
        url: str,
        app_lane: AppLane,
        token: str,
        clock: ServerClock,
        place: Place | None = None,
        dropped: DroppedVersions | None = None,
    ) -> None:
        self._app = app
        self._place = place
        self._app_lane = app_lane
        parts = Parts(app, url, app_lane, token, clock, place, dropped)
        self._term = parts.term
        self.lane = parts.lane
        self._steps = parts.steps
        self._planner = parts.planner
        self._breakers = parts.breakers
        self._outcome_pause = parts.outcome_pause
        self._read_pause = parts.read_pause
        self._reading = parts.reading
        self._delayed = parts.delayed
        self._pending = parts.pending
        self._backoffs_over = parts.backoffs_over
        self._retention = parts.retention
        self._queues = parts.queues
        self.lease_watch = parts.lease_watch
        self.manual_changes = parts.manual_changes
        self._intake = parts.intake
        self._dead_log = parts.dead_log
        self._lag = parts.lag
        self._refill = parts.refill
        self._unknown_tasks = parts.unknown_tasks
        self._rebuild = parts.rebuild
        self._reads = BlockingReads(url)
        self._entries, self._outcomes = self._reads.entries, self._reads.outcomes
        self._stop = False
        #: Whether the records were read. Waiting messages are taken in after that.
        self._has_read = False
        #: Whether the stream may have new entries that no blocking read has reported.
        self._more = True
        #: When something came last (monotonic seconds). A lane to which nothing has come may rest at once.
        self._busy_at = float("-inf")
        #: Most entries of the outcome stream that the last question asked for.
        self._most_outcomes = 0
        #: When to read the outcome stream next (monotonic seconds).
        self._ask_at = 0.0
        #: When to read new entries next (monotonic seconds).
        self._read_at = 0.0

    # -- control from other threads --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Makes `run` return soon. Safe in signal handlers and other threads."""
        self._stop = True
        self.wake()

    def look(self, silent: Collection[str]) -> None:
        """Checks the leases now: heartbeats of these consumers are missing, or they went offline."""
        self.lease_watch.silent.update(silent)
        self.lease_watch.look_at = 0.0
        self.wake()

    def wake(self) -> None:
        """Makes the loop turn now."""
        self._reads.wake()

    # -- facts for other threads -------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the picture is complete: everything that was read before this term is in it."""
        return self._has_read and not self.lane.behind

    @property
    def quiet(self) -> bool:
        """Whether nothing is in flight. The lane is handed over then."""
        return not self.lane.in_flight

    @property
    def health_urls(self) -> dict[str, str]:
        """The URLs at which HTTP consumers may be asked whether they live, by name."""
        found = {}
        for consumer in list(self.lane.consumers.values()):
            if consumer.registration is not None and consumer.registration.health_url is not None and consumer.alive:
                found[consumer.name] = consumer.registration.health_url
        return found

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, led: Callable[[], bool]) -> None:
        """Leads until `stop`, or until ``led`` returns False: the leader's lease is over.

        Raises `NotLeading`, `LaneConflict` and redis errors. The caller then starts over with a new `Leader`.
        """
        try:
            self.begin()
            self.go_on(led)
        finally:
            self.close()

    def begin(self) -> None:
        """Reads the records of the lane."""
        with self._turn_in_chain():
            self._begin()

    def go_on(self, led: Callable[[], bool], may_rest: Callable[[], bool] = lambda: False) -> bool:
        """Runs the loop: until `stop`, until ``led`` returns False, or until the lane is at rest and ``may_rest``
        returns True. Returns whether it is at rest: then all connections are closed, and `glance` and `go_on` go on.
        """
        self.lease_watch.look_at = self.lease_watch.check_at = 0.0
        with self._reads.selected():
            while not self._stop and led():
                self._turn()
                if (
                    time.monotonic() - self._busy_at > REST_S
                    and may_rest()
                    and self._is_at_rest
                    and self._retention.idle
                ):
                    self._rest()
                    return True
            # The next leader may sleep at once, and would find these entries minutes later.
            with suppress(NotLeading, RedisError, OSError):
                self._retention.remove()
        return False

    def close(self) -> None:
        """Closes everything."""
        self._dead_log.close()
        if self._place is not None:
            self._place.leave()
        self._reads.close()
        self._term.close()

    # -- at rest ---------------------------------------------------------------------------------------------------

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing is left to do, and nothing is due at a later time but what `glance` does."""
        lane = self.lane
        return (
            # The leaders of a chain look into each other's pictures.
            self._place is None
            and not (self._more or lane.behind or lane.tickets or lane.in_flight or lane.spilled)
            and not (lane.stranded.waiting or lane.stranded.open_circuits)
            and self._intake.open
            and self._lag.open
            and not self._lag.excess
            and all(c.alive and not (c.stalled or c.doubted) for c in lane.consumers.values())
        )

    def _rest(self) -> None:
        self._dead_log.close()
        self._reads.close()
        self._term.rest()
        # Only a notice asks for a look now.
        self.lease_watch.look_at = float("inf")

    @property
    def sleeping_place(self) -> SleepingPlace:
        """What must not change while the lane is at rest without a look at it."""
        read_to, last_outcome = id_text(self.lane.read_to), self._steps.last_outcome
        return SleepingPlace(self._term.leadership, read_to, last_outcome, self._pending.expected)

    @property
    def due_in_s(self) -> float | None:
        """In how many seconds a delayed message is to be moved; None: there is none."""
        return self._delayed.timeout_s()

    def glance(self, redis: Any, wire: Wire, *, check: bool) -> bool:
        """A turn of a lane at rest, over connections that are lent. Returns whether it is still at rest.

        ``check``: also looks at all that is checked at intervals.
        """
        with self._term.over(redis, wire):
            batch = Batch()
            self._steps.settle(wire.call(*self._steps.question()), batch)
            self._read_entries(batch)
            if self.lane.next_due_ms is not None:
                self._delayed.run(batch)
            self._steps.advance(batch)
            # Messages that the lane leaves out are done now.
            self._retention.remove()
            if not self._is_at_rest or self._retention.waits:
                return False
            if not check and self.lease_watch.look_at > time.monotonic():
                return True
            self._check()
            if check and self.manual_changes.agreed:
                self._retention.sweep_quickly()
            # The entries were read just now.
            self._more = False
            self.lease_watch.look_at = float("inf")
            return self._is_at_rest and (not check or self._retention.passed)

    def _turn_in_chain(self) -> AbstractContextManager[None]:
        """The turn of this lane in its chain. A lane whose stream has no other versions need not wait for one."""
        return nullcontext() if self._place is None else self._place.turn()

    def _begin(self) -> None:
        self._look_around()
        self._unknown_tasks.read_notes()
        self._intake.look()
        self._rebuild.run()
        self._lag.look()
        self._has_read = True
        if self._place is not None and isinstance(self.lane, ChainedLane):
            self._place.enter(self.lane, self._term.leadership.token, self.wake)

    def _look_around(self) -> None:
        term = self._term
        # A newer version may have used the lane in the meantime.
        arrive(term.redis, self._app, term.settings, self._app_lane.in_layout)
        bring_up(term)
        facts = orjson.dumps(term.facts)
        introduce(term.redis, term.leadership, facts, LANE_FORMAT, keeps_history=term.settings.history > 0)
        if self._app_lane.older:
            # Before any message of the lane is dispatched: its task may need the state that an older version saved.
            states = keys_of_states(self._app, self._app_lane)
            follow(term.redis, term.leadership, [older.stream for older in self._app_lane.older], states)
        uptime_s = int(term.redis.info("server").get("uptime_in_seconds", 0))
        if uptime_s < term.settings.lease:
            # The server has just started. Workers could not renew their leases while it was away.
            self.lease_watch.spare_leases()
        self._queues.know_server(uptime_s)

    @property
    def _sweep_at(self) -> float:
        """When the pass through the stream goes on (monotonic seconds). Only while the pending list agrees."""
        return self._retention.sweep_at if self.manual_changes.agreed else float("inf")

    def _turn(self) -> None:
        lane = self.lane
        block_ms = int(BLOCK_S * 1000)
        pause = self._ask_at - time.monotonic()
        if not self._outcomes.asked and pause <= 0:
            self._most_outcomes = self._steps.slice_of_entries
            self._outcomes.ask(*self._steps.question("BLOCK", block_ms, count=self._most_outcomes))
        lag = self._lag
        read_pause = self._read_at - time.monotonic()
        may_read = self._intake.open and lag.open and read_pause <= 0
        wants_entries = may_read and not lane.behind and not lane.has_enough_work
        if wants_entries and not self._more and not self._entries.asked:
            # This read only wakes the loop. A script reads the entries, because a script can check the term first. The
            # script reads from where the group stands, so any newer entry is a reason to wake up.
            read_to = id_text(lane.read_to)
            self._entries.ask("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._term.keys.stream, read_to)
        timeout = max(0.0, min(BLOCK_S, min(self.lease_watch.look_at, self._sweep_at) - time.monotonic()))
        skips = lag.excess > 0 and not lane.behind
        waits = skips or self._planner.left_some or self._backoffs_over.waits or self._refill.waits
        if waits or lane.behind or (wants_entries and self._more):
            timeout = 0.0
        if pause > 0:
            timeout = min(timeout, pause)
        if read_pause > 0:
            timeout = min(timeout, read_pause)
        if lane.next_due_ms is not None and (until_due := self._delayed.timeout_s()) is not None:
            timeout = min(timeout, until_due)
        if lane.backoffs:
            timeout = max(0.0, min(timeout, (lane.backoffs[0][0] - lane.clock.settled_ms()) / 1000))
        ready = self._reads.wait(timeout)
        if self._place is None:
            self._work(ready, wants_entries=wants_entries)
        else:
            with self._place.turn():
                self._work(ready, wants_entries=wants_entries)

    def _work(self, ready: Collection[Any], *, wants_entries: bool) -> None:
        """What a turn does after its wait. ``ready``: what woke it. ``wants_entries``: whether new ones may be read."""
        lane, lag = self.lane, self._lag
        skips = lag.excess > 0 and not lane.behind
        batch = Batch()
        settled = False
        read = 0
        flooded = self._delayed.flooded
        if flooded:
            # To move due messages may take half of the turn. It is done first, so that what comes meanwhile is read and
            # sent in this turn.
            self._delayed.run(batch)
        if self._outcomes.asked and self._outcomes.file in ready:
            count = self._steps.settle(self._outcomes.answer(), batch)
            if count:
                self._busy_at = time.monotonic()
                self._read_at = 0.0
            # Where more of them wait, the next read follows at once.
            settled = count < self._most_outcomes
        lane.wake()
        self._backoffs_over.run(batch)
        woken = self._entries.asked and self._entries.file in ready and bool(self._entries.answer())
        self._more = self._more or woken
        if skips:
            self._skip_entries(batch)
        elif wants_entries and self._more:
            read = self._read_entries(batch)
        if lane.next_due_ms is not None and not (flooded and self._delayed.flooded):
            self._delayed.run(batch)
        self._steps.advance(batch)
        if read and not self._more and self._place is None:
            # In a chain the leaders of other versions wait until this one has read its stream.
            moved = bool(batch.dispatches or batch.acknowledged or batch.delayed)
            self._read_at = time.monotonic() + self._read_pause.seconds(read, moved=moved)
        if skips and lag.again and not lag.excess:
            lag.look()
        if settled:
            pause_s = self._outcome_pause.seconds()
            self._ask_at = time.monotonic() + pause_s if pause_s else 0.0
        now = time.monotonic()
        if now >= self.lease_watch.look_at:
            if self.lease_watch.is_urgent(now):
                self.lease_watch.look_at = self.lease_watch.check_at
                self.lease_watch.look()
            else:
                self._check()
        if time.monotonic() >= self._sweep_at:
            self._retention.sweep(briefly=lane.fresh.are_few)
        if lane.behind:
            self._rebuild.read_on()
        self._refill.run()

    def _check(self) -> None:
        began = time.monotonic()
        due = self.lease_watch.look_at = began + LEASE_CHECK_S
        # Tickets may stand still until the leases were looked at.
        self.lease_watch.look()
        self._intake.look()
        self._dead_log.look()
        self._lag.look()
        self._breakers.look()
        self._unknown_tasks.look()
        self.manual_changes.look()
        self._retention.remove()
        if self._place is not None:
            self._place.look()
        # Someone may have set the group back by hand. No blocking read reports that.
        self._more = True
        ended = time.monotonic()
        self.lease_watch.rests_until = ended + CHECK_REST * (ended - began)
        self.lease_watch.check_at = max(due, self.lease_watch.rests_until)
        if self.lease_watch.look_at == due:
            self.lease_watch.look_at = self.lease_watch.check_at
        # Else a lease ends before that, or a heartbeat is missing.

    def _read_entries(self, batch: Batch) -> int:
        entries = self._new_entries(most=self._lag.room)
        self._delayed.read_with(entries)
        self.lane.read_all = not self._more
        for entry in entries:
            self._reading.ingest(entry, batch)
        self.lane.read_all = False
        self._have_read(entries)
        self._lag.was_read(len(entries))
        return len(entries)

    def _skip_entries(self, batch: Batch) -> None:
        entries = self._new_entries(most=self._lag.excess, names=True)
        now_ms = self._term.clock.server_ms()
        skipped = 0
        for entry in entries:
            later = self._reading.overtaken(entry, now_ms)
            if later is not None and later.options is not None:
                self.lane.delay(later, later.options.due_ms, batch)
            else:
                skipped += 1
                self.lane.skip(entry[0].decode(), batch)
        self._have_read(entries)
        self._lag.took_off(len(entries), skipped)

    def _new_entries(self, *, most: int, names: bool = False) -> Sequence[Any]:
        """Reads new entries, which are pending then. Arguments as for `Reading.read_on`."""
        try:
            found = self._reading.read_on(id_text(self.lane.read_to), names=names, most=most)
        except GroupMoved as exc:
            self.manual_changes.put_group_back(str(exc))
            return ()
        self._more = found.more or len(found.entries) >= most
        if self._place is not None:
            self._place.unread = self._more
        # Without any, the entry that woke the loop was deleted in the meantime.
        self.manual_changes.was_read(len(found.entries))
        return found.entries

    def _have_read(self, entries: Sequence[Any]) -> None:
        if entries:
            self._busy_at = time.monotonic()
            self.lane.read_to = id_key(entries[-1][0].decode())
