"""The parts of a leader: makes each of them, and gives it the others that it needs.

The order is from the bottom up: the picture of the lane, the steps, then the duties that use both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from bridge.leader.picture.read_pause import ReadPause
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
from bridge.leader.takeover.rebuild import Rebuild
from bridge.protocol.envelope import Envelopes
from bridge.protocol.registration import Registrations

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.leader.picture.chain import Place
    from bridge.leader.step.dropped_versions import DroppedVersions
    from bridge.link.server_clock import ServerClock


class Parts:
    """The parts of one leader, for one term."""

    def __init__(
        self,
        app: Celery,
        url: str,
        app_lane: AppLane,
        token: str,
        clock: ServerClock,
        place: Place | None,
        dropped: DroppedVersions | None,
    ) -> None:
        settings = app_lane.settings
        registrations = Registrations()
        term = self.term = Term.begin(app, url, app_lane, token, clock, registrations.knows)
        lane = self.lane = Lane(settings, clock) if place is None else ChainedLane(settings, place.defers, clock)
        traits = Traits(app, settings, registrations)
        traits.on_change.append(term.parser.forget)
        envelopes = Envelopes(app, traits.ignores_result, app_lane.id_suffix)
        self.breakers = Breakers(lane)
        self.intake = Intake(term)
        settling = Settling(
            lane,
            max_attempts=traits.max_attempts,
            delay_ms=settings.backoff.delay_ms,
            parks=traits.parks,
            breakers=self.breakers,
            letters_full=lambda: not self.intake.open,
            id_suffix=app_lane.id_suffix,
        )
        self.planner = Planner(lane, envelopes, traits.of, settling.expire)
        self.outcome_pause = OutcomePause(lane)
        self.read_pause = ReadPause(lane, self.planner.has_room)
        steps = self.steps = (
            ChainedSteps(term, lane, self.planner, envelopes, settling, place, dropped)
            if place is not None and isinstance(lane, ChainedLane)
            else Steps(term, lane, self.planner, envelopes, settling)
        )
        self.dead_log = DeadLog()
        steps.after_write += (self.intake.settled, self.dead_log.settled)
        steps.after_write.append(HttpWakes(term, lane).written)
        reading = self.reading = Reading(term, lane, has_company=app_lane.is_subscription)
        delayed = self.delayed = Delayed(term, lane, steps, reading)
        pending = PendingList(term, lane)
        self.lag = Lag(term, lane, pending)
        first_messages = FirstMessages(term, lane, pending, settling)
        self.queues = Queues(term, lane, steps, settling)
        leases = Leases(clock, settings.lease)
        consumers = Consumers(term, lane, steps, leases, registrations, traits)
        reroute = Reroute(term, lane, steps, settling, leases, shares_workers=app_lane.shares_workers)
        lost_runs = LostRuns(term, steps, self.queues)
        self.lease_watch = LeaseWatch(term, lane, steps, leases, consumers, reroute, self.queues, lost_runs)
        self.pending = pending
        self.manual_changes = ManualChanges(term, lane, steps, pending, ForeignDeliveries(term, lane, settling))
        self.retention = Retention(term, steps, self.manual_changes.compare)
        self.operator_orders = OperatorOrders(
            term, lane, steps, pending, self.queues, self.manual_changes, consumers.find
        )
        parts = (term, lane, steps, reading, pending, first_messages, self.manual_changes)
        self.rebuild = Rebuild(*parts, consumers, delayed)
        self.refill = Refill(*parts, delayed)
        self.unknown_tasks = UnknownTasks(term, lane, steps, settling, self.breakers, registrations, self.refill)
        self.backoffs_over = BackoffsOver(term, lane, settling)
