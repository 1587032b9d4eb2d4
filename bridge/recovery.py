"""What the leader does beside the path of messages: leases, consumers that come and go, what went astray.

Who is authoritative: Redis. A consumer is over when the key of its incarnation's lease is gone; missing heartbeats only
make the leader look sooner. What it wrote before is read first: an outcome that is in the stream counts, whoever is
dead by now. The script that moves the tickets checks both again, in the step that moves them.

After an outage of the server nobody is judged for one lease: the workers could not renew, either. A consumer that gave
its lease up itself (a good-bye, a death notice) needs no judgement.

**The culprit.** A message that ends its consumer must not do so for ever, and what was in flight beside it must not be
charged for it. When a death notice names the one message that was running, that one is charged with an attempt. When it
names several, or when nobody can know what ran (the whole machine is gone), each that may have been running gets a
*loss* instead. A message with `SUSPECT_AFTER` losses is a suspect, and goes out alone to a consumer that has nothing
else; when that one ends, too, the message is convicted, and charged. One that ends in any other way is cleared.

Anti-entropy: with each renewal a worker tells what it holds. A run that two successive reports do not name, and that
is not in the worker's queue, was lost on the way (`celery purge`, a deleted queue, a reply that a dying connection
swallowed), or is merely late in the worker's hands. So the very same run goes out again, to the same incarnation, with
the fences that it has: a worker that never had it takes it, one that has it refuses it, and one that had it and forgot
it gives it back. No new fence is given while a life that may still run the old one holds its lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger

from bridge.outcomes import Kind, Outcome
from bridge.picture import Consumer, Ticket
from routing import records
from routing.errors import LaneConflict, NotLeading
from routing.history import What
from routing.policies import PolicyName
from routing.records import LostAttempt
from routing.transitions import Batch, drain, forget, reroute, resend
from routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Seconds for which an order to drain a consumer that is not registered is kept.
DRAIN_KEPT_S = 3600


class Recovery:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane
        self._settings = leader.settings
        #: Nobody is judged before this (monotonic).
        self.amnesty_until = 0.0
        #: Incarnation that gave its lease up -> fences of what it was running then.
        self.given_up: dict[str, frozenset[int]] = {}

    def grant_amnesty(self) -> None:
        """The server was away: for one lease nobody is judged by it."""
        self.amnesty_until = time.monotonic() + self._settings.lease

    # -- consumers -----------------------------------------------------------------------------------------------

    def find_consumers(self) -> dict[str, int]:
        """Takes new registrations into the picture; the ms that each known lease has left (negative: over)."""
        keys = self._settings.keys
        lane = self._lane
        with self._leader.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.consumers)
            pipe.hgetall(keys.drains)
            registrations, drains = pipe.execute()
        for name, registration in registrations.items():
            told = orjson.loads(registration)
            incarnation = told["incarnation"]
            known = lane.consumers.get(incarnation)
            if known is None:
                consumer = Consumer(name.decode(), incarnation, told["queue"], int(told["slots"]), registration)
                consumer.alive = False  # until its lease was seen
                lane.consumers[incarnation] = consumer
            else:
                known.registration = registration
            if told.get("leaving"):
                self.close_consumer(incarnation)
            order = orjson.loads(drains.get(name, b"null"))
            # The order is for one life of the process, which may have several incarnations.
            lane.consumers[incarnation].draining = order is not None and order["started"] == told.get("started")
        for name, text in drains.items():
            self._forget_drain(name, orjson.loads(text), registrations.get(name))
        with self._leader.redis.pipeline(transaction=False) as pipe:
            for incarnation in lane.consumers:
                pipe.pttl(keys.lease(incarnation))
            left = dict(zip(lane.consumers, pipe.execute(), strict=True))
        for incarnation, ms in left.items():
            consumer = lane.consumers[incarnation]
            if ms > 0 and not consumer.alive and consumer.registration:
                consumer.alive = True
                logger.info("consumer %s is here, %d slots, incarnation %s", consumer.name, consumer.slots, incarnation)
                if lane.settings.policy is PolicyName.RENDEZVOUS:
                    # Tickets whose place is at the new one move there, between two messages.
                    for other in lane.consumers.values():
                        lane.free_ready(other)
        return left

    def _forget_drain(self, name: bytes, order: dict[str, Any], registration: bytes | None) -> None:
        """Lifts an order that was for a process that is not there any more. One that lost its lease comes back."""
        if registration is not None:
            over = orjson.loads(registration).get("started") != order["started"]
        else:
            over = time.time() - order["at_ms"] / 1000 > DRAIN_KEPT_S
        if over:
            drain(self._leader.redis, self._leader.leadership, name.decode(), "")

    def close_consumer(self, incarnation: str) -> None:
        """The consumer shuts down: it finishes what runs there, and gets nothing more."""
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and not consumer.leaving:
            consumer.leaving = True
            logger.info("consumer %s is leaving", consumer.name)
            self._lane.free_ready(consumer)

    def look(self) -> None:
        """Looks at all leases, moves the tickets of consumers that are over, and looks for what went astray."""
        left = self.find_consumers()
        amnesty = time.monotonic() < self.amnesty_until
        for incarnation in [incarnation for incarnation, ms in left.items() if ms <= 0]:
            if not amnesty or incarnation in self.given_up:
                self._retire(self._lane.consumers[incarnation])
        # Of those that were retired before their word was read, nothing is to be told any more.
        self.given_up = {i: ran for i, ran in self.given_up.items() if i in self._lane.consumers}
        self._leader.queues.find_recovered()
        self._find_lost([c for c in self._lane.consumers.values() if c.alive and c.tickets])
        # A consumer that came, or tickets that lost theirs.
        self._leader.advance(Batch())

    def _retire(self, consumer: Consumer) -> None:
        """The lease of ``consumer`` is over."""
        lane = self._lane
        consumer.alive = False
        lane.free_ready(consumer)
        self._leader.settle_all()
        while consumer.tickets:
            word = self._reroute(consumer)
            if word is ReturnWord.UNREAD:
                self._leader.settle_all()
            elif word is ReturnWord.ALIVE:
                consumer.alive = True
                return
            elif word is ReturnWord.DEPOSED:
                raise NotLeading("another master leads")
            elif word is not ReturnWord.OK:  # a record, or the group, is not as it was
                raise LaneConflict(f"the tickets of {consumer.name} are not where this master thought they were")
        if consumer.registration:
            word = forget(
                self._leader.redis, self._leader.leadership, consumer.name, consumer.incarnation, consumer.registration
            )
            if word is ReturnWord.DEPOSED:
                raise NotLeading("another master leads")
        del lane.consumers[consumer.incarnation]
        logger.warning("consumer %s is gone (incarnation %s)", consumer.name, consumer.incarnation)

    def _reroute(self, consumer: Consumer) -> ReturnWord:
        lane = self._lane
        settling = self._leader.settling
        now_ms = int(time.time() * 1000)
        ran = self.given_up.get(consumer.incarnation)
        tickets: list[Ticket] = sorted(consumer.tickets, key=lambda ticket: ticket.run_fence)
        cut_off = {ticket for ticket in tickets if ran is None or ticket.fence in ran}
        cause = f"lost with {consumer.name}"
        notes = Batch()
        moves = []
        verdicts: dict[Ticket, tuple[int, int, LostAttempt | None, str]] = {}
        ids: list[str] = []
        for ticket in tickets:
            ids += [message.id for message in ticket.run]
            attempt, losses, lost = ticket.attempt, ticket.losses, ticket.lost
            if ticket in cut_off:
                lost = LostAttempt(attempt, ticket.fence, consumer.name, cause)
                if len(cut_off) == 1 and (ran is not None or losses > 0):
                    attempt += 1
                else:
                    losses += 1
            what = What.LOST if ticket in cut_off else What.RETURNED
            settling.note_run(notes, ticket, what, Outcome(ticket.run[0].id, ticket.fence, Kind.LOST))
            told = (cause if lost is not None else "", losses, lost)
            tail = records.tail("", "", attempt, [ticket.run[0].id], now_ms, *told)
            verdicts[ticket] = (attempt, losses, lost, records.record(records.AWAITING, tail))
            moves.append((ticket.id, ticket.record, verdicts[ticket][3], now_ms))
        word = reroute(
            self._leader.redis,
            self._leader.leadership,
            consumer.incarnation,
            self._leader.last_outcome,
            moves,
            ids,
            notes.history,
            self._leader.learn_history_cap(len(notes.history)),
        )
        if word is not ReturnWord.OK:
            return word
        for ticket in tickets:
            # First what it has behind it, which says whether a message that was put back may go before it.
            ticket.attempt, ticket.losses, ticket.lost, ticket.record = verdicts[ticket]
            lane.take_back(ticket)
            ticket.consumer = None
            ticket.cause = cause if ticket.lost is not None else ""
            lane.hold_back(ticket, now_ms)
        self._after_reroute(tickets, cause)
        lane.wake(now_ms)
        logger.warning(
            "re-routed %d tickets (%d messages, %d may have been running) of %s",
            *(len(tickets), len(ids), len(cut_off), consumer.name),
        )
        return word

    def _after_reroute(self, tickets: list[Ticket], cause: str) -> None:
        """What cannot come again is dead; a ticket that was to be parked stands still."""
        batch = Batch()
        for ticket in tickets:
            if ticket.park_reason is not None:
                self._lane.park(ticket, ticket.park_reason, batch)
            if self._leader.settling.exhausted(ticket):
                self._leader.settling.condemn(ticket, batch, cause)
            elif ticket.suspect:
                batch.count("suspect")
                logger.warning(
                    "ticket %s: %d consumers ended while message %s may have been running: it goes out alone",
                    *(ticket.id, ticket.losses, ticket.waiting[0].id),
                )
        if batch:
            self._leader.advance(batch)

    # -- what went astray ----------------------------------------------------------------------------------------

    def _find_lost(self, consumers: list[Consumer]) -> None:
        """Sends again what two reports of its consumer do not name, and its queue does not hold."""
        if not consumers:
            return
        keys = self._settings.keys
        period = self._settings.lease / 3
        now = time.monotonic()
        old = {c: [t for t in c.tickets if now - t.dispatched_at > 2 * period] for c in consumers}
        # All that have something, or a queue that nobody takes from would be noticed a good part of a lease later.
        with self._leader.redis.pipeline(transaction=False) as pipe:
            for consumer in consumers:
                pipe.get(keys.held(consumer.incarnation))
                pipe.lindex(consumer.queue, -1)
            replies = pipe.execute()
        suspects: list[Ticket] = []
        for i, consumer in enumerate(consumers):
            report, queued = replies[2 * i], replies[2 * i + 1]
            if queued:
                self._leader.queues.probe(consumer, queued, now)
            if not report or queued:
                # Without a report nothing is known; what is in the queue may be what is missing.
                consumer.missed.clear()
                continue
            told = orjson.loads(report)
            held = set(told["fences"])
            # A run is held by the fence that it was sent with: its first one, or a later one if it was sent again.
            missing = {
                ticket.run_fence: ticket
                for ticket in old[consumer]
                if held.isdisjoint(range(ticket.run_fence, ticket.fence + len(ticket.run)))
            }
            consumer.missed = {f: n for f, n in consumer.missed.items() if f in missing}
            for fence, ticket in missing.items():
                if consumer.missed.setdefault(fence, told["n"]) < told["n"]:
                    suspects.append(ticket)
        if not suspects:
            return
        # An outcome is written before its run leaves the worker's report: if there is one, it is in the stream.
        fences = {ticket: ticket.run_fence for ticket in suspects}
        self._leader.settle_all()
        batch = Batch()
        for ticket, fence in fences.items():
            if ticket.run and ticket.run_fence == fence and ticket.consumer is not None:
                self._resend(ticket, ticket.consumer, batch)
        self._leader.advance(batch)

    def _resend(self, ticket: Ticket, consumer: Consumer, batch: Batch) -> None:
        text = self._leader.text_again(ticket, consumer)
        word = resend(self._leader.redis, self._leader.leadership, consumer.name, ticket.id, ticket.record, text)
        if word is not ReturnWord.OK:
            raise LaneConflict(f"ticket {ticket.id!r} is not where this master thought it was")
        logger.warning(
            "ticket %s: its run (fence %d) is not known to %s: it goes out again",
            *(ticket.id, ticket.fence, consumer.name),
        )
        batch.count("lost")
        consumer.missed.pop(ticket.run_fence, None)
        ticket.dispatched_at = time.monotonic()
