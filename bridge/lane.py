"""The leader's picture of its lane: tickets, what waits, what is in flight. No I/O.

Everything here can be rebuilt from Redis (invariant I6): what is in flight from the ticket records, what waits from
the master's own pending entries. The leader fills a `Batch` from this picture, sends it as one script, and only then
(`committed`) takes the new fences into the picture. When the script is refused or its reply is lost, the whole picture
is thrown away and read anew: it is never mended by guessing.

Memory is bounded. A ticket keeps only its oldest messages here (`Lane.cap`); the later ones are *spilled*: they stay
where they are, in the master's pending list, and are read again, by id, when the ticket has worked off most of what
it has here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from bridge.outcomes import Kind, Outcome
from bridge.settings import Settings
from routing import records
from routing.messages import Message, Refusal, Refused
from routing.transitions import Batch

#: Most messages of one ticket in memory.
TICKET_CAP = 1000
#: Fewest, when many tickets are blocked.
TICKET_FLOOR = 16
#: Messages in memory below which reading goes on in any case.
SATED = 4000
#: How fast a measured service time follows a longer one, and a shorter one.
LEARN_UP = 0.05
LEARN_DOWN = 0.15
#: Tickets ready for dispatch, for each slot of the consumers, above which reading stops.
SATED_PER_SLOT = 128


class Ticket:
    """One ticket that has undone messages."""

    __slots__ = (
        "attempt",
        "consumer",
        "dispatched_at",
        "doubt",
        "due_ms",
        "fence",
        "id",
        "parcel",
        "queued",
        "record",
        "run",
        "run_fence",
        "spilled_from",
        "tail",
        "waiting",
    )

    def __init__(self, id_: str) -> None:
        self.id = id_
        #: Messages that are not in flight, oldest first.
        self.waiting: deque[Message] = deque()
        #: Messages in flight, oldest first; their fences are ``fence``, ``fence + 1``, …
        self.run: deque[Message] = deque()
        self.fence = 0
        #: The fence of the first message of the run when it was dispatched; names the run in a worker's report.
        self.run_fence = 0
        #: Attempt number of the oldest undone message.
        self.attempt = 1
        #: Text of the record in Redis, '' for none.
        self.record = ""
        self.tail = ""
        #: Where the run is, or where the next one shall go if there is room (sticky routing).
        self.consumer: Consumer | None = None
        self.parcel: Parcel | None = None
        #: Unix ms until which the oldest message waits out its backoff; 0: it does not.
        self.due_ms = 0
        self.queued = False
        #: Id of the oldest message that is not in memory; None: all are.
        self.spilled_from: tuple[int, int] | None = None
        self.dispatched_at = 0.0
        #: The last run seems to be lost: its consumer must make sure that it is.
        self.doubt = False

    def __repr__(self) -> str:
        return f"<Ticket {self.id!r} {len(self.run)} in flight, {len(self.waiting)} waiting>"


class Parcel:
    """One Celery message in flight: what it carries and what that is expected to cost, in ms."""

    __slots__ = ("consumer", "left", "share_ms")

    def __init__(self, consumer: Consumer, count: int, cost_ms: float) -> None:
        self.consumer = consumer
        self.left = count
        self.share_ms = cost_ms / count


class Consumer:
    """One incarnation of a consumer."""

    __slots__ = (
        "alive",
        "backlog_ms",
        "incarnation",
        "leaving",
        "messages",
        "missed",
        "name",
        "parcels",
        "queue",
        "ready",
        "registration",
        "slots",
        "tickets",
    )

    def __init__(self, name: str, incarnation: str, queue: str, slots: int, registration: bytes) -> None:
        self.name = name
        self.incarnation = incarnation
        self.queue = queue
        self.slots = max(1, slots)
        self.registration = registration
        self.alive = True
        #: It shuts down: what it has is still its own, but it takes nothing more.
        self.leaving = False
        #: Tickets in flight here.
        self.tickets: set[Ticket] = set()
        #: Tickets that wait for room here: sticky ones, between two runs.
        self.ready: deque[Ticket] = deque()
        self.parcels = 0
        self.messages = 0
        self.backlog_ms = 0.0
        #: Runs that the consumer's last report did not name: run fence -> number of that report.
        self.missed: dict[int, int] = {}

    @property
    def open(self) -> bool:
        """Whether it may be sent anything."""
        return self.alive and not self.leaving

    @property
    def load(self) -> float:
        return self.backlog_ms / self.slots + self.messages / (1000.0 * self.slots)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.incarnation[:8]} {self.messages} in flight>"


class Lane:
    """The picture. ``now_ms`` is Unix time by the leader's clock; ``max_attempts`` answers for a task, ``delay_ms`` for
    a failed attempt.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        max_attempts: Callable[[str], int],
        delay_ms: Callable[[int], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self._max_attempts = max_attempts
        self._delay_ms = delay_ms
        self._now_ms = now_ms
        self.tickets: dict[str, Ticket] = {}
        #: Message id -> ticket, of what is in flight.
        self.in_flight: dict[str, Ticket] = {}
        self.consumers: dict[str, Consumer] = {}
        #: Tickets without a consumer that can be dispatched, oldest first.
        self.ready: deque[Ticket] = deque()
        #: (due ms, sequence, ticket): tickets that wait out a backoff.
        self.backoffs: list[tuple[int, int, Ticket]] = []
        self._backoff_sequence = 0
        #: Messages in memory.
        self.held = 0
        self.spilled: set[Ticket] = set()
        #: Id of the newest entry that a read took in; a refill takes nothing newer, which would be handled twice.
        self.read_to = (0, 0)
        #: Tickets whose record the batch that is being made changes.
        self._touched: dict[Ticket, None] = {}
        #: Measured service time of each task, in ms.
        self.service_ms: dict[str, float] = {}

    # -- bounds --------------------------------------------------------------------------------------------------

    @property
    def cap(self) -> int:
        """Messages that one ticket may have in memory now."""
        return max(TICKET_FLOOR, min(TICKET_CAP, self.settings.window // (len(self.tickets) + 1)))

    @property
    def full(self) -> bool:
        """Whether no more may be in memory."""
        return self.held >= self.settings.window

    @property
    def sated(self) -> bool:
        """Whether reading on would not help: there is work in memory that only waits for room. The rest stays in the
        stream, unread. While all that is in memory is blocked by what is in flight, free tickets may be further on.
        """
        if self.held < SATED:
            return False
        slots = sum(consumer.slots for consumer in self.consumers.values() if consumer.open)
        ready = len(self.ready) + sum(len(consumer.ready) for consumer in self.consumers.values())
        return self.full or ready > SATED_PER_SLOT * slots

    # -- messages come in ------------------------------------------------------------------------------------------

    def ingest(self, message: Message) -> None:
        """A message that is pending under the master's name; of each ticket in id order."""
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            ticket = self.tickets[message.ticket] = Ticket(message.ticket)
        elif ticket.spilled_from is not None:
            return
        elif len(ticket.waiting) >= TICKET_FLOOR and len(ticket.waiting) >= self.cap:
            self.spill(ticket, message.id)
            return
        ticket.waiting.append(message)
        self.held += 1
        self.make_ready(ticket)

    def spill(self, ticket: Ticket, from_id: str) -> None:
        """Leaves the messages of ``ticket`` from ``from_id`` on in Redis."""
        ticket.spilled_from = id_key(from_id)
        self.spilled.add(ticket)

    def refuse(self, refusal: Refusal, batch: Batch) -> None:
        """An entry that can never be processed: a dead letter at once, and its ticket does not wait for it."""
        words: list[Any] = ["message_id", refusal.id, "reason", refusal.reason.value, "error", refusal.detail]
        words += ["traceback", "", "attempts", 0, "at_ms", self._now_ms()]
        for i in range(0, len(refusal.fields), 2):
            words += [b"field:" + refusal.fields[i], refusal.fields[i + 1]]
        batch.dead.append(words)
        batch.acknowledged.append(refusal.id)
        batch.count("dead")

    def make_ready(self, ticket: Ticket, *, first: bool = False) -> None:
        """Queues the ticket for dispatch if nothing stands in the way; ``first``: before all that wait already."""
        if ticket.queued or ticket.run or ticket.due_ms or not ticket.waiting:
            return
        ticket.queued = True
        consumer = ticket.consumer
        if consumer is not None and consumer.open:
            ready = consumer.ready
        else:
            ticket.consumer = None
            ready = self.ready
        if first:
            ready.appendleft(ticket)
        else:
            ready.append(ticket)

    def wake(self, now_ms: int) -> None:
        """Tickets whose backoff is over become ready, before all others: they have waited for long enough.

        A backlog would else add its own length to every backoff, and to the time that a lost worker's tickets stand
        still, which is to be bounded by the lease.
        """
        while self.backoffs and self.backoffs[0][0] <= now_ms:
            due, _, ticket = heapq.heappop(self.backoffs)
            if ticket.due_ms == due:
                ticket.due_ms = 0
                self.make_ready(ticket, first=True)

    def hold_back(self, ticket: Ticket, due_ms: int) -> None:
        """The oldest message of ``ticket`` waits until ``due_ms``."""
        ticket.due_ms = max(1, due_ms)
        self._backoff_sequence += 1
        heapq.heappush(self.backoffs, (ticket.due_ms, self._backoff_sequence, ticket))

    # -- outcomes come in ------------------------------------------------------------------------------------------

    def settle(self, outcome: Outcome, batch: Batch) -> Ticket | None:
        """Takes one outcome into the picture and the batch; its ticket. None: its fence is not the current one, and
        nothing changes.
        """
        ticket = self.in_flight.get(outcome.message_id)
        if ticket is None or ticket.fence != outcome.fence or ticket.run[0].id != outcome.message_id:
            batch.count("stale")
            return None
        self.touch(ticket, batch)
        kind = outcome.kind
        if kind is Kind.DONE:
            message = ticket.run.popleft()
            self._landed(ticket, message)
            self._measure(message.task, outcome.service_ms)
            batch.acknowledged.append(message.id)
            batch.count("done")
            ticket.attempt = 1
            if ticket.run:
                ticket.fence += 1
            else:
                self._run_over(ticket)
        elif kind is Kind.RETURNED:
            self._take_back(ticket, batch)
            batch.count("returned")
        else:
            self._failed(ticket, outcome, batch)
        self.make_ready(ticket)
        return ticket

    def _failed(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        message = ticket.run[0]
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        self._take_back(ticket, batch)
        batch.count("failed")
        attempts = ticket.attempt
        gone = not message.payload
        if outcome.kind is Kind.DEAD or attempts >= self._max_attempts(message.task) or gone:
            ticket.waiting.popleft()
            self.held -= 1
            # It is also given back, which does nothing to an entry that was acknowledged before, in the same step.
            batch.acknowledged.append(message.id)
            reason = f"gave up after {attempts} attempt{'s' if attempts > 1 else ''}"
            if outcome.kind is Kind.DEAD:
                reason = "asked not to come again"
            elif gone:
                reason = Refused.TRIMMED.value
            batch.dead.append(
                [
                    *("message_id", message.id, "reason", reason, "error", outcome.error),
                    *("traceback", outcome.traceback, "attempts", attempts, "at_ms", self._now_ms()),
                    *("ticket_id", ticket.id, "task", message.task, "payload", message.payload),
                    *("consumer", consumer, "fence", outcome.fence),
                ]
            )
            batch.count("dead")
            ticket.attempt = 1
            ticket.due_ms = 0
            ticket.tail = ""
            return
        ticket.attempt = attempts + 1
        delay = outcome.delay_ms if outcome.delay_ms is not None else self._delay_ms(attempts)
        self.hold_back(ticket, self._now_ms() + delay)
        ticket.tail = records.tail("", "", ticket.attempt, [message.id], self._now_ms(), outcome.error[:200])
        batch.count("retried")

    def _take_back(self, ticket: Ticket, batch: Batch) -> None:
        batch.given_back += [message.id for message in ticket.run]
        self.take_back(ticket)
        if ticket.attempt > 1:
            # The attempts that it had must outlive this leader, so the record stays.
            self.hold_back(ticket, self._now_ms())
            ticket.tail = records.tail("", "", ticket.attempt, [ticket.waiting[0].id], self._now_ms(), "given back")

    def take_back(self, ticket: Ticket) -> None:
        """What is left of the run goes back to the front of what waits."""
        while ticket.run:
            message = ticket.run.pop()
            self._landed(ticket, message)
            self.held += 1
            ticket.waiting.appendleft(message)
        self._run_over(ticket)

    def _landed(self, ticket: Ticket, message: Message) -> None:
        del self.in_flight[message.id]
        self.held -= 1
        parcel = ticket.parcel
        if parcel is None:
            return
        consumer = parcel.consumer
        consumer.messages -= 1
        consumer.backlog_ms -= parcel.share_ms
        parcel.left -= 1
        if parcel.left == 0:
            consumer.parcels -= 1
            if consumer.parcels == 0:
                consumer.backlog_ms = 0.0

    def _run_over(self, ticket: Ticket) -> None:
        if ticket.consumer is not None:
            ticket.consumer.tickets.discard(ticket)
        ticket.fence = ticket.run_fence = 0
        ticket.parcel = None
        ticket.tail = ""

    def _measure(self, task: str, ms: float) -> None:
        known = self.service_ms.get(task)
        if known is None:
            self.service_ms[task] = ms
            return
        # Below the mean: on a machine that is short of processors, a wait for one looks like service time. Bundles
        # would shrink, cost more processor time each, and make it shorter still.
        self.service_ms[task] = known + (ms - known) * (LEARN_UP if ms > known else LEARN_DOWN)

    # -- a batch is made and committed -------------------------------------------------------------------------------

    def touch(self, ticket: Ticket, batch: Batch) -> None:
        """Notes that the batch changes the record of ``ticket``, and what it must be until then."""
        if ticket not in self._touched:
            self._touched[ticket] = None
            batch.expected[ticket.id] = ticket.record

    def close(self, batch: Batch, dispatched: set[Ticket]) -> None:
        """Writes into the batch what becomes of the records of all tickets that it touches."""
        for ticket in self._touched:
            if ticket in dispatched:
                continue
            if ticket.run:
                consumer = ticket.consumer
                assert consumer is not None
                ids = [message.id for message in ticket.run]
                ticket.tail = records.tail(consumer.name, consumer.incarnation, ticket.attempt, ids, self._now_ms())
                ticket.record = records.record(ticket.fence, ticket.tail)
                batch.records += (ticket.id, ticket.record)
            elif ticket.due_ms or ticket.attempt > 1:
                # Also when it is due already and nobody has room for it: its attempts must outlive this leader.
                ticket.record = records.record(0, ticket.tail)
                batch.records += (ticket.id, ticket.record)
                batch.retries += (ticket.due_ms or self._now_ms(), ticket.id)
            else:
                if ticket.record:
                    batch.released.append(ticket.id)
                ticket.record = ""
                self.drop_if_done(ticket)

    def committed(self, dispatched: dict[Ticket, int], base: int) -> None:
        """The script did it: ``dispatched`` maps tickets to their fence offsets."""
        self._touched.clear()
        for ticket, offset in dispatched.items():
            ticket.fence = ticket.run_fence = base + offset
            ticket.record = records.record(ticket.fence, ticket.tail)

    def drop_if_done(self, ticket: Ticket) -> None:
        """Forgets a ticket that has nothing undone."""
        if not (ticket.waiting or ticket.run or ticket.due_ms or ticket.spilled_from):
            self.tickets.pop(ticket.id, None)


def id_key(id_: str) -> tuple[int, int]:
    """A stream id as something that sorts."""
    ms, _, sequence = id_.partition("-")
    return int(ms), int(sequence or 0)
