"""Which consumers have room for more work. Kept from step to step, and updated only for consumers that changed.

A lane may have hundreds of consumers, and a step often dispatches one message. So a step looks only at consumers of
which the lane says that something changed (`Lane.room_changed`), and at all of them only when who may be sent anything
did (`Consumer.changes`).

Room is measured in time and bytes, not in messages. By the measured service times, a consumer gets about ``ahead_ms``
of work for each slot of its pool. So it never waits for work, and little has to move when it dies. An idle slot always
gets something.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import islice

from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.routing.policies import Policy, PolicyName, policy

#: Work ahead of each slot, in bundles.
AHEAD = 2
#: The same for short tasks. A consumer of these gets more when there is room for a whole bundle: what a bundle costs
#: the master and the server does not depend much on its size. With longer tasks that saves nothing, and what waits at a
#: consumer behind a long task cannot move.
AHEAD_SHORT = 4
#: Tasks are short when a bundle has at least this many.
MANY = 16
#: Most bytes of the payloads in one bundle, unless its first message alone has more. Far below the server's limit for
#: one argument (proto-max-bulk-len), even when every byte is escaped.
PARCEL_BYTES = 1024 * 1024
#: Most bytes of the payloads in one step: the server copies them at once. The rest goes out in the next step.
STEP_BYTES = 4 * 1024 * 1024

#: Most parcels in flight for each slot when fresh messages are sent beyond the room; and how many consumers are looked
#: at for one of them.
BEYOND = 4 * AHEAD_SHORT
BEYOND_LOOKED_AT = 4

#: The tasks that a consumer can run; None: any task.
Tasks = frozenset[str] | None


class _Group:
    """The consumers with room that can run the same tasks, as a heap by load and as a list.

    Entries of the heap may be outdated. Only the entry counts whose number is in ``current``.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, float, int, Consumer]] = []
        self.current: dict[Consumer, int] = {}
        self.members: list[Consumer] = []
        self.places: dict[Consumer, int] = {}

    def remove(self, consumer: Consumer) -> None:
        self.current.pop(consumer, None)
        place = self.places.pop(consumer, None)
        if place is not None:
            last = self.members.pop()
            if last is not consumer:
                self.members[place] = last
                self.places[last] = place


class Room:
    """The room of all consumers of one lane, for its planner. What a step has chosen counts as sent already."""

    def __init__(self, lane: Lane, ahead_ms: float, bundle_ms: float) -> None:
        self._lane = lane
        self._ahead_ms = ahead_ms
        self._bundle_ms = bundle_ms
        self._by_load = lane.settings.policy is PolicyName.LEAST_LOADED
        self._policy: Policy[Consumer] | None = None if self._by_load else policy(lane.settings.policy)
        self._groups: dict[Tasks, _Group] = {}
        #: Task -> groups that can run it.
        self._able: dict[str, list[_Group]] = {}
        #: `Consumer.changes` when all consumers were looked at last.
        self.seen = -1
        self._sequence = 0
        #: Open consumers that have an idle slot.
        self.idle: dict[Consumer, None] = {}
        #: Open consumers.
        self.open: dict[str, Consumer] = {}
        #: The same, in the order in which they are looked at for fresh messages.
        self._any: deque[Consumer] = deque()
        #: The tickets that this step has chosen for each consumer, and their expected cost in ms.
        self.chosen: dict[Consumer, list[Ticket]] = {}
        self._promised: dict[Consumer, float] = {}
        #: Bytes that this step dispatches, in total and to each consumer.
        self.planned = 0
        self._planned_to: dict[Consumer, int] = {}
        #: Whether this step, or the last one, left work that the next step can send at once.
        self.left_some = False

    def is_current(self) -> bool:
        """Whether no consumer came, left, opened or closed since the last look at all of them."""
        return self.seen == Consumer.changes

    @property
    def has_any(self) -> bool:
        """Whether any open consumer has room."""
        return any(group.members for group in self._groups.values())

    def begin(self) -> None:
        """A step begins."""
        self.planned = 0
        self.left_some = False

    def fits(self) -> bool:
        """Whether this step may send more bytes, to any consumer."""
        if self.planned >= STEP_BYTES:
            self.left_some = True
            return False
        lane = self._lane
        # Half of the memory is for waiting messages. Otherwise messages in flight could keep the next ones out.
        return lane.bytes_in_flight + self.planned < lane.settings.window_bytes // 2

    def look(self) -> list[Consumer]:
        """Updates the room of the consumers that changed since the last look. Returns those of them that are open."""
        lane = self._lane
        if self.is_current():
            changed = [consumer for consumer in lane.room_changed if consumer.open]
        else:
            self.seen = Consumer.changes
            changed = [consumer for consumer in lane.consumers.values() if consumer.open]
            self._groups = {}
            self._able = {}
            self.idle = {}
            self.open = {consumer.name: consumer for consumer in changed}
            self._any = deque(changed)
        lane.room_changed.clear()
        for consumer in changed:
            self.rate(consumer)
        return changed

    def has(self, consumer: Consumer) -> bool:
        """Whether ``consumer`` has room."""
        if consumer.parcels + len(self.chosen.get(consumer, ())) < consumer.slots:
            return True
        if not consumer.takes_bundles:
            return False
        if consumer.bytes + self._planned_to.get(consumer, 0) >= consumer.slots * AHEAD * PARCEL_BYTES:
            return False
        promised_ms = self._promised.get(consumer, 0.0)
        room_ms = self.room_ms(consumer)
        if promised_ms or not self._has_short(consumer):
            return room_ms > promised_ms
        return room_ms >= self._bundle_ms

    def room_ms(self, consumer: Consumer) -> float:
        """How much more work the consumer may have, by what it has in flight."""
        ahead_ms = self._ahead_ms
        if self._has_short(consumer):
            ahead_ms = AHEAD_SHORT * self._bundle_ms
        return consumer.slots * ahead_ms - consumer.backlog_ms

    def _has_short(self, consumer: Consumer) -> bool:
        """Whether a bundle of messages like those that the consumer has would have many."""
        return consumer.backlog_ms * MANY < consumer.messages * self._bundle_ms

    def choose(self, consumer: Consumer, ticket: Ticket, cost_ms: float) -> None:
        """``ticket`` goes to ``consumer`` in this step."""
        self.choose_next(consumer, ticket, cost_ms)
        self.rate(consumer)

    def choose_next(self, consumer: Consumer, ticket: Ticket, cost_ms: float) -> None:
        """As `choose`, for one of several tickets. The caller rates the consumer after the last of them."""
        self.chosen.setdefault(consumer, []).append(ticket)
        self._promised[consumer] = self._promised.get(consumer, 0.0) + cost_ms
        size = ticket.waiting[0].size
        self.planned += size
        self._planned_to[consumer] = self._planned_to.get(consumer, 0) + size

    def clear(self) -> None:
        """The chosen tickets are sent. From now on the consumers count them themselves."""
        for consumer in self.chosen:
            self._lane.room_changed[consumer] = None
        self.chosen = {}
        self._promised.clear()
        self._planned_to.clear()

    def for_ticket(self, ticket: Ticket) -> Consumer | None:
        """The consumer with room that the policy chooses for ``ticket``; None: no consumer that can run it has room."""
        groups = self._of(ticket.waiting[0].task)
        if self._policy is None:
            best = None
            for group in groups:
                heap = group.heap
                while heap and group.current.get(heap[0][3]) != heap[0][2]:
                    heapq.heappop(heap)
                if heap and (best is None or heap[0] < best):
                    best = heap[0]
            return None if best is None else best[3]
        roomy: Sequence[Consumer] = groups[0].members if len(groups) == 1 else [c for g in groups for c in g.members]
        return self._policy(ticket.id, roomy) if roomy else None

    def beyond(self, ticket: Ticket) -> Consumer | None:
        """A consumer without room for a fresh message, which will run before what waits there: all of that is short."""
        task = ticket.waiting[0].task
        best = None
        at = ticket.consumer
        for consumer in islice(self._any, BEYOND_LOOKED_AT) if at is None else (at,):
            if (
                consumer.takes_bundles
                and self._has_short(consumer)
                and consumer.runs(task)
                and consumer.parcels + len(self.chosen.get(consumer, ())) < BEYOND * consumer.slots
                and (best is None or consumer.load < best.load)
            ):
                best = consumer
        # Others are looked at next time.
        self._any.rotate(-BEYOND_LOOKED_AT)
        return best

    def _of(self, task: str) -> list[_Group]:
        found = self._able.get(task)
        if found is None:
            found = self._able[task] = [
                group for tasks, group in self._groups.items() if tasks is None or task in tasks
            ]
        return found

    def rate(self, consumer: Consumer) -> None:
        """Notes how much room ``consumer`` has now. It is open."""
        chosen = len(self.chosen.get(consumer, ()))
        slots = consumer.slots
        if consumer.parcels + chosen < slots:
            self.idle[consumer] = None
        else:
            self.idle.pop(consumer, None)
        group = self._groups.get(consumer.tasks)
        if group is None:
            group = self._groups[consumer.tasks] = _Group()
            self._able = {}
        if not self.has(consumer):
            group.remove(consumer)
            return
        if not self._by_load:
            if consumer not in group.places:
                group.places[consumer] = len(group.members)
                group.members.append(consumer)
            return
        self._sequence += 1
        group.current[consumer] = self._sequence
        if len(group.heap) > 8 * len(group.current) + 64:
            group.heap = [entry for entry in group.heap if group.current.get(entry[3]) == entry[2]]
            heapq.heapify(group.heap)
        # The load as the policy sees it, plus what this step has already chosen.
        load = consumer.load + self._promised.get(consumer, 0.0) / slots
        heapq.heappush(group.heap, (load, chosen / slots, self._sequence, consumer))
