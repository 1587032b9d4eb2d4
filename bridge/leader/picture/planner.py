"""Plans the dispatches of one step: which tickets go to which consumer (`bridge.leader.picture.assignment`), and in
which Celery messages.

The messages for one consumer are packed into parcels. A parcel is one Celery message. Each idle slot gets a parcel
first. Then there are as many parcels as are needed so that each lasts about ``bridge_bundle_ms``. A parcel with one
message is an ordinary task; a parcel with more is a bundle.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import sqrt

from bridge.app.traits import TaskTraits
from bridge.leader.picture import capacity as limits
from bridge.leader.picture.assignment import Assignment
from bridge.leader.picture.chained_lane import ChainedLane
from bridge.leader.picture.faults import MessageAtFault
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Parcel, Ticket
from bridge.leader.picture.suspects import Isolation
from bridge.leader.picture.ticket_records import AWAITING
from bridge.protocol.bundle_times import limits_of
from bridge.protocol.envelope import OPENING, Envelopes, Run
from bridge.protocol.headers import OwnRules
from bridge.routing import records
from bridge.routing.batch import Batch, Dispatch
from bridge.routing.messages import Message

#: Longest run of one ticket in a bundle, in messages.
RUN_MAX = 256
#: While many tickets wait, a bundle of n messages has runs of about √(n / `RUN_SHARE`). Longer runs cost the master and
#: the server less, since tickets are released and dispatched less often. Shorter ones serve more tickets at once.
RUN_SHARE = 16
#: How many times ``bridge_bundle_ms`` a run may last while there is a process for each ticket. No other ticket waits
#: then, and a longer run saves round trips to the master.
STREAK = 8
#: The share of a suspect's dispatches that its consumer refuses while it has work of other lanes.
ALONE_SHARE = 0.9
#: While the lane hurries, bundles of short tasks have so many times less work, where they last so much longer than they
#: should. Smaller ones cost each message more: a bundle costs about 1 ms of processor time in all processes.
HURRIED = 2.0
#: Cost of one message on top of its service time, in ms: alone, and in a bundle.
ALONE_MS = 0.7
MATE_MS = 0.03
#: Assumed service time of a task that was never measured, in ms.
UNKNOWN_MS = 5.0
#: Work ahead for each slot when bundles are off, in ms.
PLAIN_AHEAD_MS = 20.0


class Planner:
    """Plans one lane."""

    def __init__(
        self,
        lane: Lane,
        envelopes: Envelopes,
        traits: Callable[[str], TaskTraits],
        expire: Callable[[Ticket, Batch], None] | None = None,
    ) -> None:
        self._lane = lane
        #: Makes the oldest message of a ticket, which has expired, a dead letter.
        self._expire = expire
        #: The same, when its stream has other versions.
        self._chained = lane if isinstance(lane, ChainedLane) else None
        self._envelopes = envelopes
        self._traits = traits
        self._isolation = Isolation(lane)
        self._bundle_ms = lane.settings.bundle_ms
        ahead_ms = limits.AHEAD * self._bundle_ms if self._bundle_ms else PLAIN_AHEAD_MS
        self._assignment = Assignment(lane, ahead_ms, self._bundle_ms, self._cost_of_run)

    @property
    def left_some(self) -> bool:
        """Whether the last step left work that the next step can send at once."""
        return self._assignment.room.left_some

    def has_room(self) -> bool:
        """Whether any consumer has room."""
        return self._assignment.room.has_any

    def plan(self, batch: Batch, now_ms: int) -> dict[Ticket, int]:
        """Fills the dispatches of ``batch``. Returns the dispatched tickets and the fence offsets of their runs.

        ``now_ms``: the lane's time, for durations.
        """
        dispatched: dict[Ticket, int] = {}
        lane = self._lane
        lane.begin_step(now_ms)
        at_ms = lane.clock.due_ms()
        chosen = self._assignment.run()
        if self._chained is not None and chosen:
            admitted = self._chained.admitted(chosen)
            # The consumers of tickets that are deferred now have room for others.
            self._assignment.room.left_some |= admitted != chosen
            chosen = admitted
        for consumer, tickets in chosen.items():
            self._pack(consumer, tickets, batch, dispatched, at_ms)
        self._assignment.sent()
        if lane.suspects:
            self._isolation.run(now_ms, lambda c, ticket: self._send_alone(c, ticket, batch, dispatched, at_ms))
        return dispatched

    def skip(self) -> None:
        """Nothing can be dispatched in this step. The leader is woken when that changes."""
        self._assignment.room.left_some = False

    def again(self) -> None:
        """The step did not send what was planned. The next one can send some of it."""
        self._assignment.room.left_some = True

    def _send_alone(
        self, consumer: Consumer, ticket: Ticket, batch: Batch, dispatched: dict[Ticket, int], at_ms: int
    ) -> None:
        if self._chained is None or self._chained.admits(ticket):
            self._send(consumer, [(ticket, 1)], batch, dispatched, at_ms)

    # -- expected cost -----------------------------------------------------------------------------------------------

    def _cost(self, message: Message) -> float:
        service = self._lane.service_ms.get(message.task, UNKNOWN_MS)
        return service + (MATE_MS if self._bundled(message, service) else ALONE_MS)

    def _cost_of_run(self, ticket: Ticket) -> float:
        """The expected cost of the next run of ``ticket``, in ms. With much room, the run may be longer (`_pack`)."""
        head = ticket.waiting[0]
        service = self._lane.service_ms.get(head.task, UNKNOWN_MS)
        if not self._bundled(head, service):
            return service + ALONE_MS
        cost = service + MATE_MS
        return cost if len(ticket.waiting) == 1 else cost * min(len(ticket.waiting), self._usual_length(cost))

    def _usual_length(self, cost_ms: float) -> int:
        """How many messages a run has while many tickets wait. ``cost_ms``: of one message."""
        return max(1, round(sqrt(self._bundle_ms / cost_ms / RUN_SHARE)))

    def _bundled(self, message: Message, service_ms: float) -> bool:
        # Up to twice ``bridge_bundle_ms``: two such messages in a row still save a round trip to the master.
        return (
            self._bundle_ms > 0
            and service_ms <= 2 * self._bundle_ms
            and message.task in self._lane.service_ms
            and self._traits(message.task).bundled
            and (message.options is None or not message.options.alone)
        )

    def _expired(self, consumer: Consumer, ticket: Ticket, head: Message, batch: Batch, at_ms: int) -> bool:
        """Whether the oldest message has expired before it began. Then it is a dead letter now."""
        if head.options is None or not head.options.has_expired(at_ms) or ticket.begun or self._expire is None:
            return False
        self._expire(ticket, batch)
        # The ticket may have other messages, and the consumer has room. That is for the next step: many may expire.
        self._lane.room_changed[consumer] = None
        self._assignment.room.left_some = True
        return True

    # -- packing into parcels ----------------------------------------------------------------------------------------

    def _pack(
        self, consumer: Consumer, tickets: list[Ticket], batch: Batch, dispatched: dict[Ticket, int], at_ms: int
    ) -> None:
        alone: list[Ticket] = []
        mates: list[Ticket] = []
        lane = self._lane
        fresh = {ticket for ticket in tickets if ticket in lane.fresh_ready} if lane.fresh_ready else frozenset()
        lane.were_sent(tickets)
        for ticket in tickets:
            ticket.queued = False
            head = ticket.waiting[0]
            if head.options is not None and self._expired(consumer, ticket, head, batch, at_ms):
                continue
            service = lane.service_ms.get(head.task, UNKNOWN_MS)
            # A message that was cut off goes alone: its rollback runs first, and must not delay other messages.
            bundled = consumer.takes_bundles and ticket.lost is None and self._bundled(head, service)
            (mates if bundled else alone).append(ticket)
        for ticket in alone:
            self._send(consumer, [(ticket, 1)], batch, dispatched, at_ms, first=ticket in fresh)
        if fresh and mates:
            # In parcels of their own, which the worker runs first: in one, or in one for each slot that is idle.
            first = [(ticket, 1) for ticket in mates if ticket in fresh]
            parcels = min(len(first), max(1, consumer.slots - consumer.parcels))
            for i in range(parcels):
                for some in _parcels_of(first[i::parcels]):
                    self._send(consumer, some, batch, dispatched, at_ms, first=True)
            mates = [ticket for ticket in mates if ticket not in fresh]
        if not mates:
            return
        # The tickets share the room. So few tickets get long runs, and many tickets get short ones.
        bundle_ms = self._bundle_ms
        if lane.fresh.hurries and self._cost(mates[0].waiting[0]) * limits.MANY <= bundle_ms:
            # A fresh message waits for the bundle that runs. Where processes share processors, it lasts longer than it
            # should by the measured service times.
            bundle_ms /= min(consumer.stretch, HURRIED)
        room_ms = max(self._assignment.room.room_ms(consumer), bundle_ms)
        share_ms = min(room_ms / len(mates), bundle_ms)
        if consumer.parcels + len(mates) <= consumer.slots:
            share_ms = STREAK * self._bundle_ms
        runs: list[tuple[Ticket, int]] = []
        total_ms = 0.0
        for ticket in mates:
            cost = self._cost(ticket.waiting[0])
            length = 1
            if len(ticket.waiting) > 1:
                wanted = max(self._usual_length(cost), min(RUN_MAX, round(share_ms / cost)))
                length = self._run_length(ticket, consumer, wanted)
            runs.append((ticket, length))
            total_ms += cost * length
        idle = max(0, consumer.slots - consumer.parcels)
        parcels = min(len(runs), max(round(total_ms / bundle_ms), min(idle, len(runs)), 1))
        for i in range(parcels):
            for some in _parcels_of(runs[i::parcels]):
                self._send(consumer, some, batch, dispatched, at_ms)

    def _run_length(self, ticket: Ticket, consumer: Consumer, wanted: int) -> int:
        room = self._assignment.room
        length = size = 0
        task = ticket.waiting[0].task
        is_circuit_open = task in self._lane.stranded.open_circuits
        for message in ticket.waiting:
            if length == wanted:
                break
            if length and message.task == task and message.options is None:
                # The checks of the first message of this task hold for this one, too.
                if is_circuit_open:
                    break
            elif not self._may_follow(ticket, consumer, message, task, is_first=not length):
                break
            if length:
                size += message.size
                if size > limits.PARCEL_BYTES or room.planned + size > limits.STEP_BYTES:
                    size -= message.size
                    break
            else:
                # The first message was counted when its ticket was assigned.
                size = message.size
            length += 1
        if length > 1:
            room.planned += size - ticket.waiting[0].size
        return max(1, length)

    def _may_follow(self, ticket: Ticket, consumer: Consumer, message: Message, task: str, *, is_first: bool) -> bool:
        """Whether ``message`` may be in a run of ``ticket`` that begins with a message of ``task``."""
        lane = self._lane
        if not self._bundled(message, lane.service_ms.get(message.task, UNKNOWN_MS)):
            return False
        if not is_first and message.options is not None and message.options.hold:
            # It may not be due.
            return False
        if not consumer.runs(message.task) or (not is_first and message.task in lane.stranded.open_circuits):
            return False
        return message.task == task or self._assignment.keeps(ticket, consumer, message.task)

    def _send(
        self,
        consumer: Consumer,
        runs: Sequence[tuple[Ticket, int]],
        batch: Batch,
        dispatched: dict[Ticket, int],
        at_ms: int,
        *,
        first: bool = False,
    ) -> None:
        """Adds one parcel to the batch. ``first``: the worker runs it before what waits there."""
        lane = self._lane
        to = batch.dispatches.get(consumer.name)
        if to is None:
            to = batch.dispatches[consumer.name] = Dispatch(consumer.name, consumer.queue)
        count = sum(length for _, length in runs)
        lane.fresh.sent += count
        parcel = Parcel(consumer, count, 0.0)
        cost_ms = 0.0
        packed: list[Run] = []
        at = time.monotonic()
        for ticket, length in runs:
            lane.touch(ticket, batch)
            run = ticket.run
            ids = lane.put_first_in_flight(ticket, consumer, length)
            cost_ms += self._cost(run[0]) * length
            if ticket.record.startswith(AWAITING):
                batch.due.append(ticket.id)
            offset = batch.fences
            batch.fences += length
            why = (ticket.cause if ticket.nacked else "", ticket.losses, ticket.lost)
            ticket.tail = records.tail(consumer.name, consumer.incarnation, ticket.attempt, ids, at_ms, *why)
            ticket.dispatched_ms = at_ms
            to.ids += ids
            to.runs.append((ticket.id, offset, ticket.tail))
            ticket.consumer = consumer
            ticket.parcel = parcel
            ticket.dispatched_at = at
            consumer.tickets.add(ticket)
            dispatched[ticket] = offset
            packed.append(Run(ticket.id, offset, ticket.attempt, False, run))
        parcel.share_ms = cost_ms / count
        consumer.parcels += 1
        consumer.backlog_ms += cost_ms
        lane.flight_changed[consumer] = None
        to_whom = (consumer.incarnation, consumer.queue)
        try:
            if count == 1:
                _, offset, attempt, doubt, messages = packed[0]
                [(only, _)] = runs
                # Not each time: other lanes may have work there without end.
                alone = only.suspect and random.random() < ALONE_SHARE
                own = None if messages[0].options is None else self._own_rules(only, messages[0])
                text = self._envelopes.plain(
                    *to_whom, messages[0], offset, attempt, doubt, lost=only.lost, alone=alone, own=own, first=first
                )
            else:
                text = self._envelopes.bundle(*to_whom, packed, self._limits(packed), first=first)
        except Exception as exc:
            self._find_at_fault(consumer, packed)
            raise MessageAtFault(self._lane.settings.keys, packed[0].messages[0].id, exc) from exc
        to.texts.append(text)

    def _find_at_fault(self, consumer: Consumer, packed: Sequence[Run]) -> None:
        """Raises `MessageAtFault` for the first message that cannot be encoded."""
        for _, offset, attempt, doubt, messages in packed:
            for message in messages:
                try:
                    self._envelopes.plain(consumer.incarnation, consumer.queue, message, offset, attempt, doubt)
                except Exception as exc:
                    raise MessageAtFault(self._lane.settings.keys, message.id, exc) from exc

    def text_again(self, ticket: Ticket, consumer: Consumer) -> bytes:
        """The whole Celery message of a run in flight, with its fences, and marked as in doubt."""
        run = ticket.run
        opening = f"{OPENING}{ticket.fence}".encode()
        if len(run) == 1:
            details = (run[0], 0, ticket.attempt, True, ticket.lost)
            own = self._own_rules(ticket, run[0])
            return opening + self._envelopes.plain(consumer.incarnation, consumer.queue, *details, own=own)
        packed = [Run(ticket.id, 0, ticket.attempt, True, run)]
        return opening + self._envelopes.bundle(consumer.incarnation, consumer.queue, packed, self._limits(packed))

    def _own_rules(self, ticket: Ticket, message: Message) -> OwnRules | None:
        """The options of a message that its worker goes by. The smaller one of two time limits holds."""
        options = message.options
        if options is None or not options.alone:
            return None
        timeout_ms = options.timeout_ms
        hard, soft = self._traits(message.task).limits
        if timeout_ms is not None and hard:
            timeout_ms = min(timeout_ms, int(hard * 1000))
        # A message that was begun does not expire any more.
        expires_ms = None if ticket.begun else options.expires_ms
        return OwnRules(options.max_attempts, timeout_ms, expires_ms, soft)

    def _limits(self, packed: Sequence[Run]) -> tuple[float | None, float | None]:
        """The time limits of a bundle."""
        names = {message.task for run in packed for message in run.messages}
        found = [self._traits(name).limits for name in names]
        hard, soft = ([limit for one in found if (limit := one[which])] for which in (0, 1))
        return limits_of(self._bundle_ms / 1000, hard, soft)


def _parcels_of(runs: list[tuple[Ticket, int]]) -> Iterator[list[tuple[Ticket, int]]]:
    """Splits ``runs`` into parcels: one, or several where the runs have too many bytes for one."""
    if sum(ticket.bytes for ticket, _ in runs) <= limits.PARCEL_BYTES:
        # The usual case: also with all their waiting messages the tickets have few bytes.
        yield runs
        return
    some: list[tuple[Ticket, int]] = []
    total = 0
    for ticket, length in runs:
        size = sum(message.size for message in islice(ticket.waiting, length))
        if some and total + size > limits.PARCEL_BYTES:
            yield some
            some, total = [], 0
        some.append((ticket, length))
        total += size
    yield some
