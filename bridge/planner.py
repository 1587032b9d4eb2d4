"""Decides what goes where: which tickets to which consumer, and in which Celery messages.

- A ticket without a consumer gets one by the lane's policy, among those with room. A ticket that has one stays there;
  only when it waits for room while another consumer has an idle process does it move: nothing of it is in flight then.
- Room is time, not numbers: a consumer gets about `AHEAD` bundles' worth of work for each slot of its pool, by the
  measured service time, so that it never waits and little has to move when it dies. An idle slot always gets something.
- What one consumer gets in one step is packed into parcels (Celery messages): first one for each idle slot, then as
  many as it takes for each to last about ``bridge_bundle_ms``. A parcel of one message travels as an ordinary task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

from bridge.envelope import OPENING, Envelopes, Run
from bridge.lane import AWAITING, Lane
from bridge.picture import Consumer, Parcel, Ticket
from routing import records
from routing.messages import Message
from routing.policies import Policy, PolicyName, policy
from routing.transitions import Batch, Dispatch

#: Parcels' worth of work that each slot has ahead.
AHEAD = 2
#: Longest run of one ticket in a bundle, in messages.
RUN_MAX = 256
#: How many times a bundle's time the run of one ticket may last while there is a process for each ticket: nobody waits
#: for it then, and the way to the master and back is paid once.
STREAK = 8
#: What one message costs beside its own service time, in ms: alone, and in a bundle.
ALONE_MS = 0.7
MATE_MS = 0.03
#: Assumed service time of a task that was never measured, in ms.
UNKNOWN_MS = 5.0
#: Work ahead for each slot when bundles are off, in ms.
PLAIN_AHEAD_MS = 20.0


class TaskTraits:
    """What the planner must know of a task: whether it may travel in a bundle, and its (hard, soft) time limits."""

    __slots__ = ("bundled", "limits")

    def __init__(self, bundled: bool, limits: tuple[float | None, float | None]) -> None:
        self.bundled = bundled
        self.limits = limits


class Planner:
    """Plans one lane."""

    def __init__(self, lane: Lane, envelopes: Envelopes, traits: Callable[[str], TaskTraits]) -> None:
        self._lane = lane
        self._envelopes = envelopes
        self._traits = traits
        self._policy: Policy[Consumer] = policy(lane.settings.policy)
        self._pinned = lane.settings.policy is PolicyName.RENDEZVOUS
        self._bundle_ms = lane.settings.bundle_ms
        self._ahead_ms = AHEAD * self._bundle_ms if self._bundle_ms else PLAIN_AHEAD_MS

    def plan(self, batch: Batch, now_ms: int) -> dict[Ticket, int]:
        """Fills the dispatches of ``batch``; the tickets dispatched, with the fence offsets of their runs."""
        dispatched: dict[Ticket, int] = {}
        lane = self._lane
        if lane.suspects:
            self._isolate(batch, dispatched, now_ms)
        alive = [consumer for consumer in lane.consumers.values() if consumer.open]
        if not alive:
            return dispatched
        chosen: dict[Consumer, list[Ticket]] = {}
        promised: dict[Consumer, float] = {}
        for consumer in alive:
            if consumer.ready:
                self._choose(consumer, chosen, promised)
        if lane.ready:
            self._assign(alive, chosen, promised)
            # Those that were behind a ticket without a consumer, when there is room left for them.
            for consumer in alive:
                if consumer.ready:
                    self._choose(consumer, chosen, promised)
        if len(alive) > 1:
            self._move(alive, chosen, promised)
        for consumer, tickets in chosen.items():
            self._pack(consumer, tickets, batch, dispatched, now_ms)
        return dispatched

    # -- suspects ----------------------------------------------------------------------------------------------------

    def _isolate(self, batch: Batch, dispatched: dict[Ticket, int], now_ms: int) -> None:
        """Suspects go out alone, each to a consumer that has nothing else: if that one ends too, it is clear why.

        One consumer at a time is kept empty for that, so that suspects never stop a whole lane that has several.
        """
        lane = self._lane
        for ticket in list(lane.suspects):
            idle = [c for c in lane.consumers.values() if c.open and not c.parcels and not c.ready]
            kept = [c for c in lane.consumers.values() if c.alone is ticket]
            if not kept and not idle:
                if not any(c.alone is not None and not c.alone.run for c in lane.consumers.values()):
                    self._keep_empty(ticket)
                return
            consumer = (kept or idle)[0]
            if kept and (not consumer.alive or consumer.leaving or consumer.draining or consumer.stalled):
                consumer.alone = None
                continue
            consumer.alone = ticket
            if consumer.parcels:
                continue
            lane.suspects.remove(ticket)
            ticket.queued = False
            self._send(consumer, [(ticket, 1)], batch, dispatched, now_ms)

    def _keep_empty(self, ticket: Ticket) -> None:
        lane = self._lane
        consumer = min((c for c in lane.consumers.values() if c.open), key=lambda c: c.load, default=None)
        if consumer is None:
            return
        consumer.alone = ticket
        lane.free_ready(consumer)

    # -- who gets which tickets --------------------------------------------------------------------------------------

    def _room(self, consumer: Consumer, promised: dict[Consumer, float], count: int) -> bool:
        if consumer.parcels + count < consumer.slots:
            return True
        return consumer.backlog_ms + promised.get(consumer, 0.0) < consumer.slots * self._ahead_ms

    def _cost(self, message: Message) -> float:
        service = self._lane.service_ms.get(message.task, UNKNOWN_MS)
        return service + (MATE_MS if self._bundled(message, service) else ALONE_MS)

    def _bundled(self, message: Message, service_ms: float) -> bool:
        # Up to twice the bundle's time: two of those in a row still save a round trip to the master.
        return (
            self._bundle_ms > 0
            and service_ms <= 2 * self._bundle_ms
            and message.task in self._lane.service_ms
            and self._traits(message.task).bundled
        )

    def _choose(
        self,
        consumer: Consumer,
        chosen: dict[Consumer, list[Ticket]],
        promised: dict[Consumer, float],
    ) -> None:
        mine = chosen.setdefault(consumer, [])
        ready = consumer.ready
        unassigned = self._lane.ready
        while ready and self._room(consumer, promised, len(mine)):
            if unassigned and not self._pinned and unassigned[0].turn < ready[0].turn:
                # Tickets that always have work must not keep out one that waits for any consumer at all.
                return
            ticket = ready.popleft()
            mine.append(ticket)
            promised[consumer] = promised.get(consumer, 0.0) + self._cost(ticket.waiting[0])

    def _assign(
        self, alive: list[Consumer], chosen: dict[Consumer, list[Ticket]], promised: dict[Consumer, float]
    ) -> None:
        ready = self._lane.ready
        if self._pinned:
            # The policy names one consumer whatever its load: the ticket waits for that one.
            while ready:
                ticket = ready.popleft()
                consumer = self._policy(ticket.id, alive)
                ticket.consumer = consumer
                if ticket.turn <= 0:
                    consumer.ready.appendleft(ticket)
                else:
                    consumer.ready.append(ticket)
            for consumer in alive:
                self._choose(consumer, chosen, promised)
            return
        roomy = [c for c in alive if self._room(c, promised, len(chosen.get(c, ())))]
        least_loaded = self._lane.settings.policy is PolicyName.LEAST_LOADED
        while ready and roomy:
            ticket = ready.popleft()
            if len(roomy) == 1:
                consumer = roomy[0]
            elif least_loaded:
                # As the policy, but counting what this very step has promised.
                consumer = min(
                    roomy, key=lambda c: (c.load + promised.get(c, 0.0) / c.slots, len(chosen.get(c, ())) / c.slots)
                )
            else:
                consumer = self._policy(ticket.id, roomy)
            mine = chosen.setdefault(consumer, [])
            mine.append(ticket)
            promised[consumer] = promised.get(consumer, 0.0) + self._cost(ticket.waiting[0])
            if not self._room(consumer, promised, len(mine)):
                roomy.remove(consumer)

    def _move(
        self, alive: list[Consumer], chosen: dict[Consumer, list[Ticket]], promised: dict[Consumer, float]
    ) -> None:
        """Tickets that wait for room at one consumer go to another that has an idle slot."""
        if self._pinned:
            return
        for idle in alive:
            while idle.parcels + len(chosen.get(idle, ())) < idle.slots:
                crowded = max(alive, key=lambda c: len(c.ready))
                if not crowded.ready or crowded is idle:
                    break
                ticket = crowded.ready.pop()
                chosen.setdefault(idle, []).append(ticket)
                promised[idle] = promised.get(idle, 0.0) + self._cost(ticket.waiting[0])

    # -- in which parcels --------------------------------------------------------------------------------------------

    def _pack(
        self, consumer: Consumer, tickets: list[Ticket], batch: Batch, dispatched: dict[Ticket, int], now_ms: int
    ) -> None:
        alone: list[Ticket] = []
        mates: list[Ticket] = []
        for ticket in tickets:
            ticket.queued = False
            head = ticket.waiting[0]
            service = self._lane.service_ms.get(head.task, UNKNOWN_MS)
            # What was cut off half way travels alone: its rollback comes first, and is nobody else's business.
            bundled = ticket.lost is None and self._bundled(head, service)
            (mates if bundled else alone).append(ticket)
        for ticket in alone:
            self._send(consumer, [(ticket, 1)], batch, dispatched, now_ms)
        if not mates:
            return
        # Share of the room for each ticket, so that few tickets make long runs and many make short ones.
        room_ms = max(consumer.slots * self._ahead_ms - consumer.backlog_ms, self._bundle_ms)
        share_ms = min(room_ms / len(mates), self._bundle_ms)
        if consumer.parcels + len(mates) <= consumer.slots:
            share_ms = STREAK * self._bundle_ms
        runs: list[tuple[Ticket, int]] = []
        total_ms = 0.0
        for ticket in mates:
            cost = self._cost(ticket.waiting[0])
            length = 1
            if len(ticket.waiting) > 1:
                length = self._run_length(ticket, max(1, min(RUN_MAX, round(share_ms / cost))))
            runs.append((ticket, length))
            total_ms += cost * length
        idle = max(0, consumer.slots - consumer.parcels)
        parcels = min(len(runs), max(ceil(total_ms / self._bundle_ms), min(idle, len(runs)), 1))
        for i in range(parcels):
            self._send(consumer, runs[i::parcels], batch, dispatched, now_ms)

    def _run_length(self, ticket: Ticket, wanted: int) -> int:
        length = 0
        for message in ticket.waiting:
            if length == wanted or not self._bundled(message, self._lane.service_ms.get(message.task, UNKNOWN_MS)):
                break
            length += 1
        return max(1, length)

    def _send(
        self,
        consumer: Consumer,
        runs: Sequence[tuple[Ticket, int]],
        batch: Batch,
        dispatched: dict[Ticket, int],
        now_ms: int,
    ) -> None:
        """One parcel."""
        lane = self._lane
        to = batch.dispatches.get(consumer.name)
        if to is None:
            to = batch.dispatches[consumer.name] = Dispatch(consumer.name, consumer.queue)
        count = sum(length for _, length in runs)
        parcel = Parcel(consumer, count, 0.0)
        cost_ms = 0.0
        packed: list[Run] = []
        at = time.monotonic()
        for ticket, length in runs:
            lane.touch(ticket, batch)
            waiting = ticket.waiting
            run = ticket.run
            ids = []
            for _ in range(length):
                message = waiting.popleft()
                run.append(message)
                ids.append(message.id)
                lane.in_flight[message.id] = ticket
            cost_ms += self._cost(run[0]) * length
            if ticket.record.startswith(AWAITING):
                batch.due.append(ticket.id)
            offset = batch.fences
            batch.fences += length
            told = ("", ticket.losses, ticket.lost)
            ticket.tail = records.tail(consumer.name, consumer.incarnation, ticket.attempt, ids, now_ms, *told)
            ticket.dispatched_ms = now_ms
            to.ids += ids
            to.runs.append((ticket.id, offset, ticket.tail))
            ticket.consumer = consumer
            ticket.parcel = parcel
            ticket.dispatched_at = at
            consumer.tickets.add(ticket)
            dispatched[ticket] = offset
            packed.append((ticket.id, offset, ticket.attempt, False, run))
        parcel.share_ms = cost_ms / count
        consumer.parcels += 1
        consumer.messages += count
        consumer.backlog_ms += cost_ms
        if count == 1:
            _, offset, attempt, doubt, messages = packed[0]
            lost = runs[0][0].lost
            to.texts.append(
                self._envelopes.plain(consumer.incarnation, consumer.queue, messages[0], offset, attempt, doubt, lost)
            )
            return
        limits = self._limits(packed)
        to.texts.append(self._envelopes.bundle(consumer.incarnation, consumer.queue, packed, limits))

    def text_again(self, ticket: Ticket, consumer: Consumer) -> bytes:
        """The whole text for a run that is in flight, with the fences that it has, marked as in doubt."""
        run = ticket.run
        opening = f"{OPENING}{ticket.fence}".encode()
        if len(run) == 1:
            told = (run[0], 0, ticket.attempt, True, ticket.lost)
            return opening + self._envelopes.plain(consumer.incarnation, consumer.queue, *told)
        packed = [(ticket.id, 0, ticket.attempt, True, run)]
        return opening + self._envelopes.bundle(consumer.incarnation, consumer.queue, packed, self._limits(packed))

    def _limits(self, packed: Sequence[Run]) -> tuple[float | None, float | None]:
        """The smallest limits of the tasks in a bundle, and the time that the bundle itself may take on top."""
        names = {message.task for run in packed for message in run[4]}
        grace = 5 * self._bundle_ms / 1000
        smallest: list[float | None] = []
        for which in (0, 1):
            limits = [limit for name in names if (limit := self._traits(name).limits[which])]
            smallest.append(min(limits) + grace if limits else None)
        return smallest[0], smallest[1]
