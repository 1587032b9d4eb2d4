"""Tasks that messages wait for, since nobody who is here can run them: for how long, who is told, and when it is over.

`bridge.leader.picture.stranded` has the tickets. A message waits for as long as it takes when a consumer could run its
task within the last `KNOWN_S` seconds: those consumers are away, and will be back. A task that no consumer has had is
unknown: a message waits ``bridge_unknown_after`` for somebody to come who has it, and is a dead letter then. The time
counts only while a master leads and some consumer is here: when all are away, nobody can tell what they know.

What waits is noted in the lane (`bridge.routing.keys.LaneKeys.unserved`), for `bridge status` and for the next leader,
which goes on where the clock stood.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.stranded import Waiting
from bridge.leader.stream.by_id import message_of
from bridge.protocol.unserved import UnservedTask
from bridge.routing.ids import id_key, key_after
from bridge.routing.messages import Refused
from bridge.routing.text import duration
from bridge.routing.transitions import Batch, note_tasks

if TYPE_CHECKING:
    from bridge.leader.duties.refill import Refill
    from bridge.leader.picture.breaker import Breakers
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.protocol.registration import Registrations

logger = get_logger(__name__)

#: Seconds for which it is remembered that some consumer could run a task.
KNOWN_S = 7 * 86_400
#: Seconds after which a task that is there still is noted again.
NOTED_AGAIN_S = 86_400
#: Seconds between two notes of what waits; at once when a task comes or goes.
NOTE_S = 5.0
#: Longest step of a task's clock, in seconds: a master that stood still has not asked anybody meanwhile.
STEP_S = 5.0
#: Messages that become dead letters in one step; steps of one look; tasks that are noted.
STEP = 200
STEPS = 10
NOTED = 200


class UnknownTasks:
    """Works on the leader's lane, on the leader's thread."""

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
        #: Task -> Unix s when some consumer could run it, as noted.
        self._known: dict[str, int] = {}
        self._noted: set[str] = set()
        self._note_at = 0.0
        self._looked_at = time.monotonic()

    def recall(self) -> None:
        """What the leader before this one noted. Before the lane is read."""
        redis = self._term.redis
        self._known = {name.decode(): int(at) for name, at in redis.hgetall(self._keys.known).items()}
        for name, text in redis.hgetall(self._keys.unserved).items():
            note = orjson.loads(text)
            self._noted.add(name.decode())
            waiting = Waiting(int(note["since_ms"]), float(note["waited_s"]))
            self._lane.stranded.waiting[name.decode()] = waiting
            if breaker := note.get("breaker"):
                self._breakers.restore(name.decode(), breaker)

    def look(self) -> None:
        """Moves the clocks on, gives up what has waited for too long, and notes what waits."""
        now = time.monotonic()
        step_s, self._looked_at = min(STEP_S, now - self._looked_at), now
        stranded = self._lane.stranded
        known, forgotten = self._learn()
        if stranded.waiting and stranded.runnable is not None:
            for task, waiting in stranded.waiting.items():
                if task not in self._known and task not in stranded.paused:
                    waiting.waited_s += step_s
            self._give_up()
            for task in [task for task, waiting in stranded.waiting.items() if not waiting.tickets]:
                if task not in stranded.paused:
                    del stranded.waiting[task]
        if known or forgotten or stranded.waiting.keys() != self._noted or (self._noted and now >= self._note_at):
            self._note(known, forgotten)
            self._note_at = now + NOTE_S

    # -- what is known -----------------------------------------------------------------------------------------------

    def _learn(self) -> tuple[dict[str, int], list[str]]:
        """(tasks to note with the time, tasks to forget)."""
        now_s = self._lane.now_ms() // 1000
        there = self._registrations.known()
        known = {task: now_s for task in there if now_s - self._known.get(task, 0) > NOTED_AGAIN_S}
        forgotten = [task for task, at in self._known.items() if now_s - at > KNOWN_S and task not in there]
        self._known |= known
        for task in forgotten:
            del self._known[task]
        return known, forgotten

    def _note(self, known: dict[str, int], forgotten: list[str]) -> None:
        stranded = self._lane.stranded
        for task in stranded.waiting.keys() - self._noted:
            one = self._describe(task, stranded.waiting[task])
            if one.breaker:
                # Its breaker has told.
                continue
            logger.warning("messages wait for a consumer that can run %r: %s", task, one.why)
        self._noted = set(stranded.waiting)
        notes = {}
        for task in sorted(self._noted)[:NOTED]:
            waiting = stranded.waiting[task]
            notes[task] = self._describe(task, waiting).text(waiting.waited_s)
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

    # -- what has waited for too long --------------------------------------------------------------------------------

    def _give_up(self) -> None:
        for _ in range(STEPS):
            overdue = self._overdue()
            if not overdue:
                return
            batch = Batch()
            for ticket in overdue:
                self._condemn(ticket, batch)
            self._steps.advance(batch)
            self._refill.run()

    def _overdue(self) -> list[Ticket]:
        found: list[Ticket] = []
        for task, waiting in self._lane.stranded.waiting.items():
            if task in self._known or task in self._lane.stranded.paused:
                continue
            while len(found) < STEP and (longest := waiting.longest()) is not None and longest[1] >= self._after_s:
                found.append(longest[0])
                waiting.pass_over()
        return found

    def _condemn(self, ticket: Ticket, batch: Batch) -> None:
        lane = self._lane
        task, more = ticket.stranded, ticket.behind > 1
        why = self._describe(task, lane.stranded.waiting[task]).why
        lane.stranded.drop(ticket)
        id_ = ticket.stranded_id
        message = message_of(self._term, ticket.id, id_)
        if more or ticket.front_id:
            lane.spilled.add(ticket)
            if ticket.spilled_from == id_key(id_):
                ticket.spilled_from = key_after(id_key(id_))
        else:
            ticket.spilled_from = None
        lane.put_first(ticket, message)
        error = f"{task}: {why}; it waited for {duration(int(self._after_s * 1000))} (bridge_unknown_after)"
        logger.warning("ticket %r: message %s is dead: %s", ticket.id, id_, error)
        self._settling.condemn(ticket, batch, error, reason=Refused.UNKNOWN_TASK.value)
