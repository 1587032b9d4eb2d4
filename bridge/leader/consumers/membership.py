"""Takes the consumers of a lane into the leader's picture: registrations, shutdowns, drain orders and leases.

`bridge.leader.consumers.lease_watch` decides whether a missing lease is certainly over, and has the tickets moved.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer
from bridge.protocol import unreadable
from bridge.protocol.agreement import differences
from bridge.protocol.drain_orders import DrainOrder, read_drain_order
from bridge.protocol.outcome_entries import EntryKind, Notice
from bridge.protocol.registration import HTTP
from bridge.routing.policies import PolicyName
from bridge.routing.transitions import drain

if TYPE_CHECKING:
    from bridge.app.traits import Traits
    from bridge.leader.consumers.leases import Leases
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.protocol.registration import Registration, Registrations
    from bridge.routing.batch import Batch

logger = get_logger(__name__)

#: How long a drain order is kept for a consumer that is not registered, in seconds from when this leader missed it.
DRAIN_KEPT_S = 3600

#: Incarnations that a leader of this process has compared itself with, and how many of them are remembered.
_compared: set[str] = set()
COMPARED_MAX = 10_000


class Consumers:
    """The consumers of one term, on the leader's thread."""

    def __init__(
        self, term: Term, lane: Lane, steps: Steps, leases: Leases, registrations: Registrations, traits: Traits
    ) -> None:
        self._term = term
        self._lane = lane
        self._leases = leases
        self._registrations = registrations
        self._traits = traits
        #: Consumer with a drain order -> when it was first missing, Unix ms.
        self._missed: dict[bytes, int] = {}
        steps.on_notice[EntryKind.LEAVING] = self._leaving

    def find(self) -> dict[str, int]:
        """Takes new registrations into the picture. Returns the ms that each known lease has left (negative: over)."""
        keys = self._term.keys
        lane = self._lane
        with self._term.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.consumers)
            pipe.hgetall(keys.drains)
            registrations, drains = pipe.execute()
        registered = self._registrations.read(registrations, partial(unreadable.skip, keys.consumers))
        orders = unreadable.read_all(keys.drains, drains, lambda _name, text: read_drain_order(text))
        for name, registration in registered.items():
            known = lane.consumers.get(registration.incarnation)
            if known is not None and known.registration is registration and not known.draining and name not in orders:
                # There may be ten thousand of them.
                continue
            consumer = self._register(name.decode(), registration)
            self._leases.know(registration.incarnation, registration.lease_ms)
            if registration.leaving:
                self.close(registration.incarnation)
            order = orders.get(name)
            consumer.draining = order is not None and order.is_for(registration)
        lane.over_http = frozenset(one.name for one in lane.consumers.values() if not one.takes_bundles)
        missing = orders.keys() - registered.keys()
        self._missed = {name: self._missed.get(name, lane.now_ms()) for name in missing}
        for name, order in orders.items():
            self._forget_drain(name, order, registered.get(name))
        left = self._leases.ask(self._term.redis, self._term.leadership, lane.consumers)
        for incarnation, ms in left.items():
            consumer = lane.consumers[incarnation]
            if ms > 0 and not consumer.alive and consumer.registration is not None:
                consumer.alive = True
                logger.info("consumer %s is here, %d slots, incarnation %s", consumer.name, consumer.slots, incarnation)
                if lane.settings.policy is PolicyName.RENDEZVOUS:
                    # The new consumer's share of tickets moves to it between two runs (`routing.policies.Ring`).
                    for other in lane.consumers.values():
                        lane.free_ready(other)
        lane.stranded.fit()
        return left

    def _register(self, name: str, registration: Registration) -> Consumer:
        """Takes a registration into the picture, and returns its consumer."""
        lane = self._lane
        # A worker of an older version does not register its tasks. Assume the same tasks as in this master's app.
        tasks = registration.tasks if registration.tasks is not None else self._term.own_tasks
        known = lane.consumers.get(registration.incarnation)
        if known is None:
            facts = (name, registration.incarnation, registration.queue, registration.slots, registration, tasks)
            consumer = lane.consumers[registration.incarnation] = Consumer(*facts)
            consumer.alive = False  # until its lease is seen
            self._traits.forget()
            self._compare(name, registration)
            return consumer
        if known.registration is None or known.registration.traits != registration.traits:
            # An operator has set a rate limit, or taken one away.
            self._traits.forget()
        known.registration = registration
        known.takes_bundles = registration.kind != HTTP
        # Its pool may have grown or shrunk.
        known.slots = max(1, registration.slots)
        if known.empty != (registration.slots < 1):
            known.empty = not known.empty
            lane.free_ready(known)
        if known.tasks is not tasks:
            known.tasks = tasks
            self._traits.forget()
            # It may not be able to run the tickets that wait for it any more.
            lane.free_ready(known)
        return known

    def _compare(self, name: str, registration: Registration) -> None:
        """Logs once how a consumer's version and settings differ from this master's."""
        if registration.incarnation in _compared:
            return
        if len(_compared) > COMPARED_MAX:
            _compared.clear()
        _compared.add(registration.incarnation)
        for difference in differences(registration.facts, self._term.facts):
            logger.warning("consumer %s differs from this master: %s", name, difference)

    def _forget_drain(self, name: bytes, order: DrainOrder, registration: Registration | None) -> None:
        """Lifts a drain order when its process is gone. A process that only lost its lease comes back."""
        if registration is not None:
            over = not order.is_for(registration)
        else:
            over = self._lane.now_ms() - self._missed[name] > DRAIN_KEPT_S * 1000
        if over:
            drain(self._term.redis, self._term.leadership, name.decode(), "")

    def close(self, incarnation: str) -> None:
        """Closes a consumer that shuts down: it finishes its messages, and gets no more."""
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and not consumer.leaving:
            consumer.leaving = True
            logger.info("consumer %s is leaving", consumer.name)
            self._lane.stranded.fit()
            self._lane.free_ready(consumer)

    def _leaving(self, notice: Notice, _batch: Batch) -> None:
        self.close(notice.who)
