"""A leader that drives the real scripts, beside the reference that says what must result."""

from __future__ import annotations

from unittest.mock import patch

import orjson

from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.routing import records, transitions
from bridge.routing.batch import Batch, DeadLetter, Dispatch
from bridge.routing.leadership import begin_term, lead
from bridge.routing.return_codes import ReturnCode
from bridge.routing.states import State
from bridge.routing.transitions import Leadership, adopt, advance, read, recall, reroute, resend
from tests.scripts.driven_workers import DrivenWorkers
from tests.scripts.lane_reference import Consumer
from tests.scripts.world import LEASE_MS, MASTER, OPENING, Client, entries_of, id_key, text

MAX_ATTEMPTS = 3
AT_MS = 1000
DUE_MS = 5000
#: The ticket whose messages are broken: they are refused when they are read.
BROKEN = "broken"
#: Bytes after which a read brings no more: few, so that a few messages of `SIZES` are too many.
READ_BYTES = 40_000


class DrivenLane(DrivenWorkers):
    """A lane on a real server, with the leader of the present term."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        #: Leaders that were, and do not know it.
        self.deposed: list[Leadership] = []
        self._terms = 0
        self._pushed = 0
        self._last_outcome = "0-0"
        client.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)
        self.lead = self.elect()

    # -- leaders -----------------------------------------------------------------------------------------------------

    def elect(self) -> Leadership:
        """The next term begins; its leader has read no outcome."""
        self._terms += 1
        elected, token, _ = lead(self.client, self.keys, f"m{self._terms}", LEASE_MS)
        assert elected
        assert token == f"{self._terms} m{self._terms}"
        self._last_outcome = "0-0"
        self.lead = Leadership(self.keys, token, MASTER)
        return self.lead

    def begin_term(self) -> None:
        """The leader reads the lane again, in a new term."""
        self._terms += 1
        token = begin_term(self.client, self.keys, self.lead.token, f"m{self._terms}", LEASE_MS)
        assert token == f"{self._terms} m{self._terms}"
        self._last_outcome = "0-0"
        self.lead = Leadership(self.keys, token, MASTER)

    def owner_should_be(self, id_: str) -> str | None:
        """Under whose name an entry is pending, by its state."""
        state = self.reference.state[id_]
        if state in (State.WAITING, State.AWAITING_RETRY):
            return MASTER
        record = self.reference.record(self.reference.ticket_of[id_])
        return record.consumer if state is State.IN_FLIGHT and record is not None else None

    def finish(self) -> None:
        """No more faults: a new leader, one consumer, and every message is done."""
        self.client.delete(self.keys.leader)
        self.elect()
        for name, consumer in list(self.consumers.items()):
            if consumer.alive:
                self.ends(name, "expires")
        self.join("w1@a")
        self.executions.clear()
        self.read(10_000)
        tickets = sorted({self.reference.ticket_of[id_] for id_ in self.reference.order} - {BROKEN})
        for _ in range(100):
            self.step(settle=True, picks=[])
            for life in sorted({r.incarnation for t in self.reference.in_flight() if (r := self.reference.record(t))}):
                if life != self.consumers["w1@a"].incarnation:
                    assert self.reroute(life) is ReturnCode.OK
            self.step(settle=False, picks=[(ticket, 3, "w1@a") for ticket in tickets])
            if not self.reference.queues.get("w1@a"):
                return
            while self.reference.queues.get("w1@a"):
                self.pop("w1@a")
            for execution in self.executions:
                while not execution.over:
                    self.outcome(execution, Kind.DONE)
        raise AssertionError("it does not end")

    # -- producers and reading ---------------------------------------------------------------------------------------

    def push(self, ticket: str, size: int = 2) -> None:
        """A message with a payload of so many bytes."""
        ref = self.reference
        self._pushed += 1
        id_ = f"{self._pushed}-0"
        self.client.execute_command(
            "XADD", self.keys.stream, id_, "ticket_id", ticket, "payload", '"' + "x" * (size - 2) + '"'
        )
        ref.order.append(id_)
        ref.ticket_of[id_] = ticket
        ref.state[id_] = State.UNREAD

    def read(self, count: int) -> None:
        ref = self.reference
        unread = [id_ for id_ in ref.order if ref.state[id_] is State.UNREAD][:count]
        # What is large comes in several reads; each brings something.
        got: list[str] = []
        more = True
        while more and len(got) < count:
            with patch.object(transitions, "READ_BYTES", READ_BYTES):
                found = read(self.client, self.lead, count - len(got), first=4)
            size = sum(len(word) for entry in found.entries for word in entry[1])
            assert size <= READ_BYTES + found.largest
            assert found.entries or not found.more
            got += [text(entry[0]) for entry in found.entries]
            more = found.more
        assert got == unread
        for id_ in unread:
            ref.move(id_, "read", MASTER)
        broken = [id_ for id_ in unread if ref.ticket_of[id_] == BROKEN]
        if broken:
            batch = Batch(acknowledged=broken)
            for id_ in broken:
                ref.move(id_, "refuse")
                self._bury(batch, id_)
            advance(self.client, self.lead, OPENING, batch)

    def _bury(self, batch: Batch, id_: str) -> None:
        batch.dead.append(DeadLetter(id_, ["reason", "gave up"]))
        self.reference.dead.append(id_)

    # -- the leader's steps ------------------------------------------------------------------------------------------

    def step(self, *, settle: bool, picks: list[tuple[str, int, str]]) -> None:
        """One batch: settles what is in the outcome stream, then dispatches ``picks``: (ticket, messages, consumer)."""
        batch = Batch()
        touched: dict[str, None] = {}
        acknowledged = len(self.settled(batch, touched)) if settle else 0
        offsets = self._planned(batch, touched, picks)
        self.closed(batch, touched, set(offsets))
        answer = advance(self.client, self.lead, OPENING, batch)
        assert (answer.acknowledged, answer.mended) == (acknowledged, 0)
        self._dispatched(answer.base, offsets)

    def settled(self, batch: Batch, touched: dict[str, None]) -> list[str]:
        """Takes all outcomes that there are into the batch and the reference; the ids that are acknowledged."""
        ref = self.reference
        found = [e for e in entries_of(self.client, self.keys.outcomes) if id_key(e[0]) > id_key(self._last_outcome)]
        assert [id_ for id_, _ in found] == ref.outcomes
        over: list[str] = []
        for id_, fields in found:
            for outcome in decode(fields["o"].encode()) if "o" in fields else ():
                over += self._settle(outcome, batch, touched)
            self._last_outcome = id_
        if found:
            ms, _, sequence = self._last_outcome.partition("-")
            batch.keep_outcomes_from = f"{ms}-{int(sequence) + 1}"
            ref.outcomes.clear()
        return over

    def _settle(self, outcome: Outcome, batch: Batch, touched: dict[str, None]) -> list[str]:
        ref = self.reference
        id_ = outcome.message_id
        ticket = ref.ticket_of[id_]
        record = ref.record(ticket)
        if record is None or record.fence != outcome.fence or record.ids[0] != id_:
            return []
        self.touch(batch, touched, ticket)
        rest = list(record.ids[1:])
        tail = (record.consumer, record.incarnation, record.attempt, rest, AT_MS)
        if outcome.kind is Kind.DONE:
            batch.acknowledged.append(id_)
            ref.move(id_, "done")
            # Attempts are counted for the message at the head of the run.
            tail = (record.consumer, record.incarnation, 1, rest, AT_MS)
            ref.records[ticket] = records.record(record.fence + 1, records.tail(*tail)) if rest else ""
            return [id_]
        batch.given_back += rest
        for behind in rest:
            ref.move(behind, "give back others", MASTER)
        begun = record.attempt > 1
        if outcome.kind is Kind.RETURNED:
            batch.given_back.append(id_)
            ref.move(id_, "give back again" if begun else "give back", MASTER)
            ref.records[ticket] = self._awaiting(id_, record.attempt) if begun else ""
        elif outcome.kind is Kind.DEAD or record.attempt >= MAX_ATTEMPTS:
            batch.acknowledged.append(id_)
            ref.move(id_, "give up")
            self._bury(batch, id_)
            ref.records[ticket] = ""
            return [id_]
        else:
            batch.given_back.append(id_)
            ref.move(id_, "fail", MASTER)
            ref.records[ticket] = self._awaiting(id_, record.attempt + 1)
        return []

    @staticmethod
    def _awaiting(id_: str, attempt: int) -> str:
        return records.record(records.AWAITING, records.tail("", "", attempt, [id_], AT_MS, "no"))

    def touch(self, batch: Batch, touched: dict[str, None], ticket: str) -> None:
        """The batch is for a ticket that is what it is now."""
        if ticket not in touched:
            touched[ticket] = None
            batch.expected[ticket] = self.reference.records.get(ticket, "")

    def _planned(
        self, batch: Batch, touched: dict[str, None], picks: list[tuple[str, int, str]]
    ) -> dict[str, tuple[int, list[str], Consumer, str]]:
        ref = self.reference
        offsets: dict[str, tuple[int, list[str], Consumer, str]] = {}
        for ticket, length, name in picks:
            record = ref.record(ticket)
            ids = ref.undone(ticket)[:length]
            if not ids or ticket in offsets or (record is not None and record.in_flight):
                continue
            self.touch(batch, touched, ticket)
            if batch.expected[ticket].startswith("[0"):
                batch.due.append(ticket)
            consumer = self.consumers[name]
            attempt = record.attempt if record is not None else 1
            tail = records.tail(name, consumer.incarnation, attempt, ids, AT_MS)
            to = batch.dispatches.setdefault(name, Dispatch(name, self.keys.queue(name)))
            to.ids += ids
            to.runs.append((ticket, batch.fences, tail))
            run = orjson.dumps([ticket, batch.fences, ids, consumer.incarnation]).decode()
            to.texts.append(f',"run":{run}}}}}'.encode())
            offsets[ticket] = (batch.fences, ids, consumer, tail)
            for id_ in ids:
                ref.move(id_, "retry" if ref.state[id_] is State.AWAITING_RETRY else "dispatch", name)
            batch.fences += len(ids)
        return offsets

    def closed(self, batch: Batch, touched: dict[str, None], dispatched: set[str]) -> None:
        """Writes into the batch what becomes of the records of the tickets that it touches."""
        ref = self.reference
        for ticket in touched:
            now = ref.records.get(ticket, "")
            if not now:
                ref.records.pop(ticket, None)
            if ticket in dispatched:
                continue
            if now:
                batch.records += (ticket, now)
                if now.startswith("[0"):
                    batch.retries += (DUE_MS, ticket)
            elif batch.expected[ticket]:
                batch.released.append(ticket)
                ref.applied.pop(ticket, None)

    def _dispatched(self, base: int, offsets: dict[str, tuple[int, list[str], Consumer, str]]) -> None:
        ref = self.reference
        for ticket, (offset, ids, consumer, tail) in offsets.items():
            fence = base + offset
            assert fence > ref.newest.get(ticket, 0), f"I4: fence {fence} of {ticket} is not newer than all before"
            ref.newest[ticket] = fence + len(ids) - 1
            ref.records[ticket] = records.record(fence, tail)
            run = orjson.dumps([ticket, offset, ids, consumer.incarnation]).decode()
            ref.queues.setdefault(consumer.name, []).append(f'{OPENING}{base},"run":{run}}}}}')

    def reroute(self, incarnation: str, *, last: str | None = None, wrong: bool = False) -> ReturnCode:
        """Takes the tickets of an incarnation back, as far as the server lets it."""
        ref = self.reference
        moves: list[tuple[str, str, str, int]] = []
        ids: list[str] = []
        for ticket in ref.in_flight():
            record = ref.record(ticket)
            assert record is not None
            if record.incarnation == incarnation:
                expected = "[1,0]" if wrong and not moves else ref.records[ticket]
                moves.append((ticket, expected, self._awaiting(record.ids[0], record.attempt), DUE_MS))
                ids += record.ids
        seen = self._last_outcome if last is None else last
        code = reroute(self.client, self.lead, incarnation, seen, moves, ids)
        if code is ReturnCode.OK:
            for ticket, _, new, _ in moves:
                record = ref.record(ticket)
                assert record is not None
                for i, id_ in enumerate(record.ids):
                    ref.move(id_, "give back others" if i else "re-route", MASTER)
                ref.records[ticket] = new
        return code

    def resend(self, ticket: str) -> None:
        """The run of the ticket goes out again, as it is."""
        ref = self.reference
        record = ref.record(ticket)
        assert record is not None
        run = orjson.dumps([ticket, 0, list(record.ids), record.incarnation]).decode()
        message = f'{OPENING}{record.fence},"run":{run}}}}}'
        code = resend(self.client, self.lead, record.consumer, ticket, ref.records[ticket], message)
        assert code is ReturnCode.OK
        ref.queues.setdefault(record.consumer, []).append(message)

    def recall(self, name: str, count: int) -> None:
        """Takes Celery messages back from a queue; what they carried is missed later, and sent again."""
        queue = self.reference.queues.get(name, [])
        assert [text(t) for t in recall(self.client, self.lead, name, count)] == queue[:count]
        del queue[:count]

    def claimed_by_a_stranger(self, id_: str) -> None:
        """Somebody claims an entry by hand, or takes it from the pending list; the leader makes it what it was."""
        owner = self.reference.owner[id_]
        self.client.xclaim(self.keys.stream, self.keys.group, "a stranger", 0, [id_], justid=True)
        assert adopt(self.client, self.lead, owner, [id_]) == 1
        self.client.xgroup_delconsumer(self.keys.stream, self.keys.group, "a stranger")
