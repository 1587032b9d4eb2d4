"""What the leader does beside the path of messages: leases, consumers that come and go, what went astray.

Who is authoritative: Redis. A consumer is over when the key of its incarnation's lease is gone, and the leader may
believe that (`bridge.leases`); missing heartbeats only make the leader look sooner. What it wrote before is read first:
an outcome that is in the stream counts, whoever is dead by now. The script that moves the tickets checks both again, in
the step that moves them.

After an outage of the server nobody is judged for one lease: the workers could not renew, either. A consumer that gave
its lease up itself (a good-bye, a death notice) needs no judgement.

**The culprit.** A message that ends its consumer must not do so for ever, and what was in flight beside it must not be
charged for it. When a death notice names the one message that was running, that one is charged with an attempt. When it
names several, or when nobody can know what ran (the whole machine is gone), each that may have been running gets a
*loss* instead. A message with `SUSPECT_AFTER` losses is a suspect, and goes out alone to a consumer that has nothing
else; when that one ends, too, the message is convicted, and charged. One that ends in any other way is cleared.

**Several at once.** Consumers that are lost in one moment (a rack, a switch) are one event, and nobody is charged twice
for it: a look first closes all whose lease is over, and those that miss renewals beside them, and only then moves
tickets.

Anti-entropy: with each renewal a worker tells what it holds. A run that two successive reports do not name, and that
is not in the worker's queue, was lost on the way (`celery purge`, a deleted queue, a reply that a dying connection
swallowed), or is merely late in the worker's hands. So the very same run goes out again, to the same incarnation, with
the fences that it has: a worker that never had it takes it, one that has it refuses it, and one that had it and forgot
it gives it back. No new fence is given while a life that may still run the old one holds its lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from celery.utils.log import get_logger

from bridge.about import differences
from bridge.leases import Leases
from bridge.outcomes import Kind, Outcome
from bridge.picture import Consumer, Ticket
from bridge.registration import Registration
from bridge.routing import records
from bridge.routing.errors import LaneConflict
from bridge.routing.history import What
from bridge.routing.policies import PolicyName
from bridge.routing.records import LostAttempt
from bridge.routing.transitions import Batch, drain, forget, oldest, reroute, resend
from bridge.routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Seconds for which an order to drain a consumer that is not registered is kept.
DRAIN_KEPT_S = 3600
#: Share of the lease. Workers renew when two thirds are left: what has less than this has missed a renewal.
DOUBTED = 0.5

#: Incarnations that this process has compared itself with, whichever term it led in; and how many are remembered.
_compared: set[str] = set()
COMPARED_MAX = 10_000


class GivenUp(NamedTuple):
    """What a consumer was running when its lease ended, by its own word or its watcher's; and whether it was told to
    end at once.
    """

    ran: frozenset[int]
    asked: bool


class Recovery:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane
        self._settings = leader.settings
        self.leases = Leases(leader.clock, self._settings.lease)
        #: Nobody is judged before this (monotonic).
        self.amnesty_until = 0.0
        #: Incarnation that gave its lease up -> what it was running then.
        self.given_up: dict[str, GivenUp] = {}

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
        told = self._leader.registrations.read(registrations)
        for name, registration in told.items():
            consumer = self._register(name.decode(), registration)
            self.leases.know(registration.incarnation, registration.lease_ms)
            if registration.leaving:
                self.close_consumer(registration.incarnation)
            order = orjson.loads(drains.get(name, b"null"))
            # The order is for one life of the process, which may have several incarnations.
            consumer.draining = order is not None and order["started"] == registration.started
        for name, text in drains.items():
            self._forget_drain(name, orjson.loads(text), told.get(name))
        left = self.leases.ask(self._leader.redis, self._leader.leadership, lane.consumers)
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
        tasks = registration.tasks if registration.tasks is not None else self._leader.own_tasks
        known = lane.consumers.get(registration.incarnation)
        if known is None:
            told = (name, registration.incarnation, registration.queue, registration.slots, registration.text, tasks)
            consumer = lane.consumers[registration.incarnation] = Consumer(*told)
            consumer.alive = False  # until its lease was seen
            self._leader.traits.forget()
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
            self._leader.traits.forget()
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
        for difference in differences(registration.facts, self._leader.facts):
            logger.warning("consumer %s differs from this master: %s", name, difference)

    def _forget_drain(self, name: bytes, order: dict[str, Any], registration: Registration | None) -> None:
        """Lifts an order that was for a process that is not there any more. One that lost its lease comes back."""
        if registration is not None:
            over = registration.started != order["started"]
        else:
            over = self._lane.now_ms() - order["at_ms"] > DRAIN_KEPT_S * 1000
        if over:
            drain(self._leader.redis, self._leader.leadership, name.decode(), "")

    def close_consumer(self, incarnation: str) -> None:
        """The consumer shuts down: it finishes what runs there, and gets nothing more."""
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and not consumer.leaving:
            consumer.leaving = True
            logger.info("consumer %s is leaving", consumer.name)
            self._lane.stranded.fit()
            self._lane.free_ready(consumer)

    def look(self) -> None:
        """Looks at all leases, moves the tickets of consumers that are over, and looks for what went astray."""
        left = self.find_consumers()
        amnesty = time.monotonic() < self.amnesty_until
        judged = set() if amnesty else self.leases.over(left)
        gone = [self._lane.consumers[i] for i, ms in left.items() if ms <= 0]
        over = [consumer for consumer in gone if consumer.incarnation in (judged | self.given_up.keys())]
        for consumer in gone:
            # Its lease comes back no more; whether it has stopped yet is another question.
            if consumer.alive and consumer not in over:
                consumer.alive = False
                self._lane.stranded.fit()
                self._lane.free_ready(consumer)
        self._doubt(left, over)
        if over:
            self.retire(over)
        # Of those that were retired before their word was read, nothing is to be told any more.
        self.given_up = {i: given for i, given in self.given_up.items() if i in self._lane.consumers}
        self._leader.queues.find_recovered()
        self._find_lost([c for c in self._lane.consumers.values() if c.alive and c.tickets])
        # A consumer that came, or tickets that lost theirs.
        self._leader.advance(Batch())

    def _doubt(self, left: dict[str, int], over: list[Consumer]) -> None:
        """While consumers are ``over``, others that miss renewals, too, may have been lost in the same moment, with a
        lease that merely began later: they get nothing new until a renewal is seen.
        """
        for incarnation, ms in left.items():
            consumer = self._lane.consumers[incarnation]
            late = 0 < ms < self._settings.lease_ms * DOUBTED and ms <= consumer.left_ms
            consumer.left_ms = ms
            if late and over and not consumer.doubted:
                self._lane.free_ready(consumer)
            consumer.doubted = late and (consumer.doubted or bool(over))
            if consumer.doubted:
                self._leader.look_within(ms / 1000)

    def gave_up(self, incarnation: str, ran: frozenset[int], *, asked: bool = False) -> None:
        """The word of a consumer that its lease is over, and the fences of what it was running then. ``asked``: it was
        told to end at once.
        """
        self.given_up[incarnation] = GivenUp(ran, asked)
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and consumer.alive:
            consumer.alive = False
            self._lane.stranded.fit()
            self._lane.free_ready(consumer)
        self._leader.look_within(0)

    def retire(self, consumers: list[Consumer]) -> None:
        """The leases of ``consumers`` are over. None of them is given what another one had: first all are closed, then
        what they wrote is settled, then their tickets move.
        """
        for consumer in consumers:
            consumer.alive = False
        self._lane.stranded.fit()
        for consumer in consumers:
            self._lane.free_ready(consumer)
        self._leader.settle_all()
        for consumer in consumers:
            self._retire(consumer)

    def _retire(self, consumer: Consumer) -> None:
        """Moves the tickets of ``consumer``, and forgets it."""
        lane = self._lane
        while consumer.tickets:
            word = self._reroute(consumer)
            if word is ReturnWord.UNREAD:
                self._leader.settle_all()
            elif word is ReturnWord.ALIVE:
                consumer.alive = True
                lane.stranded.fit()
                return
            elif word is not ReturnWord.OK:  # a record, or the group, is not as it was
                raise LaneConflict(f"the tickets of {consumer.name} are not where this master thought they were")
        if consumer.registration:
            forget(
                self._leader.redis, self._leader.leadership, consumer.name, consumer.incarnation, consumer.registration
            )
        del lane.consumers[consumer.incarnation]
        logger.warning("consumer %s is gone (incarnation %s)", consumer.name, consumer.incarnation)

    def _reroute(self, consumer: Consumer) -> ReturnWord:
        lane = self._lane
        settling = self._leader.settling
        now_ms = self._lane.now_ms()
        given_up = self.given_up.get(consumer.incarnation)
        ran = given_up.ran if given_up is not None else None
        tickets: list[Ticket] = sorted(consumer.tickets, key=lambda ticket: ticket.run_fence)
        cut_off = {ticket for ticket in tickets if ran is None or ticket.fence in ran}
        cause = f"lost with {consumer.name}"
        # What ran when somebody set the clock, or told its worker to end at once, did not end it.
        blameless = given_up.asked if given_up is not None else self.leases.was_ended(consumer.incarnation)
        notes = Batch()
        moves = []
        verdicts: dict[Ticket, tuple[int, int, LostAttempt | None, str]] = {}
        ids: list[str] = []
        for ticket in tickets:
            ids += [message.id for message in ticket.run]
            attempt, losses, lost = ticket.attempt, ticket.losses, ticket.lost
            if ticket in cut_off:
                lost = LostAttempt(attempt, ticket.fence, consumer.name, cause)
                if len(cut_off) == 1 and (ran is not None or losses > 0) and not blameless:
                    attempt += 1
                elif not blameless:
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
            if ticket.waiting and self._leader.settling.exhausted(ticket):
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
            reports = pipe.execute()
        # After the reports: what a worker took from its queue since then, it may not have told of.
        queues = oldest(self._leader.redis, [consumer.queue for consumer in consumers])
        suspects: list[Ticket] = []
        for consumer, report, queued in zip(consumers, reports, queues, strict=True):
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
