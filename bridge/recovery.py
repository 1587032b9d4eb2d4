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

from bridge.names import HEADER_RUNS, WorkerWord
from bridge.outcomes import Kind, Outcome
from bridge.picture import Consumer, Ticket
from bridge.worker.farewell import returned
from routing import records
from routing.errors import LaneConflict, NotLeading
from routing.history import What
from routing.policies import PolicyName
from routing.records import LostAttempt
from routing.transitions import Batch, drain, forget, recall, reroute, resend
from routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Seconds for which an order to drain a consumer that is not registered is kept.
DRAIN_KEPT_S = 3600
#: Seconds after which a consumer that leaves is sent once more what it has.
RESEND_S = 0.15
#: And how often.
RESENDS = 3
#: Celery messages that are taken back from a queue at once.
RECALL = 100


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
                        self._free_ready(other)
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
            consumer.resend_at = time.monotonic() + RESEND_S
            self._leader.look_in(RESEND_S)
            logger.info("consumer %s is leaving", consumer.name)
            self._free_ready(consumer)

    def _free_ready(self, consumer: Consumer) -> None:
        """Tickets that wait for room at ``consumer`` wait for anybody's."""
        while consumer.ready:
            ticket = consumer.ready.popleft()
            ticket.queued = False
            ticket.consumer = None
            self._lane.make_ready(ticket)

    def look(self) -> None:
        """Looks at all leases, moves the tickets of consumers that are over, and looks for what went astray."""
        left = self.find_consumers()
        amnesty = time.monotonic() < self.amnesty_until
        for incarnation in [incarnation for incarnation, ms in left.items() if ms <= 0]:
            if not amnesty or incarnation in self.given_up:
                self._retire(self._lane.consumers[incarnation])
        # Of those that were retired before their word was read, nothing is to be told any more.
        self.given_up = {i: ran for i, ran in self.given_up.items() if i in self._lane.consumers}
        self._find_recovered()
        self._ask_the_leaving()
        self._find_lost([c for c in self._lane.consumers.values() if c.alive and c.tickets])
        # A consumer that came, or tickets that lost theirs.
        self._leader.advance(Batch())

    def _retire(self, consumer: Consumer) -> None:
        """The lease of ``consumer`` is over."""
        lane = self._lane
        consumer.alive = False
        self._free_ready(consumer)
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
            self._leader.history_cap(len(notes.history)),
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

    # -- consumers that take nothing ---------------------------------------------------------------------------------

    def empty(self, consumer: Consumer, batch: Batch) -> None:
        """What waits for ``consumer``, or at it, waits for anybody; what runs there goes on."""
        self._free_ready(consumer)
        self.recall(consumer, batch)
        if consumer.tickets:
            self._leader.say(consumer, WorkerWord.GIVE_BACK, batch)

    def recall(self, consumer: Consumer, batch: Batch) -> int:
        """Takes back what ``consumer`` has not taken from its queue; the number of runs."""
        runs = 0
        while texts := recall(self._leader.redis, self._leader.leadership, consumer.name, RECALL):
            for text in texts:
                message = orjson.loads(text)
                if any(run[4] for run in message["headers"][HEADER_RUNS]):
                    # It was sent twice: the other copy may be in the worker's hands. If not, it will be missed again.
                    continue
                for outcome in returned(message, consumer.incarnation):
                    ticket = self._lane.in_flight.get(outcome.message_id)
                    if ticket is None or not ticket.dispatched_at:
                        # Sent by a leader before this one: after an outage of the server the queue may hold again what
                        # the worker took from it before. If it is in nobody's hands, it will be missed.
                        continue
                    runs += 1
                    self._leader.settling.settle(outcome, batch)
            if len(texts) < RECALL:
                break
        return runs

    def _probe(self, consumer: Consumer, oldest: bytes, now: float) -> None:
        """``oldest`` is next in the queue of ``consumer``. When it stays there for a lease, the worker lives and does
        not consume: its loop is stuck, somebody told it to stop consuming, or, with a solo pool, it runs one long task.
        What is in its queue goes to others; it gets no more until it takes a probe from its queue.
        """
        text, since = consumer.stuck
        if text != oldest:
            consumer.stuck = (oldest, now)
            return
        if consumer.stalled or now - since < self._settings.lease:
            return
        consumer.stalled = True
        batch = Batch()
        self._free_ready(consumer)
        runs = self.recall(consumer, batch)
        batch.count("stalled")
        self._leader.say(consumer, WorkerWord.PROBE, batch)
        logger.warning(
            "consumer %s holds its lease and takes nothing from its queue: %d runs go elsewhere", consumer.name, runs
        )
        self._leader.advance(batch)

    def _find_recovered(self) -> None:
        """Consumers that took the probe from their queue."""
        stalled = [consumer for consumer in self._lane.consumers.values() if consumer.stalled and consumer.alive]
        for consumer in stalled:
            if not self._leader.redis.llen(consumer.queue):
                consumer.stalled = False
                logger.info("consumer %s takes from its queue again", consumer.name)

    # -- what went astray ----------------------------------------------------------------------------------------

    def _find_lost(self, consumers: list[Consumer]) -> None:
        """Gives back runs that their consumer, asked twice, does not know of."""
        if not consumers:
            return
        keys = self._settings.keys
        period = self._settings.lease / 3
        now = time.monotonic()
        old = {c: [t for t in c.tickets if now - t.dispatched_at > 2 * period] for c in consumers}
        # All that have something, or a queue that nobody takes from would be noticed a good part of a lease later.
        asked = consumers
        with self._leader.redis.pipeline(transaction=False) as pipe:
            for consumer in asked:
                pipe.get(keys.held(consumer.incarnation))
                pipe.lindex(consumer.queue, -1)
            replies = pipe.execute()
        suspects: list[Ticket] = []
        for i, consumer in enumerate(asked):
            report, queued = replies[2 * i], replies[2 * i + 1]
            if queued:
                self._probe(consumer, queued, now)
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

    def _ask_the_leaving(self) -> None:
        """A blocking read that a worker had begun when it was asked to stop takes one more Celery message from the
        queue, and nobody may read the reply before the worker ends. So what it has is sent once more: it refuses what
        it holds, and gives the rest back.
        """
        now = time.monotonic()
        asked = []
        for consumer in self._lane.consumers.values():
            if consumer.resend_at > now:
                self._leader.look_in(consumer.resend_at - now)
            elif consumer.resend_at and consumer.alive:
                asked.append(consumer)
        if not asked:
            return
        self._leader.settle_all()
        for consumer in asked:
            # Again, since that very read may take the second copy, too; not for ever: what runs may run for long.
            consumer.resends += 1
            consumer.resend_at = now + RESEND_S if consumer.resends < RESENDS else 0.0
            for ticket in [ticket for ticket in consumer.tickets if ticket.run]:
                self._send_again(ticket, consumer)

    def _send_again(self, ticket: Ticket, consumer: Consumer) -> None:
        text = self._leader.text_again(ticket, consumer)
        word = resend(self._leader.redis, self._leader.leadership, consumer.name, ticket.id, ticket.record, text)
        if word is not ReturnWord.OK:
            raise LaneConflict(f"ticket {ticket.id!r} is not where this master thought it was")

    def _resend(self, ticket: Ticket, consumer: Consumer, batch: Batch) -> None:
        self._send_again(ticket, consumer)
        logger.warning(
            "ticket %s: its run (fence %d) is not known to %s: it goes out again",
            *(ticket.id, ticket.fence, consumer.name),
        )
        batch.count("lost")
        consumer.missed.pop(ticket.run_fence, None)
        ticket.dispatched_at = time.monotonic()
