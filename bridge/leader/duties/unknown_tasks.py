"""Messages whose task no consumer can run: how long they wait, where that is noted, and when they are given up.

`bridge.leader.picture.stranded` holds the tickets. There are two cases:

- A consumer could run the task within the last `KNOWN_S` seconds, or within that time before messages began to wait
  for it. Such consumers are away and will come back, so a message waits without a limit.
- No consumer could run the task. The task is unknown: a message waits ``bridge_unknown_after`` for a consumer that can
  run it, and becomes a dead letter then. The time counts only while a master leads and at least one consumer is here.
  While all consumers are away, it is not known which tasks they can run.

The leader notes the waiting tasks in the lane (`bridge.routing.keys.LaneKeys.unserved`), for `bridge status` and for
the next leader. The next leader continues the clocks of the tasks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.stranded import Waiting
from bridge.leader.stream.by_id import message_of
from bridge.protocol import unreadable
from bridge.protocol.unserved import Note, UnservedTask, read_note
from bridge.routing.batch import Batch
from bridge.routing.ids import place_after
from bridge.routing.messages import Refused
from bridge.routing.numbers import duration
from bridge.routing.transitions import note_tasks

if TYPE_CHECKING:
    from bridge.leader.duties.refill import Refill
    from bridge.leader.picture.breaker import Breakers
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.protocol.registration import Registrations

logger = get_logger(__name__)

#: How long a task counts as known after a consumer could run it, in seconds.
KNOWN_S = 7 * 86_400
#: Seconds after which a task that a consumer can run is noted again.
NOTED_AGAIN_S = 86_400
#: Seconds between two notes of the waiting tasks. A change of the set of tasks is noted at once.
NOTE_S = 5.0
#: Longest step of a task's clock, in seconds. While a master was frozen, it did not see which consumers were here.
CLOCK_STEP_MAX_S = 5.0
#: Most messages that one step makes dead letters; most such steps in one look; most tasks that are noted; most tasks
#: that one note logs by name: a program may put anything into that field.
GIVEN_UP_PER_STEP = 200
STEPS_PER_LOOK = 10
NOTED = 200
LOGGED = 20


class UnknownTasks:
    """Advances the clocks of one lane's stranded tickets, on the leader's thread."""

    def __init__(
        self,
        term: Term,
        lane: Lane,
        steps: Steps,
        settling: Settling,
        breakers: Breakers,
        registrations: Registrations,
        refill: Refill,
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._settling = settling
        self._breakers = breakers
        self._registrations = registrations
        self._refill = refill
        self._keys = term.keys
        self._after_s = term.settings.unknown_after
        #: Task -> noted Unix s when a consumer could run it.
        self._known: dict[str, int] = {}
        self._noted: set[str] = set()
        self._note_at = 0.0
        self._looked_at = time.monotonic()

    def read_notes(self) -> None:
        """Reads the notes of the previous leader. To be called before the lane is read."""
        redis, keys = self._term.redis, self._keys
        known = unreadable.read_all(keys.known, redis.hgetall(keys.known), lambda _name, at: int(at))
        self._known = {name.decode(): at for name, at in known.items()}
        notes = unreadable.read_all(keys.unserved, redis.hgetall(keys.unserved), read_note)
        for unserved, waited_s in notes.values():
            self._noted.add(unserved.task)
            self._lane.stranded.waiting[unserved.task] = Waiting(unserved.since_ms, waited_s)
            if unserved.breaker:
                self._breakers.restore(unserved.task, unserved.breaker)

    def look(self) -> None:
        """Advances the clocks, gives up messages that waited too long, and notes the waiting tasks."""
        now = time.monotonic()
        step_s, self._looked_at = min(CLOCK_STEP_MAX_S, now - self._looked_at), now
        stranded = self._lane.stranded
        # While a new leader reads the lane, it has not found all tickets that wait. The notes of the last one stay.
        complete = not self._lane.behind
        known, forgotten = self._learn() if complete else ({}, [])
        if stranded.waiting and stranded.runnable is not None:
            for task, waiting in stranded.waiting.items():
                if task not in self._known and task not in stranded.open_circuits:
                    waiting.waited_s += step_s
            self._give_up_overdue()
            for task in [task for task, waiting in stranded.waiting.items() if not waiting.tickets]:
                if complete and task not in stranded.open_circuits:
                    del stranded.waiting[task]
        changed = known or forgotten or stranded.waiting.keys() != self._noted
        if complete and (changed or (self._noted and now >= self._note_at)):
            self._note(known, forgotten)
            self._note_at = now + NOTE_S

    # -- known tasks -------------------------------------------------------------------------------------------------

    def _learn(self) -> tuple[dict[str, int], list[str]]:
        """Updates the known tasks. Returns the tasks to note, with the time, and the tasks to forget."""
        now_s = self._lane.clock.server_ms() // 1000
        there = self._registrations.known()
        known = {task: now_s for task in there if now_s - self._known.get(task, 0) > NOTED_AGAIN_S}
        kept = there | self._lane.stranded.waiting.keys()
        forgotten = [task for task, at in self._known.items() if now_s - at > KNOWN_S and task not in kept]
        self._known |= known
        for task in forgotten:
            del self._known[task]
        return known, forgotten

    def _note(self, known: dict[str, int], forgotten: list[str]) -> None:
        stranded = self._lane.stranded
        # A breaker has logged this itself.
        fresh = sorted(task for task in stranded.waiting.keys() - self._noted if not self._breakers.why(task))
        for task in fresh[:LOGGED]:
            why = self._describe(task, stranded.waiting[task]).why
            logger.warning("messages wait for a consumer that can run %r: %s", task, why)
        if len(fresh) > LOGGED:
            logger.warning("messages wait for consumers that can run %d other tasks", len(fresh) - LOGGED)
        self._noted = set(stranded.waiting)
        notes = {}
        for task in sorted(self._noted)[:NOTED]:
            waiting = stranded.waiting[task]
            notes[task] = Note(self._describe(task, waiting), waiting.waited_s).text()
        note_tasks(self._term.redis, self._term.leadership, known, forgotten, notes)

    def _describe(self, task: str, waiting: Waiting) -> UnservedTask:
        known = task in self._known
        longest = waiting.longest()
        dead_in_ms = None
        breaker = self._breakers.why(task)
        if not (known or breaker) and longest is not None:
            dead_in_ms = max(0, int((self._after_s - longest[1]) * 1000))
        queue = self._registrations.meant_for(task)
        facts = (task, len(waiting.tickets), waiting.messages, waiting.since_ms, known, queue, dead_in_ms, breaker)
        return UnservedTask(*facts)

    # -- messages that waited too long -------------------------------------------------------------------------------

    def _give_up_overdue(self) -> None:
        whys: dict[str, str] = {}
        for _ in range(STEPS_PER_LOOK):
            overdue = self._overdue()
            if not overdue:
                return
            batch = Batch()
            for ticket in overdue:
                task = ticket.stranded
                if task not in whys:
                    # Once for a task: this counts the messages of all its tickets.
                    whys[task] = self._describe(task, self._lane.stranded.waiting[task]).why
                self._give_up(ticket, whys[task], batch)
            self._steps.advance(batch)
            self._refill.run()

    def _overdue(self) -> list[Ticket]:
        found: list[Ticket] = []
        for task, waiting in self._lane.stranded.waiting.items():
            if task in self._known or task in self._lane.stranded.open_circuits:
                continue
            while (
                len(found) < GIVEN_UP_PER_STEP
                and (longest := waiting.longest()) is not None
                and longest[1] >= self._after_s
            ):
                found.append(longest[0])
                waiting.drop_longest()
        return found

    def _give_up(self, ticket: Ticket, why: str, batch: Batch) -> None:
        lane = self._lane
        task, more = ticket.stranded, ticket.waiting_known > 1
        lane.stranded.drop(ticket)
        id_ = ticket.stranded_id
        message = message_of(self._term, ticket.id, id_)
        if more or ticket.front_id:
            lane.spilled.add(ticket)
            if ticket.spilled_from == message.place:
                ticket.spilled_from = place_after(message.place)
        else:
            ticket.spilled_from = None
        lane.put_first(ticket, message)
        error = f"{task}: {why}; it waited for {duration(int(self._after_s * 1000))} (bridge_unknown_after)"
        self._settling.give_up(ticket, batch, error, reason=Refused.UNKNOWN_TASK.value)
