"""Calls of a lane's scripts at random, each to a real server and to the reference beside it.

Whatever a leader, its predecessors, workers and strangers could ask a script to do is asked, sensible or not: what
comes of it is compared, and nothing else is judged here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import orjson

from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import records
from bridge.routing.batch import Batch, DeadLetter, Dispatch, OlderLane
from bridge.routing.effects import Effect, Success
from bridge.routing.ids import member_of
from bridge.routing.transitions import Leadership
from tests.protocol.guards import Guard
from tests.reference.contents import MASTER
from tests.scripts.beside import Beside
from tests.scripts.world import Client

TICKETS = ["T1", "a:{b} c", 'é\n"']
NAMES = ["w1@a", "w2@b"]
#: Bytes of payloads: from the smallest to as many as a read may bring.
SIZES = [2, 3, 100, 5_000, 40_000]
#: An id that no entry has.
NOWHERE = "999999-0"
AT_MS, DUE_MS = 1000, 5000
DUE_TIMES = [5, 6, 1000, 2_000_000_000_000]


class LaneCalls:
    """A lane, and what may happen to it."""

    def __init__(self, client: Client, seed: int, dropped: AbstractSet[Guard] = frozenset()) -> None:
        self.dice = random.Random(seed)
        self.lane = Beside(client, dropped)
        self.reference = self.lane.reference
        self._lives = 0
        self.lane.both("lead", "m")
        #: Every leader that there was, the last one at the end.
        self.leads = [Leadership(self.lane.keys, self.reference.leader, MASTER)]
        self.join()
        for _ in range(self.dice.randint(0, 3)):
            self.push()
            self.read()

    def run(self, calls: int) -> None:
        """So many calls, and a comparison after each."""
        of: dict[Callable[[], None], int] = {
            self.step: 8,
            self.push: 2,
            self.another_version: 3,
            self.read: 3,
            self.outcome: 4,
            self.succeed: 5,
            self.reroute: 4,
            self.join: 3,
            self.a_lease_ends: 2,
            self.the_lead_changes: 2,
            self.adopt: 1,
            self.move_due: 2,
            self.resend: 1,
            self.recall: 1,
            self.forget: 1,
        }
        for call in self.dice.choices(list(of), list(of.values()), k=calls):
            call()
            self.lane.check()

    # -- what dice choose --------------------------------------------------------------------------------------------

    def rarely(self) -> bool:
        return self.dice.random() < 0.1

    @property
    def lead(self) -> Leadership:
        """The one who leads, and now and then one that did."""
        return self.dice.choice([*self.leads, *self.leads[-1:] * 9])

    def ids(self, most: int = 2) -> list[str]:
        """Entries in any state, and one that there is not."""
        known = [*self.reference.entries, NOWHERE]
        return self.dice.sample(known, min(len(known), self.dice.randint(0, most)))

    def expected(self, ticket: str) -> str:
        """The record of the ticket, and now and then another one."""
        record = self.reference.tickets.get(ticket, "")
        return self.dice.choice(["", "[1,1]", f"{record} "]) if self.rarely() else record

    def life(self) -> tuple[str, str]:
        """A consumer and its incarnation: one that is there, or an older one."""
        if not self._lives or self.rarely():
            return self.dice.choice(NAMES), "no life"
        number = max(1, self._lives - self.dice.randint(0, 2))
        return NAMES[number % len(NAMES)], f"life-{number}"

    def last_outcome(self) -> str:
        return self.dice.choice(["0-0", *self.reference.outcomes, *list(self.reference.outcomes)[-1:] * 4])

    # -- the leader --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        after = self.dice.choice([*self.reference.entries, "0-0"]) if self.rarely() else ">"
        self.lane.read(self.lead, self.dice.randint(1, 8), after)

    def another_version(self) -> None:
        """Something happens to an older version of the stream, or to a newer one."""
        dice, lane = self.dice, self.lane
        what = dice.choice(["push", "push", "lead", "dispatch"])
        if what == "push":
            for _ in range(dice.choice([1, 1, 1, 1, 1, 200])):
                lane.push_older(dice.choice([*TICKETS, "another"]))
        elif what == "lead":
            lane.lead_older(f"{dice.randint(1, 3)} m")
        else:
            us = lane.client.time()[0] * 1_000_000
            fence = dice.choice([records.AWAITING, records.PARKED, us, us + 60_000_000])
            tail = records.tail("w1@a", "life", 1, ["1-0"], AT_MS)
            keys = dice.choice([lane.older, lane.newer])
            lane.note_version(keys, dice.choice(TICKETS), records.record(fence, tail), max(1, fence))

    def _versions(self, batch: Batch) -> None:
        """What a leader in a chain says when it dispatches: what it knows of the others, and now and then less."""
        dice, lane = self.dice, self.lane
        batch.contested = [run[0] for to in batch.dispatches.values() for run in to.runs]
        there = self.reference.versions[lane.older.stream]
        if there.leader and dice.random() < 0.5:
            token = f"{dice.randint(1, 3)} m" if self.rarely() else there.leader
            position = dice.choice(["0-0", *there.entries, *[*there.entries][-1:] * 9])
            batch.older = [OlderLane(lane.older, token, position)]
        if dice.random() < 0.5:
            batch.newer = [lane.newer]

    def step(self) -> None:
        """A batch of whatever may be in one."""
        dice, ref = self.dice, self.reference
        batch = Batch()
        for ticket in dice.sample(TICKETS, dice.randint(1, len(TICKETS))):
            self._handle(batch, ticket)
        if self.rarely():
            batch.acknowledged += self.ids()
            batch.given_back += self.ids()
        if ref.letters and self.rarely():
            letter, fields = dice.choice(list(ref.letters.items()))
            batch.replayed.append(letter)
            batch.given_back.append(fields["message_id"])
        if dice.random() < 0.3:
            batch.keep_outcomes_from = " ".join([self.last_outcome(), *list(ref.outcomes)[: dice.choice([0, 0, 2])]])
        if self.rarely():
            batch.orders = [dice.choice([*ref.outcomes, NOWHERE])]
        if self.rarely():
            batch.drains[dice.choice(NAMES)] = dice.choice(["", "{}"])
        if dice.random() < 0.3:
            self._delay(batch)
        if self.rarely():
            batch.history, batch.history_cap = [[1, "row"]], 1000
        batch.count("steps", dice.randint(0, 2))
        if batch.dispatches and dice.random() < 0.5:
            self._versions(batch)
        self.lane.advance(self.lead, batch)

    def _handle(self, batch: Batch, ticket: str) -> None:
        """What a leader may do with one ticket, whether this is the time for it or not."""
        dice, ref = self.dice, self.reference
        words = ticket.encode()
        mine = [id_ for id_, entry in ref.entries.items() if entry[1] == words and id_ in ref.pending]
        record = ref.record(ticket)
        attempt = record.attempt if record is not None else 1
        front = list(record.ids) if record is not None and record.ids else mine[:2]
        what = dice.choice(["done", "done", "fail", "give up", "give back", "park", *["dispatch"] * 6])
        if not front:
            return
        batch.expected[ticket] = self.expected(ticket)
        released, record_ids, fence = False, front[:1], records.AWAITING
        if what == "dispatch":
            ids = mine[: dice.randint(1, 3)]
            if not ids or (record is not None and record.in_flight and not self.rarely()):
                return
            name, life = self.life()
            to = batch.dispatches.setdefault(name, Dispatch(name, self.lane.keys.queue(name)))
            to.ids += ids
            to.runs.append((ticket, batch.fences, records.tail(name, life, attempt, ids, AT_MS)))
            to.texts.append(orjson.dumps([ticket, batch.fences, ids]))
            batch.fences += len(ids)
            batch.due.append(ticket)
            return
        if what == "done":
            over = dice.randint(1, len(front))
            batch.acknowledged += front[:over]
            record_ids = front[over:]
            released = not record_ids
            fence = record.fence + over if record is not None and record.in_flight else records.AWAITING
        elif what == "give up":
            batch.acknowledged += front[:1]
            batch.given_back += front
            batch.dead.append(DeadLetter(front[0], ["reason", "gave up"]))
            released = True
        elif what == "park":
            batch.shelve(self.lane.keys.parked_consumer(MASTER, ticket), front)
            fence = records.PARKED
        else:
            batch.given_back += front
            released = what == "give back"
        if released:
            batch.released.append(ticket)
            batch.due.append(ticket)
            return
        batch.records += (ticket, records.record(fence, records.tail("", "", attempt, record_ids, AT_MS, what)))
        if fence == records.AWAITING:
            batch.retries += (DUE_MS, ticket)

    def reroute(self) -> None:
        _, life = self.life()
        flying = [(ticket, r) for ticket in TICKETS if (r := self.reference.record(ticket)) and r.incarnation == life]
        moves, ids = [], self.ids(1) if self.rarely() else []
        for ticket, record in flying:
            ids += record.ids
            parked = self.rarely()
            fence = records.PARKED if parked else records.AWAITING
            again = records.record(fence, records.tail("", "", record.attempt, list(record.ids[:1]), AT_MS, "lost"))
            moves.append((ticket, self.expected(ticket), again, None if parked else DUE_MS))
        rows = [[1, "row"]] if self.rarely() else []
        self.lane.both("reroute", self.lead, life, self.last_outcome(), moves, ids, rows, 1000)

    def adopt(self) -> None:
        self.lane.both("adopt", self.lead, self.dice.choice([MASTER, *NAMES]), self.ids() or [NOWHERE])

    def move_due(self) -> None:
        dice = self.dice
        read_to = dice.choice(["0-0", *self.reference.entries, *[*self.reference.entries][-1:] * 4])
        self.lane.move_due(self.lead, dice.randint(1, 3), read_to, dice.choice(DUE_TIMES[:3]))

    def _delay(self, batch: Batch) -> None:
        """Messages are delayed, held, late, rescheduled, or none of these any more."""
        dice, ref = self.dice, self.reference
        some = [id_ for id_ in self.ids(3) if id_ in ref.pending]
        for id_ in some:
            what = dice.choice(["delay", "delay", "late", "hold", "reschedule", "over", "cancel"])
            due = (dice.choice(DUE_TIMES), member_of(id_))
            if what == "delay":
                batch.delay(self.lane.keys.delayed_consumer(MASTER), id_, due[0])
            elif what == "cancel":
                batch.acknowledged.append(id_)
            if what in ("over", "cancel"):
                batch.over.append(due[1])
            batch.late += due if what == "late" else ()
            batch.holding += due if what == "hold" else ()
            batch.rescheduled += due if what == "reschedule" else ()

    def resend(self) -> None:
        ticket = self.dice.choice([*self.reference.tickets, *TICKETS])
        self.lane.both("resend", self.lead, self.dice.choice(NAMES), ticket, self.expected(ticket), "again")

    def recall(self) -> None:
        self.lane.both("recall", self.lead, self.dice.choice(NAMES), self.dice.randint(1, 3))

    def forget(self) -> None:
        name, life = self.life()
        registration = "another" if self.rarely() else self.reference.consumers.get(name, "none")
        self.lane.both("forget", self.lead, name, life, registration)

    def the_lead_changes(self) -> None:
        """Or somebody who does not lead tries to change it."""
        dice, lead = self.dice, self.dice.choice(self.leads)
        how = dice.choice(["lead", "expires", "renew", "resign", "begin_term"])
        if how == "expires":
            self.lane.lead_expires()
        elif how == "begin_term":
            self.lane.both("begin_term", lead.token, "m")
        elif how != "lead":
            self.lane.both(how, lead.token)
        self.lane.both("lead", "m")
        if self.reference.leader != self.leads[-1].token:
            self.leads.append(Leadership(self.lane.keys, self.reference.leader, MASTER))

    # -- producers and workers ---------------------------------------------------------------------------------------

    def push(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            payload = f'"{"x" * (self.dice.choice(SIZES) - 2)}"'
            self.lane.push(f"{len(self.reference.entries) + 1}-0", self.dice.choice(TICKETS), payload)

    def join(self) -> None:
        life = f"life-{self._lives + 1}"
        name = NAMES[(self._lives + 1) % len(NAMES)]
        registered = self.reference.consumers.get(name)
        unknown = registered is None or self.rarely()
        found = None if unknown else (registered, orjson.loads(registered or "")["incarnation"])
        self.lane.both("register", name, life, orjson.dumps({"incarnation": life}).decode(), found)
        self._lives += life in self.reference.leases

    def a_lease_ends(self) -> None:
        name, life = self.life()
        how = self.dice.choice(["expires", "goodbye", "died"])
        if how == "expires":
            self.lane.lease_expires(life)
        else:
            self.lane.both(how, name, life, *([[1, 2]] if how == "died" else []))

    def outcome(self) -> None:
        """A worker writes an entry by itself."""
        _, life = self.life()
        outcomes = orjson.dumps([["1-0", 5, Kind.FAILED.value]]).decode()
        self.lane.client.xadd(self.lane.keys.outcomes, {"i": life, "o": outcomes})
        self.reference.tell(life, o=outcomes)

    def succeed(self) -> None:
        """A worker hands effects over, under fences that are current, or were, or never will be."""
        dice, ref = self.dice, self.reference
        _, life = self.life()
        successes = []
        flying = [ticket for ticket in TICKETS if (record := ref.record(ticket)) is not None and record.in_flight]
        tickets = TICKETS if self.rarely() else flying
        for ticket in dice.sample(tickets, min(len(tickets), dice.randint(1, 2))):
            record = ref.record(ticket)
            fence = record.fence if record is not None else ref.applied.get(ticket, 1)
            fence = max(1, fence + dice.choice([-1, 0, 0, 0, 1, 1, 2]))
            key = f"user:{ticket}"
            effect = Effect("list", "", ("RPUSH", key, str(fence)))
            if key in ref.effects and self.rarely():
                # It is a list by now.
                effect = Effect("hash", "", ("HSET", key, "field", str(fence)))
            outcome = Outcome("1-0", fence, Kind.DONE).encode().decode()
            successes.append(Success(ticket, fence, outcome, (effect,) * dice.randint(0, 2)))
        for _ in range(dice.choice([1, 1, 2]) if successes else 0):  # when the reply was lost, twice
            self.lane.both("apply", life, successes)
