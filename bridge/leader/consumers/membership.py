"""The consumers of a lane, taken into the leader's picture: who registered, leaves or is drained, whose lease holds.

Whether a lease that is gone is over for certain, and what becomes of its tickets, is in
`bridge.leader.consumers.lease_watch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer
from bridge.protocol.agreement import differences
from bridge.routing.policies import PolicyName
from bridge.routing.transitions import drain

if TYPE_CHECKING:
    from bridge.app.traits import Traits
    from bridge.leader.consumers.leases import Leases
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.inbox import Notice
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.protocol.registration import Registration, Registrations
    from bridge.routing.transitions import Batch

logger = get_logger(__name__)

#: Seconds for which an order to drain a consumer that is not registered is kept.
DRAIN_KEPT_S = 3600

#: Incarnations that this process has compared itself with, whichever term it led in; and how many are remembered.
_compared: set[str] = set()
COMPARED_MAX = 10_000


class Consumers:
    """Of one term, on the leader's thread."""

    def __init__(
        self, term: Term, lane: Lane, steps: Steps, leases: Leases, registrations: Registrations, traits: Traits
    ) -> None:
        self._term = term
        self._lane = lane
        self._leases = leases
        self._registrations = registrations
        self._traits = traits
        steps.on_notice[b"leaving"] = self._leaving

    def find(self) -> dict[str, int]:
        """Takes new registrations into the picture; the ms that each known lease has left (negative: over)."""
        keys = self._term.keys
        lane = self._lane
        with self._term.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.consumers)
            pipe.hgetall(keys.drains)
            registrations, drains = pipe.execute()
        registered = self._registrations.read(registrations)
        for name, registration in registered.items():
            consumer = self._register(name.decode(), registration)
            self._leases.know(registration.incarnation, registration.lease_ms)
            if registration.leaving:
                self.close(registration.incarnation)
            order = orjson.loads(drains.get(name, b"null"))
            # The order is for one life of the process, which may have several incarnations.
            consumer.draining = order is not None and order["started"] == registration.started
        for name, text in drains.items():
            self._forget_drain(name, orjson.loads(text), registered.get(name))
        left = self._leases.ask(self._term.redis, self._term.leadership, lane.consumers)
        for incarnation, ms in left.items():
            consumer = lane.consumers[incarnation]
            if ms > 0 and not consumer.alive and consumer.registration:
                consumer.alive = True
                logger.info("consumer %s is here, %d slots, incarnation %s", consumer.name, consumer.slots, incarnation)
                if lane.settings.policy is PolicyName.RENDEZVOUS:
                    # Tickets whose place is at the new one move there, between two messages.
                    for other in lane.consumers.values():
                        lane.free_ready(other)
        lane.stranded.fit()
        return left

    def _register(self, name: str, registration: Registration) -> Consumer:
        """The consumer that registered so, in the picture."""
        lane = self._lane
        # One of an older version says nothing of its tasks, and knows what this master knows.
        tasks = registration.tasks if registration.tasks is not None else self._term.own_tasks
        known = lane.consumers.get(registration.incarnation)
        if known is None:
            facts = (name, registration.incarnation, registration.queue, registration.slots, registration.text, tasks)
            consumer = lane.consumers[registration.incarnation] = Consumer(*facts)
            consumer.alive = False  # until its lease was seen
            self._traits.forget()
            self._compare(name, registration)
            return consumer
        known.registration = registration.text
        # Its pool may have grown or shrunk.
        known.slots = max(1, registration.slots)
        if known.empty != (registration.slots < 1):
            known.empty = not known.empty
            lane.free_ready(known)
        if known.tasks is not tasks:
            known.tasks = tasks
            self._traits.forget()
            # What waits for it may be none of its business any more.
            lane.free_ready(known)
        return known

    def _compare(self, name: str, registration: Registration) -> None:
        """Says once in which version and settings a consumer differs from this master."""
        if registration.incarnation in _compared:
            return
        if len(_compared) > COMPARED_MAX:
            _compared.clear()
        _compared.add(registration.incarnation)
        for difference in differences(registration.facts, self._term.facts):
            logger.warning("consumer %s differs from this master: %s", name, difference)

    def _forget_drain(self, name: bytes, order: dict[str, Any], registration: Registration | None) -> None:
        """Lifts an order that was for a process that is not there any more. One that lost its lease comes back."""
        if registration is not None:
            over = registration.started != order["started"]
        else:
            over = self._lane.now_ms() - order["at_ms"] > DRAIN_KEPT_S * 1000
        if over:
            drain(self._term.redis, self._term.leadership, name.decode(), "")

    def close(self, incarnation: str) -> None:
        """The consumer shuts down: it finishes what runs there, and gets nothing more."""
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and not consumer.leaving:
            consumer.leaving = True
            logger.info("consumer %s is leaving", consumer.name)
            self._lane.stranded.fit()
            self._lane.free_ready(consumer)

    def _leaving(self, notice: Notice, _batch: Batch) -> None:
        self.close(notice.who)
