"""What the leader does beside the path of messages: leases, consumers that come and go, what went astray.

Who is authoritative: Redis. A consumer is over when the key of its incarnation's lease is gone; missing heartbeats only
make the leader look sooner. What it wrote before is read first: an outcome that is in the stream counts, whoever is
dead by now. The script that moves the tickets checks both again, in the step that moves them.

After an outage of the server nobody is judged for one lease: the workers could not renew, either.

Anti-entropy: with each renewal a worker tells what it holds. A run that two successive reports do not name, and that
is not in the worker's queue, was lost on the way (`celery purge`, a deleted queue, a reply that a dying connection
swallowed): it goes out again, to the same incarnation if it has room, where the local check refuses the loser.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger

from bridge.lane import Consumer, Ticket, id_key
from bridge.outcomes import Kind, Outcome
from bridge.rebuild import own_pending
from routing import records
from routing.errors import LaneConflict, NotLeading
from routing.messages import Refusal
from routing.transitions import Batch, forget, reroute
from routing.words import ReturnWord

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)


class Recovery:
    """Works on the leader's lane, on the leader's thread."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lane = leader.lane
        self._settings = leader.settings
        #: Nobody is judged before this (monotonic).
        self.amnesty_until = 0.0

    def grant_amnesty(self) -> None:
        """The server was away: for one lease nobody is judged by it."""
        self.amnesty_until = time.monotonic() + self._settings.lease

    # -- consumers -----------------------------------------------------------------------------------------------

    def find_consumers(self) -> dict[str, int]:
        """Takes new registrations into the picture; the ms that each known lease has left (negative: over)."""
        keys = self._settings.keys
        lane = self._lane
        for name, registration in self._leader.redis.hgetall(keys.consumers).items():
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
        with self._leader.redis.pipeline(transaction=False) as pipe:
            for incarnation in lane.consumers:
                pipe.pttl(keys.lease(incarnation))
            left = dict(zip(lane.consumers, pipe.execute(), strict=True))
        for incarnation, ms in left.items():
            consumer = lane.consumers[incarnation]
            if ms > 0 and not consumer.alive and consumer.registration:
                consumer.alive = True
                logger.info("consumer %s is here, %d slots, incarnation %s", consumer.name, consumer.slots, incarnation)
        return left

    def close_consumer(self, incarnation: str) -> None:
        """The consumer shuts down: it finishes what runs there, and gets nothing more."""
        consumer = self._lane.consumers.get(incarnation)
        if consumer is not None and not consumer.leaving:
            consumer.leaving = True
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
        over = [self._lane.consumers[incarnation] for incarnation, ms in left.items() if ms <= 0]
        if over and time.monotonic() >= self.amnesty_until:
            for consumer in over:
                self._retire(consumer)
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
            elif word is not ReturnWord.OK:
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
        now_ms = int(time.time() * 1000)
        tickets: list[Ticket] = list(consumer.tickets)
        moves = []
        tails = []
        ids: list[str] = []
        for ticket in tickets:
            ids += [message.id for message in ticket.run]
            # The attempt is not charged: nobody knows which of these had started.
            tail = records.tail("", "", ticket.attempt, [ticket.run[0].id], now_ms, f"lost with {consumer.name}")
            tails.append(tail)
            moves.append((ticket.id, ticket.record, records.record(0, tail), now_ms))
        word = reroute(
            self._leader.redis, self._leader.leadership, consumer.incarnation, self._leader.last_outcome, moves, ids
        )
        if word is not ReturnWord.OK:
            return word
        for ticket, tail in zip(tickets, tails, strict=True):
            lane.take_back(ticket)
            ticket.consumer = None
            ticket.tail = tail
            ticket.record = records.record(0, tail)
            lane.hold_back(ticket, now_ms)
        lane.wake(now_ms)
        logger.warning("re-routed %d tickets (%d messages) of %s", len(tickets), len(ids), consumer.name)
        return word

    # -- what went astray ----------------------------------------------------------------------------------------

    def _find_lost(self, consumers: list[Consumer]) -> None:
        """Gives back runs that their consumer, asked twice, does not know of."""
        if not consumers:
            return
        keys = self._settings.keys
        period = self._settings.lease / 3
        now = time.monotonic()
        old = {c: [t for t in c.tickets if now - t.dispatched_at > 2 * period] for c in consumers}
        asked = [c for c in consumers if old[c]]
        if not asked:
            return
        with self._leader.redis.pipeline(transaction=False) as pipe:
            for consumer in asked:
                pipe.get(keys.held(consumer.incarnation))
                pipe.llen(consumer.queue)
            replies = pipe.execute()
        suspects: list[Ticket] = []
        for i, consumer in enumerate(asked):
            report, queued = replies[2 * i], replies[2 * i + 1]
            if not report or queued:
                # Without a report nothing is known; what is in the queue may be what is missing.
                consumer.missed.clear()
                continue
            told = orjson.loads(report)
            held = set(told["fences"])
            missing = {ticket.run_fence: ticket for ticket in old[consumer] if ticket.run_fence not in held}
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
            if ticket.run and ticket.run_fence == fence:
                name = ticket.consumer.name if ticket.consumer else "nobody"
                logger.warning(
                    "ticket %s: its run (fence %d) never reached %s: it goes out again", ticket.id, fence, name
                )
                batch.count("lost")
                ticket.doubt = True
                self._lane.settle(Outcome(ticket.run[0].id, ticket.fence, Kind.RETURNED), batch)
        self._leader.advance(batch)

    def refill(self) -> None:
        """Reads spilled messages of tickets that have worked off most of what they had in memory."""
        lane = self._lane
        hungry = [t for t in lane.spilled if len(t.waiting) <= lane.cap // 4]
        starving = any(not t.waiting for t in hungry)
        # One pass over the pending entries serves all: so it waits until it serves many, or somebody has nothing left.
        if lane.full or not (starving or len(hungry) > len(lane.spilled) // 4):
            return
        start = min(t.spilled_from for t in hungry if t.spilled_from is not None)
        # Only these are read from their first spilled message on.
        served = {t for t in lane.spilled if t.spilled_from is not None and t.spilled_from >= start}
        cursor = f"{start[0]}-{start[1] - 1}" if start[1] else f"{start[0] - 1}-{2**64 - 1}"
        cap = lane.cap
        satisfied: set[Ticket] = set()
        trimmed: list[Refusal] = []
        for page in own_pending(self._leader, cursor):
            # What is newer was not taken in by a read yet; taken here, before it, it could be handled twice.
            entries = [entry for entry in page if id_key(entry[0].decode()) <= lane.read_to]
            for raw_id, fields in entries:
                id_ = raw_id.decode()
                found = self._leader.parser.parse(id_, fields or ())
                if isinstance(found, Refusal):
                    trimmed.append(found)
                    continue
                ticket = lane.tickets.get(found.ticket)
                if ticket not in served or ticket in satisfied or ticket.spilled_from is None:
                    continue
                if id_key(id_) < ticket.spilled_from:
                    continue
                if len(ticket.waiting) >= cap:
                    ticket.spilled_from = id_key(id_)
                    satisfied.add(ticket)
                    continue
                ticket.waiting.append(found)
                lane.held += 1
                lane.make_ready(ticket)
            if entries and satisfied.issuperset(hungry):
                # Those that are not satisfied have been read up to here only.
                ms, sequence = id_key(entries[-1][0].decode())
                for ticket in served - satisfied:
                    ticket.spilled_from = max(ticket.spilled_from or (0, 0), (ms, sequence + 1))
                break
        else:
            # Read to the end: what was not satisfied has all it has in memory.
            for ticket in served - satisfied:
                ticket.spilled_from = None
                lane.spilled.discard(ticket)
                lane.drop_if_done(ticket)
        if trimmed:
            self._refuse_trimmed(trimmed)

    def _refuse_trimmed(self, refusals: list[Refusal]) -> None:
        """Entries that were deleted from the stream while they were spilled are dead letters; those that are in memory
        are handled as if they were there.
        """
        known = {message.id for ticket in self._lane.tickets.values() for message in ticket.waiting}
        batch = Batch()
        for refusal in refusals:
            if refusal.id not in known:
                self._lane.refuse(refusal, batch)
        self._leader.advance(batch)
