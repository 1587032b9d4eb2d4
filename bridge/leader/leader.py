"""The leader of one lane: it reads messages and outcomes, and writes each batch with one script.

The leader has one thread and one loop. The loop waits in two blocking reads at once: one of the stream, one of the
outcome stream. They use two connections that one selector polls. So the leader wakes up within one round trip, and an
idle lane costs nothing. Under load, all that arrives while a script runs goes into the next batch.

The leader keeps a picture of its lane in memory. When the picture may differ from Redis (a lost reply, a refused
record), the leader throws the picture away and reads the lane again.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from bridge.app.traits import Traits
from bridge.leader.consumers.http_wakes import HttpWakes
from bridge.leader.consumers.lease_watch import LeaseWatch
from bridge.leader.consumers.leases import Leases
from bridge.leader.consumers.lost_runs import LostRuns
from bridge.leader.consumers.membership import Consumers
from bridge.leader.consumers.queues import Queues
from bridge.leader.consumers.reroute import Reroute
from bridge.leader.duties.dead_log import DeadLog
from bridge.leader.duties.intake import Intake
from bridge.leader.duties.lag import Lag
from bridge.leader.duties.operator_orders import OperatorOrders
from bridge.leader.duties.refill import Refill
from bridge.leader.duties.unknown_tasks import UnknownTasks
from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.chained_lane import ChainedLane
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.outcome_pause import OutcomePause
from bridge.leader.picture.planner import Planner
from bridge.leader.picture.settling import Settling
from bridge.leader.repair.foreign_deliveries import ForeignDeliveries
from bridge.leader.repair.manual_changes import ManualChanges
from bridge.leader.step.chained_steps import ChainedSteps
from bridge.leader.step.steps import Steps
from bridge.leader.step.term import Term
from bridge.leader.stream.backoffs_over import BackoffsOver
from bridge.leader.stream.delayed import Delayed
from bridge.leader.stream.first_messages import FirstMessages
from bridge.leader.stream.pending import PendingList
from bridge.leader.stream.reading import Reading
from bridge.leader.stream.retention import Retention
from bridge.leader.takeover.formats import bring_up
from bridge.leader.takeover.rebuild import Rebuild
from bridge.link.connections import Wire
from bridge.protocol.agreement import LANE_FORMAT, arrive
from bridge.protocol.envelope import Envelopes
from bridge.protocol.registration import Registrations
from bridge.routing.batch import Batch
from bridge.routing.errors import GroupMoved
from bridge.routing.ids import id_key, id_text
from bridge.routing.transitions import introduce
from bridge.routing.versions import follow

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.leader.picture.chain import Place
    from bridge.leader.step.dropped_versions import DroppedVersions
    from bridge.link.server_clock import ServerClock

#: Seconds without work after which a lane may rest.
REST_S = 5.0
#: Longest sleep of the loop, in seconds. A timer may be late by this much when nothing else happens.
BLOCK_S = 5.0
#: Seconds between two checks of the leases, and of everything else that is checked at intervals.
LEASE_CHECK_S = 1.0
#: After a check, messages have the loop for at least this many times the time that the check took. A check waits for
#: some twelve replies one after the other. On a slow line it would take most of the time.
CHECK_REST = 3


class SleepingPlace(NamedTuple):
    """How a lane was left when it went to rest."""

    stream: str
    read_to: str
    outcomes: str
    last_outcome: str
    group: str
    #: Number of entries that are pending in the group: those of parked tickets.
    pending: int


class Leader:
    """Leads a lane for one term. It builds the parts, gives each of them what it needs, and runs the loop.

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
        self._older = [older.stream for older in app_lane.older]
        settings = app_lane.settings
        registrations = Registrations()
        term = self._term = Term.begin(app, url, app_lane, token, clock, registrations.knows)
        lane = self.lane = (
            Lane(settings, now_ms=clock.lane_ms)
            if place is None
            else ChainedLane(settings, place.defers, now_ms=clock.lane_ms)
        )
        traits = Traits(app, settings, registrations)
        traits.on_change.append(term.parser.forget)
        envelopes = Envelopes(app, traits.ignores_result, app_lane.id_suffix)
        self._breakers = Breakers(lane)
        self._intake = Intake(term)
        settling = Settling(
            lane,
            max_attempts=traits.max_attempts,
            delay_ms=settings.backoff.delay_ms,
            parks=traits.parks,
            breakers=self._breakers,
            letters_full=lambda: not self._intake.open,
        )
        self._planner = Planner(lane, envelopes, traits.of, settling.expire)
        self._outcome_pause = OutcomePause(lane)
        steps = self._steps = (
            ChainedSteps(term, lane, self._planner, envelopes, settling, place, dropped)
            if place is not None and isinstance(lane, ChainedLane)
            else Steps(term, lane, self._planner, envelopes, settling)
        )
        self._dead_log = DeadLog()
        steps.after_write += (self._intake.settled, self._dead_log.settled)
        steps.after_write.append(HttpWakes(term, lane).written)
        reading = self._reading = Reading(term, lane, has_company=app_lane.is_subscription)
        delayed = self._delayed = Delayed(term, lane, steps, reading)
        pending = PendingList(term, lane)
        self._lag = Lag(term, lane, pending)
        first_messages = FirstMessages(term, lane, pending, settling)
        self._queues = Queues(term, lane, steps, settling)
        leases = Leases(clock, settings.lease)
        consumers = Consumers(term, lane, steps, leases, registrations, traits)
        reroute = Reroute(term, lane, steps, settling, leases, shares_workers=app_lane.shares_workers)
        lost_runs = LostRuns(term, steps, self._queues)
        self.lease_watch = LeaseWatch(term, lane, steps, leases, consumers, reroute, self._queues, lost_runs)
        self._pending = pending
        self._retention = Retention(term, steps)
        self.manual_changes = ManualChanges(term, lane, steps, pending, ForeignDeliveries(term, lane, settling))
        self._operator_orders = OperatorOrders(term, lane, steps, pending, self._queues, self.manual_changes)
        parts = (term, lane, steps, reading, pending, first_messages, self.manual_changes)
        self._rebuild = Rebuild(*parts, consumers, delayed)
        self._refill = Refill(*parts, delayed)
        self._unknown_tasks = UnknownTasks(term, lane, steps, settling, self._breakers, registrations, self._refill)
        self._backoffs_over = BackoffsOver(term, lane, settling)
        self._entries = Wire(url)
        self._outcomes = Wire(url)
        self._registered: dict[Wire, Any] = {}
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.setblocking(False)
        self._stop = False
        #: Whether the records were read. Waiting messages are taken in after that.
        self._has_read = False
        #: Whether the stream may have new entries that no blocking read has reported.
        self._more = True
        #: When something came last (monotonic seconds). A lane to which nothing has come may rest at once.
        self._busy_at = float("-inf")
        #: When to read the outcome stream next (monotonic seconds).
        self._ask_at = 0.0

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
        with suppress(OSError):
            self._wake_there.send(b"!")

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
        self._registered.clear()
        self.lease_watch.look_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_here, selectors.EVENT_READ)
            while not self._stop and led():
                self._turn(selector)
                if (
                    time.monotonic() - self._busy_at > REST_S
                    and may_rest()
                    and self._is_at_rest
                    and self._retention.idle
                ):
                    self._rest()
                    return True
        return False

    def close(self) -> None:
        """Closes everything."""
        if self._place is not None:
            self._place.leave()
        self._entries.close()
        self._outcomes.close()
        self._term.close()
        self._wake_here.close()
        self._wake_there.close()

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
        # A blocking read of them may be under way.
        self._entries.close()
        self._outcomes.close()
        self._term.rest()
        # Only a notice asks for a look now.
        self.lease_watch.look_at = float("inf")

    @property
    def sleeping_place(self) -> SleepingPlace:
        """What must not change while the lane is at rest without a look at it."""
        keys = self._term.keys
        read_to = id_text(self.lane.read_to)
        return SleepingPlace(
            keys.stream, read_to, keys.outcomes, self._steps.last_outcome, keys.group, self._pending.expected
        )

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
            if not self._is_at_rest:
                return False
            if not check and self.lease_watch.look_at > time.monotonic():
                return True
            self._check()
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
        arrive(term.redis, self._app, term.settings)
        bring_up(term)
        introduce(term.redis, term.leadership, orjson.dumps(term.facts), LANE_FORMAT)
        if self._older:
            follow(term.redis, term.leadership, self._older)
        uptime_s = int(term.redis.info("server").get("uptime_in_seconds", 0))
        if uptime_s < term.settings.lease:
            # The server has just started. Workers could not renew their leases while it was away.
            self.lease_watch.spare_leases()
        self._queues.know_server(uptime_s)
        if not term.settings.history:
            # The history is off now. An old history with a gap would look as if messages were lost.
            term.wire.call("DEL", term.keys.history)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        lane = self.lane
        block_ms = int(BLOCK_S * 1000)
        pause = self._ask_at - time.monotonic()
        if not self._outcomes.asked and pause <= 0:
            self._outcomes.ask(*self._steps.question("BLOCK", block_ms))
        lag = self._lag
        wants_entries = self._intake.open and lag.open and not lane.behind and not lane.has_enough_work
        if wants_entries and not self._more and not self._entries.asked:
            # This read only wakes the loop. A script reads the entries, because a script can check the term first. The
            # script reads from where the group stands, so any newer entry is a reason to wake up.
            read_to = id_text(lane.read_to)
            self._entries.ask("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._term.keys.stream, read_to)
        for wire in (self._entries, self._outcomes):
            if wire.asked and self._registered.get(wire) is not wire.file:
                selector.register(wire.file, selectors.EVENT_READ)
                self._registered[wire] = wire.file
        now_ms = lane.now_ms()
        timeout = max(0.0, min(BLOCK_S, self.lease_watch.look_at - time.monotonic()))
        skips = lag.excess > 0 and not lane.behind
        waits = skips or self._planner.left_some or self._backoffs_over.waits or self._refill.waits
        if waits or lane.behind or (wants_entries and self._more):
            timeout = 0.0
        if pause > 0:
            timeout = min(timeout, pause)
        if lane.next_due_ms is not None and (until_due := self._delayed.timeout_s()) is not None:
            timeout = min(timeout, until_due)
        if lane.backoffs:
            timeout = max(0.0, min(timeout, (lane.backoffs[0][0] - now_ms) / 1000))
        ready = {key.fileobj for key, _ in selector.select(timeout)}
        if self._wake_here in ready:
            self._wake_here.recv(4096)
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
        if self._outcomes.asked and self._outcomes.file in ready:
            if self._steps.settle(self._outcomes.answer(), batch):
                self._busy_at = time.monotonic()
            settled = True
        lane.wake(lane.now_ms())
        self._backoffs_over.run(batch)
        woken = self._entries.asked and self._entries.file in ready and bool(self._entries.answer())
        self._more = self._more or woken
        if skips:
            self._skip_entries(batch)
        elif wants_entries and self._more:
            self._read_entries(batch)
        if lane.next_due_ms is not None:
            self._delayed.run(batch)
        self._steps.advance(batch)
        if skips and lag.again and not lag.excess:
            lag.look()
        if settled:
            pause_s = self._outcome_pause.seconds()
            self._ask_at = time.monotonic() + pause_s if pause_s else 0.0
        if time.monotonic() >= self.lease_watch.look_at:
            self._check()
        if lane.behind:
            self._rebuild.read_on()
        self._refill.run()

    def _check(self) -> None:
        began = time.monotonic()
        due = self.lease_watch.look_at = began + LEASE_CHECK_S
        self._intake.look()
        self._dead_log.look()
        self._lag.look()
        self.lease_watch.look()
        self._breakers.look()
        self._unknown_tasks.look()
        if self.manual_changes.look():
            self._retention.sweep()
        self._retention.remove()
        if self._place is not None:
            self._place.look()
        # Someone may have set the group back by hand. No blocking read reports that.
        self._more = True
        ended = time.monotonic()
        self.lease_watch.rests_until = ended + CHECK_REST * (ended - began)
        if self.lease_watch.look_at == due:
            self.lease_watch.look_at = max(due, self.lease_watch.rests_until)
        # Else a lease ends before that, or a heartbeat is missing.

    def _read_entries(self, batch: Batch) -> None:
        entries = self._new_entries(most=self._lag.room)
        self._delayed.read_with(entries)
        for entry in entries:
            self._reading.ingest(entry, batch)
        self._have_read(entries)
        self._lag.was_read(len(entries))

    def _skip_entries(self, batch: Batch) -> None:
        entries = self._new_entries(most=self._lag.excess, names=True)
        for entry in entries:
            self.lane.skip(entry[0].decode(), batch)
        self._have_read(entries)
        self._lag.skipped(len(entries))

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
