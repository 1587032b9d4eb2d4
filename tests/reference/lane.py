"""The scripts of a lane. Each method is one, with the arguments of its function in `bridge.routing` but the client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.delaying import Moved
from bridge.routing.effects import Success
from bridge.routing.errors import DispatchRefused, LaneConflict, NotLeading
from bridge.routing.ids import id_key, id_of_member
from bridge.routing.keys import LaneKeys
from bridge.routing.return_codes import ReturnCode
from bridge.routing.scripts import Argument
from bridge.routing.transitions import Advanced, Leadership
from tests.protocol.guards import Guard
from tests.reference.contents import Contents, text

#: Most entries of an older version that a dispatch looks at: 32 pages of 16, and what a page cannot tell.
MOST_UNREAD = 511
#: What it can do without.
RULES = frozenset(
    {
        *(Guard.TERM_ADVANCE, Guard.TERM_READ, Guard.TERM_REROUTE, Guard.EXPECTED, Guard.LEASE_OVER, Guard.UNREAD),
        *(Guard.FENCES_GROW, Guard.EFFECT_FENCE, Guard.APPLIED_ONCE),
    }
)


@dataclass
class OtherVersion:
    """What a dispatch looks at in the lane of another version of the stream."""

    leader: str = ""
    fence: int = 0
    #: Id of an entry -> its ticket.
    entries: dict[str, str] = field(default_factory=dict)
    tickets: dict[str, str] = field(default_factory=dict)


class ReferenceLane(Contents):
    """What each script must change on the server, and refuse. ``dropped``: those of `RULES` that it does without."""

    def __init__(self, keys: LaneKeys, dropped: AbstractSet[Guard] = frozenset()) -> None:
        super().__init__(keys)
        self.dropped = dropped
        #: Stream -> the lane of another version.
        self.versions: dict[str, OtherVersion] = {}

    # -- who leads ---------------------------------------------------------------------------------------------------

    def lead(self, holder: str) -> tuple[bool, str]:
        """Whether the holder is elected, and the token of the present leader."""
        if self.leader:
            return False, self.leader
        return True, self._begin(holder)

    def renew(self, token: str) -> bool:
        return self.leader == token

    def resign(self, token: str) -> bool:
        leads = self.leader == token
        self.leader = "" if leads else self.leader
        return leads

    def begin_term(self, token: str, holder: str) -> str:
        if self.leader != token:
            raise NotLeading("another master leads")
        return self._begin(holder)

    def _begin(self, holder: str) -> str:
        self.term += 1
        self.leader = f"{self.term} {holder}"
        return self.leader

    def _leads(self, lead: Leadership, guard: Guard = Guard.TERM_ADVANCE) -> None:
        if self.leader != lead.token and guard not in self.dropped:
            raise NotLeading("another master leads")

    def _expects(self, expected: Iterable[tuple[str, str | bytes]]) -> str | None:
        """A ticket whose record is not what the caller thinks; None: all are."""
        if Guard.EXPECTED in self.dropped:
            return None
        return next((ticket for ticket, record in expected if self.tickets.get(ticket, "") != text(record)), None)

    # -- the leader's scripts ----------------------------------------------------------------------------------------

    def read(self, lead: Leadership, count: int, after: str = ">") -> list[str]:
        """The ids of what a read brings when the entries are small."""
        self._leads(lead, Guard.TERM_READ)
        if after != ">":
            first = id_key(after)
            mine = (id_ for id_ in self.entries if self.pending.get(id_) == lead.master and id_key(id_) > first)
            return list(islice(mine, count))
        ids = list(self.entries)[self.delivered : self.delivered + count]
        self.delivered += len(ids)
        self.pending |= dict.fromkeys(ids, lead.master)
        return ids

    def advance(self, lead: Leadership, opening: str, batch: Batch) -> Advanced:
        self._leads(lead)
        if (ticket := self._expects(batch.expected.items())) is not None:
            raise LaneConflict(f"conflict: {ticket}")
        if any(order not in self.outcomes for order in batch.orders):
            raise LaneConflict("an order was withdrawn")
        self._goes_first(batch)
        acknowledged = [id_ for id_ in batch.acknowledged if self.pending.pop(id_, None)]
        self.acknowledged |= dict.fromkeys(acknowledged)
        mended = self.claim(lead.master, [id_ for id_ in batch.given_back if id_ not in batch.acknowledged])
        mended += sum(self.claim(name, ids) for name, ids in batch.shelved.items())
        self.tickets.update(_pairs(batch.records))
        for ticket in batch.released:
            self.tickets.pop(ticket, None)
            self.applied.pop(ticket, None)
        self.retries.update((ticket, int(due)) for due, ticket in _pairs(batch.retries))
        for ticket in batch.due:
            self.retries.pop(ticket, None)
        self.delayed = {**_due_times(batch.delayed), **self.delayed}
        self.late |= _due_times(batch.late)
        self.holding = {**_due_times(batch.holding), **self.holding}
        for known in (self.delayed, self.holding):
            known.update({id_: due for id_, due in _due_times(batch.rescheduled).items() if id_ in known})
        for known in (self.delayed, self.late, self.holding):
            for member in batch.over:
                known.pop(id_of_member(text(member)), None)
        for letter in batch.dead:
            self.add(self.letters, self.keys.dead, dict(_pairs(letter.arguments())))
        for letter_id in batch.replayed:
            self.letters.pop(letter_id, None)
        for name, amount in batch.counts.items():
            self.counts[name] = self.counts.get(name, 0) + amount
        for name, order in batch.drains.items():
            self.drains.pop(name, None)
            self.drains.update({name: order} if order else {})
        self.note(batch.history)
        if batch.keep_outcomes_from:
            keep, *others = batch.keep_outcomes_from.split()
            first = id_key(keep)
            entries = self.outcomes.items()
            self.outcomes = {id_: fields for id_, fields in entries if id_ in others or id_key(id_) >= first}
        base, more = self._dispatch(opening, batch) if batch.fences else (0, 0)
        return Advanced(base, len(acknowledged), mended + more)

    def _goes_first(self, batch: Batch) -> None:
        """Refuses when messages of other versions go before those that the batch dispatches."""
        if not batch.contested:
            return
        waiting: list[str] = []
        for older in batch.older:
            there = self.versions[older.keys.stream]
            if there.leader != older.token:
                raise NotLeading("another master leads an older version")
            unread = [ticket for id_, ticket in there.entries.items() if id_key(id_) > id_key(older.read_to)]
            if len(unread) > MOST_UNREAD:
                raise DispatchRefused("many are unread", behind=older.keys.stream)
            waiting += [ticket for ticket in unread if ticket in batch.contested]
        for newer in batch.newer:
            there = self.versions[newer.stream]
            for ticket in batch.contested:
                if ticket in there.tickets and records.parse(there.tickets[ticket]).in_flight:
                    waiting.append(ticket)
        if waiting:
            raise DispatchRefused("others go first", waiting)

    def _dispatch(self, opening: str, batch: Batch) -> tuple[int, int]:
        others = [self.versions[keys.stream].fence for keys in (*(one.keys for one in batch.older), *batch.newer)]
        base = max(self.now_us(), max([self.fence, *others]) + 1) if Guard.FENCES_GROW not in self.dropped else 1
        self.fence = base + batch.fences - 1
        mended = 0
        for to in batch.dispatches.values():
            mended += self.claim(to.consumer, to.ids)
            self.tickets |= {ticket: records.record(base + offset, tail) for ticket, offset, tail in to.runs}
            self.queues.setdefault(to.consumer, []).extend(f"{opening}{base}{text(message)}" for message in to.texts)
        return base, mended

    def reroute(
        self,
        lead: Leadership,
        incarnation: str,
        last_outcome: str,
        tickets: Iterable[tuple[str, str, str, int | None]],
        ids: Sequence[str],
        history: Sequence[list[Any]] = (),
        _history_cap: int = 0,
    ) -> ReturnCode:
        self._leads(lead, Guard.TERM_REROUTE)
        moves = list(tickets)
        if incarnation in self.leases and Guard.LEASE_OVER not in self.dropped:
            return ReturnCode.ALIVE
        unread = (fields["i"] for id_, fields in self.outcomes.items() if id_key(id_) > id_key(last_outcome))
        if incarnation in unread and Guard.UNREAD not in self.dropped:
            return ReturnCode.UNREAD
        if self._expects((ticket, expected) for ticket, expected, _, _ in moves) is not None:
            return ReturnCode.CONFLICT
        for ticket, _, record, due_ms in moves:
            self.tickets[ticket] = record
            if due_ms is not None:
                self.retries[ticket] = due_ms
        self.claim(lead.master, ids)
        self.note(history)
        self.counts["rerouted"] = self.counts.get("rerouted", 0) + len(moves)
        return ReturnCode.OK

    def move_due(self, lead: Leadership, count: int, read_to: str, before_ms: int | None = None) -> Moved:
        """The entries are those of small messages."""
        self._leads(lead)
        before = self.now_us() // 1000 if before_ms is None else min(self.now_us() // 1000, before_ms)
        if any(id_key(id_) > id_key(read_to) for id_ in self.entries):
            before = min(before, id_key(read_to)[0])
        order = sorted(self.delayed, key=lambda id_: (self.delayed[id_], id_key(id_)))
        due = [id_ for id_ in order if self.delayed[id_] < before][:count]
        moved = [[id_.encode(), self.entries.get(id_, []), b"%d" % self.delayed[id_]] for id_ in due]
        for id_ in due:
            self.late[id_] = self.delayed.pop(id_)
        self.claim(lead.master, due)
        rest = order[len(due) :]
        return Moved(moved, self.delayed[rest[0]] if rest else None, before)

    def adopt(self, lead: Leadership, consumer: str, ids: Sequence[str]) -> int:
        self._leads(lead)
        self.claim(consumer, ids)
        return sum(id_ in self.pending for id_ in ids)

    def resend(self, lead: Leadership, consumer: str, ticket: str, expected: str, message: Argument) -> ReturnCode:
        self._leads(lead)
        if self.tickets.get(ticket) != expected and Guard.EXPECTED not in self.dropped:
            return ReturnCode.CONFLICT
        self.queues.setdefault(consumer, []).append(text(message))
        return ReturnCode.OK

    def recall(self, lead: Leadership, consumer: str, count: int) -> list[str]:
        self._leads(lead)
        queue = self.queues.get(consumer, [])
        taken, self.queues[consumer] = queue[:count], queue[count:]
        return taken

    def forget(self, lead: Leadership, consumer: str, incarnation: str, registration: Argument) -> ReturnCode:
        self._leads(lead)
        if incarnation in self.leases:
            return ReturnCode.ALIVE
        if self.consumers.get(consumer, text(registration)) != text(registration):
            return ReturnCode.CHANGED
        self.consumers.pop(consumer, None)
        self.queues.pop(consumer, None)
        return ReturnCode.OK

    # -- the workers' scripts ----------------------------------------------------------------------------------------

    def register(
        self, consumer: str, incarnation: str, registration: Argument, found: tuple[Argument, str] | None
    ) -> ReturnCode:
        if self.consumers.get(consumer, "") != (text(found[0]) if found else ""):
            return ReturnCode.CHANGED
        if found and found[1] in self.leases:
            return ReturnCode.HELD
        self.queues.pop(consumer, None)
        self.leases[incarnation] = consumer
        self.consumers[consumer] = text(registration)
        self.tell(incarnation, joined=consumer)
        return ReturnCode.OK

    def goodbye(self, consumer: str, incarnation: str) -> None:
        if self.leases.pop(incarnation, None) is not None:
            self.tell(incarnation, gone=consumer)

    def died(self, consumer: str, incarnation: str, ran: Sequence[int]) -> ReturnCode:
        if incarnation not in self.leases:
            return ReturnCode.LATE
        del self.leases[incarnation]
        self.tell(incarnation, died=consumer, ran=orjson.dumps(list(ran)).decode())
        return ReturnCode.OK

    def apply(self, incarnation: str, successes: Sequence[Success]) -> list[ReturnCode]:
        """Knows one command: RPUSH to a list of the user."""
        codes, accepted = [], []
        for success in successes:
            code = self._apply(success)
            if code is ReturnCode.OK:
                self.applied[success.ticket] = success.fence
                accepted.append(success.outcome)
                for effect in success.effects:
                    self.effects.setdefault(text(effect.arguments[1]), []).append(text(effect.arguments[2]))
            codes.append(code)
        if accepted:
            self.tell(incarnation, o=f"[{','.join(accepted)}]")
        return codes

    def _apply(self, success: Success) -> ReturnCode:
        done = self.applied.get(success.ticket, 0)
        if not self.is_current(success.ticket, success.fence) and Guard.EFFECT_FENCE not in self.dropped:
            return ReturnCode.STALE
        if success.fence <= done and Guard.APPLIED_ONCE not in self.dropped:
            return ReturnCode.AGAIN if success.fence == done else ReturnCode.STALE
        wrong = any(effect.kind != "list" and effect.arguments[1] in self.effects for effect in success.effects)
        return ReturnCode.ERR if wrong else ReturnCode.OK

    def tell(self, incarnation: str, **fields: str) -> None:
        """A worker writes an entry to the outcome stream."""
        self.add(self.outcomes, self.keys.outcomes, {"i": incarnation, **fields})


def _due_times(arguments: Sequence[Argument]) -> dict[str, int]:
    return {id_of_member(member): int(due) for due, member in _pairs(arguments)}


def _pairs(arguments: Sequence[Argument]) -> list[tuple[str, str]]:
    return list(zip(map(text, arguments[::2]), map(text, arguments[1::2]), strict=True))
