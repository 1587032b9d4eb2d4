"""A lane without a server: the real picture, planner, rebuild and refill, over the reference of the scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from redis.exceptions import ResponseError

from bridge.app.traits import TaskTraits
from bridge.leader.consumers.lease_watch import LeaseWatch
from bridge.leader.consumers.leases import Leases
from bridge.leader.consumers.queues import Queues
from bridge.leader.consumers.reroute import Reroute
from bridge.leader.duties.operator_orders import OperatorOrders
from bridge.leader.duties.refill import Refill
from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.oldest_undone import oldest_of, oldest_undone
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.leader.picture.planner import Planner
from bridge.leader.picture.settling import Settling
from bridge.leader.step.term import Term
from bridge.leader.stream.backoffs_over import BackoffsOver
from bridge.leader.stream.first_messages import FirstMessages
from bridge.leader.stream.pending import PendingList
from bridge.leader.takeover.rebuild import Rebuild
from bridge.protocol.envelope import Envelopes, Run
from bridge.protocol.outcomes import Kind, Outcome
from bridge.protocol.registration import Registration, read_registration
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.ids import id_key as key_of_id
from bridge.routing.keys import LaneKeys
from bridge.routing.messages import EntryParser, LeftOut, Message, Refusal
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Leadership, Read
from bridge.settings.lane import LaneSettings
from tests.reference.contents import MASTER
from tests.reference.lane import ReferenceLane

#: Task -> measured service time in ms.
TASKS = {"short": 0.1, "middle": 8.0, "long": 50.0, "alone": 0.1, "limited": 0.1}
#: Cached: each check looks at all ids.
id_key = cache(key_of_id)
TRAITS = {
    "alone": TaskTraits(False, (None, None)),
    "limited": TaskTraits(True, (30.0, 20.0)),
}


def registration(incarnation: str, queue: str, slots: int) -> Registration:
    """The registration of a consumer."""
    fields = {"incarnation": incarnation, "queue": queue, "slots": slots, "started": 1}
    return read_registration(json.dumps(fields).encode())


class FakeEnvelopes:
    """Records what a Celery message would carry."""

    def plain(
        self,
        incarnation: str,
        _queue: str,
        message: Message,
        offset: int,
        attempt: int,
        doubt: bool,
        _lost: Any = None,
        *,
        alone: bool = False,
    ) -> bytes:
        del alone
        listed = [[message.ticket, offset, attempt, doubt, [message.id]]]
        return json.dumps(["plain", incarnation, listed, None]).encode()

    def bundle(self, incarnation: str, _queue: str, runs: Sequence[Run], limits: Any) -> bytes:
        listed = [[*run[:4], [message.id for message in run.messages]] for run in runs]
        return json.dumps(["bundle", incarnation, listed, limits]).encode()


class Parcel:
    """One Celery message that a worker holds. ``runs``: ticket -> (first fence, ids not settled yet)."""

    def __init__(self, kind: str, incarnation: str, runs: dict[str, tuple[int, list[str]]], limits: Any) -> None:
        self.kind = kind
        self.incarnation = incarnation
        self.runs = runs
        self.limits = limits
        self.size = sum(len(ids) for _, ids in runs.values())


class Store(ReferenceLane):
    """The server: what the scripts do to it is the reference's, its commands are here. A letter has the id of its
    message.
    """

    def __init__(self, keys: LaneKeys) -> None:
        super().__init__(keys)
        self.stamp = lambda key, fields: fields["message_id"] if key == keys.dead else "1-0"
        #: Message id -> ticket, also of entries that were deleted by hand.
        self.owners: dict[str, str] = {}
        #: Ticket -> the ids of its messages, in stream order.
        self.ids_of: dict[str, list[str]] = {}
        #: What workers have popped.
        self.parcels: list[Parcel] = []

    @property
    def done(self) -> list[str]:
        """Message ids, in the order in which they came to their end."""
        return [id_ for id_ in self.acknowledged if id_ not in self.letters]

    @property
    def dead(self) -> list[str]:
        return list(self.letters)

    def push(self, ticket: str, task: str, payload: bytes) -> str:
        id_ = f"{len(self.entries) // 3 + 1}-{len(self.entries) % 3}"
        self.owners[id_] = ticket
        self.ids_of.setdefault(ticket, []).append(id_)
        self.entries[id_] = [b"ticket_id", ticket.encode(), b"task", task.encode(), b"payload", payload]
        return id_

    def unread(self) -> list[str]:
        return list(self.entries)[self.delivered :]

    def take(self, lead: Leadership, batch: Batch) -> int:
        """The batch is sent, and the workers pop what is in it; the fence base."""
        advanced = self.advance(lead, "", batch)
        assert advanced.mended == len(batch.replayed), "something was dispatched or given back that was over"
        for to in batch.dispatches.values():
            for ticket, _, tail in to.runs:
                # The oldest undone messages, in order (I2). A message that was begun before comes first
                run = records.parse(records.record(1, tail))
                first = list(run.ids[:1]) if begun(run) else []
                undone = first + [id_ for id_ in self.waiting(ticket) if id_ not in first]
                assert list(run.ids) == undone[: len(run.ids)], f"{ticket}: not the oldest undone ones"
            for popped in to.texts:
                kind, incarnation, runs, limits = json.loads(popped)
                held = {ticket: (advanced.base + offset, list(ids)) for ticket, offset, _, _, ids in runs}
                self.parcels.append(Parcel(kind, incarnation, held, limits))
        self.queues.clear()
        return advanced.base

    def readable(self, id_: str) -> bool:
        """Whether the entry is a message."""
        return self.entries[id_][5][:1] in b'1"'

    def waiting(self, ticket: str) -> list[str]:
        """The ticket's messages pending under the master's name, in stream order."""
        mine = [id_ for id_ in self.ids_of.get(ticket, ()) if id_ in self.pending]
        return [id_ for id_ in mine if not self.entries[id_] or self.readable(id_)]

    def undone(self, ticket: str) -> list[str]:
        """The ticket's undone messages that were read, in the order in which they must be handled: first those in
        flight or begun before, then in stream order.
        """
        waits = self.waiting(ticket)
        text = self.tickets.get(ticket)
        if text is None:
            return waits
        record = records.parse(text)
        first = list(record.ids) if record.in_flight or begun(record) else []
        return first + [id_ for id_ in waits if id_ not in first]

    def call(self, *arguments: Any) -> Any:
        """The commands of rebuild and refill, with raw replies."""
        if arguments[0] == "XGROUP":
            raise ResponseError("BUSYGROUP Consumer Group name already exists")
        if arguments[0] == "EXISTS":
            return 0
        if arguments[0] == "GET":
            return None
        if arguments[:2] == ("XINFO", "GROUPS"):
            last = list(self.entries)[self.delivered - 1] if self.delivered else "0-0"
            group = {b"name": b"concurrency_stream_group", b"pending": len(self.pending)}
            return [[word for pair in {**group, b"last-delivered-id": last.encode()}.items() for word in pair]]
        if arguments[:2] == ("XINFO", "CONSUMERS"):
            return [[b"name", MASTER.encode()]]
        if arguments[0] == "ZRANGE":
            return [word for pair in self.retries.items() for word in (pair[0].encode(), str(pair[1]).encode())]
        if arguments[0] == "HSCAN":
            return [b"0", [word.encode() for pair in self.tickets.items() for word in pair]]
        if arguments[0] == "XRANGE":
            return [[arguments[2].encode(), self.entries[arguments[2]]]] if arguments[2] in self.entries else []
        if arguments[0] == "XPENDING":
            owners = list(self.pending.values())
            if len(arguments) == 3:
                ends = sorted(self.pending, key=id_key) or [""]
                names = [[name.encode(), b"%d" % owners.count(name)] for name in dict.fromkeys(owners)]
                return [len(owners), ends[0].encode(), ends[-1].encode(), names or None]
            after = id_key(arguments[3][1:]) if arguments[3].startswith("(") else (0, -1)
            if arguments[3] == arguments[4]:
                after = (id_key(arguments[3])[0], id_key(arguments[3])[1] - 1)
            upto = (1 << 64, 0) if arguments[4] == "+" else id_key(arguments[4])
            given = arguments[6] if len(arguments) > 6 else ""
            name = given.decode() if isinstance(given, bytes) else given
            ids = sorted((id_ for id_, owner in self.pending.items() if name in ("", owner)), key=id_key)
            rows = [[id_.encode(), self.pending[id_].encode(), 0, 1] for id_ in ids if after < id_key(id_) <= upto]
            return rows[: arguments[5]]
        raise AssertionError(f"the store does not know {arguments}")

    def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.call(*arguments) for arguments in commands]


def begun(record: records.Record) -> bool:
    """Whether the first message of the record had a delivery that counts."""
    return record.attempt > 1 or record.losses > 0 or record.lost is not None


class LaneWorld:
    """Plays the leader: the same steps, without a socket."""

    def __init__(self, *, page: int = 1000, sliced: bool = False, max_payload: int = 1000, **settings: Any) -> None:
        window = settings.pop("window", 100)
        given = LaneSettings(**{"max_attempts": 3, **settings})
        # Smaller than the settings allow, so that a few messages fill it.
        self.settings = given.model_copy(update={"window": window})
        self.store = Store(self.settings.keys)
        self.now = 1_000_000
        self.last_outcome = "0-0"
        #: There are no notices here, and no listeners.
        self.on_notice: dict[Any, Any] = {}
        self.after_write: list[Any] = []
        self.registered: dict[str, tuple[str, int]] = {}
        self.parser = EntryParser(default_task="short", max_payload=max_payload, known_tasks=list(TASKS))
        #: Entries that the server sent to the master and the master has not read yet.
        self.reply: list[str] = []
        self.old_outcomes: list[Outcome] = []
        #: Message id -> failures that were settled.
        self.failures: dict[str, int] = {}
        self._lives = 0
        #: Incarnation -> the tasks that it can run. Missing: all tasks.
        self.tasks: dict[str, frozenset[str]] = {}
        #: Whether a step reads only one page, so that other steps may come between.
        self.sliced = sliced
        #: Entries in one page of the pending list.
        self.page = page
        self.lead()

    def lead(self) -> None:
        """A new leader, which knows only what is in the store."""
        self.lane = Lane(self.settings, now_ms=lambda: self.now)
        self.breakers = Breakers(self.lane)
        #: Clocks that always agree. Other tests cover clocks that do not.
        self.clock = SimpleNamespace(now=lambda: self.now / 1000, steady=True, tolerance_s=0.0, ends={})
        self.settling = Settling(
            self.lane,
            breakers=self.breakers,
            max_attempts=lambda _task: self.settings.max_attempts,
            delay_ms=lambda attempt: attempt * 100,
            parks=lambda _task: self.settings.on_dead == "park",
        )
        traits = {task: TRAITS.get(task, TaskTraits(True, (None, None))) for task in TASKS}
        self.planner = Planner(self.lane, cast("Envelopes", FakeEnvelopes()), traits.__getitem__)
        #: There are no manual changes here.
        self.manual_changes = cast("Any", SimpleNamespace(mend_taken=lambda: False))
        self.term = Term(
            settings=self.settings,
            leadership=Leadership(self.settings.keys, self._elected(), MASTER),
            redis=None,
            wire=cast("Any", self.store),
            parser=self.parser,
            clock=cast("Any", self.clock),
            own_tasks=frozenset(TASKS),
            facts={},
        )
        term, lane, steps, settling = self.term, self.lane, cast("Any", self), self.settling
        self.pending = PendingList(term, lane)
        self.first_messages = FirstMessages(term, lane, self.pending, settling)
        self.queues = Queues(term, lane, steps, settling)
        self.operator_orders = OperatorOrders(term, lane, steps, self.pending, self.queues, self.manual_changes)
        # A letter has the id of its message here.
        self.operator_orders._subject = str  # type: ignore[method-assign, assignment]
        self.operator_orders._dead_message = self._dead_message  # type: ignore[method-assign]
        self.leases = Leases(term.clock, self.settings.lease)
        self.consumers = SimpleNamespace(find=self._find_consumers)
        self.reroute = Reroute(term, lane, steps, settling, self.leases)
        #: There are no reports of workers here.
        lost_runs = cast("Any", SimpleNamespace(find=lambda _consumers: None))
        parts = (self.leases, cast("Any", self.consumers), self.reroute, self.queues, lost_runs)
        self.lease_watch = LeaseWatch(term, lane, steps, *parts)
        self.refill = Refill(term, lane, steps, steps, self.pending, self.first_messages, self.manual_changes)
        self.backoffs_over = BackoffsOver(term, lane, settling)
        self.rebuilding: Rebuild | None = None
        self.reply = []

    def _elected(self) -> str:
        self.store.leader = ""
        return self.store.lead(MASTER)[1]

    @property
    def behind(self) -> bool:
        """Whether the leader has not read all messages yet that earlier leaders had read."""
        return self.lane.behind

    def rebuild(self) -> None:
        """A new leader reads the lane."""
        self.lead()
        steps, consumers = cast("Any", self), cast("Any", self.consumers)
        parts = (steps, steps, self.pending, self.first_messages, self.manual_changes, consumers)
        with self.adopting():
            self.rebuilding = Rebuild(self.term, self.lane, *parts)
            self.rebuilding.run()
        self.step()
        self._retire([c for c in self.lane.consumers.values() if not c.alive])

    def _find_consumers(self) -> dict[str, int]:
        for incarnation, (name, slots) in self.registered.items():
            queue = f"queue:{name}"
            facts = (queue, slots, registration(incarnation, queue, slots), self.tasks.get(incarnation))
            consumer = Consumer(name, incarnation, *facts)
            self.lane.consumers[incarnation] = consumer
            consumer.draining = name in self.store.drains
        self.lane.stranded.fit()
        return {}

    # -- the leader's steps ------------------------------------------------------------------------------------------

    def ingest(self, entry: Any, batch: Batch) -> None:
        found = self.parser.parse_entry(entry)
        if isinstance(found, Refusal):
            self.lane.refuse(found, batch)
        elif isinstance(found, LeftOut):
            self.lane.leave_out(found.id, batch)
        else:
            self.lane.ingest(found, batch)

    def advance(self, batch: Batch) -> None:
        dispatched = self.planner.plan(batch, self.now)
        for to in batch.dispatches.values():
            able = next(c for c in self.lane.consumers.values() if c.name == to.consumer)
            assert all(able.runs(self.task_of(id_)) for id_ in to.ids), f"{able} cannot run what it is sent"
        self.lane.close(batch, set(dispatched))
        if not batch:
            self.lane.written({}, 0)
            return
        self.lane.written(dispatched, self.store.take(self.term.leadership, batch))

    def step(self, outcomes: Iterable[Outcome] = ()) -> None:
        """One turn: settles outcomes, wakes tickets that are due, and sends the batch."""
        batch = Batch()
        for outcome in outcomes:
            # Every read of the outcome stream trims what it read.
            batch.keep_outcomes_from = "1-0"
            settled = self.settling.settle(outcome, batch)
            if settled is not None and outcome.kind is Kind.FAILED:
                self.failures[outcome.message_id] = self.failures.get(outcome.message_id, 0) + 1
            self.old_outcomes.append(outcome)
        self.lane.wake(self.now)
        self.backoffs_over.run(batch)
        self.advance(batch)
        self.refill_now()

    def read_on(self, _read_to: str = "", *, after: str, names: bool = False) -> Read:
        """The master's own pending entries."""
        del names
        ids = self.store.read(self.term.leadership, self.page + 1, after)
        some = ids[: self.page]
        return Read([[id_.encode(), self.store.entries[id_]] for id_ in some], 0, len(ids) > len(some))

    @property
    def unseen(self) -> set[str]:
        """The ids that the leader has not read yet."""
        if not self.behind:
            return set(self.reply)
        mine = (id_ for id_, owner in self.store.pending.items() if owner == MASTER)
        beyond = {id_ for id_ in mine if id_key(id_) > self.lane.read_to}
        here = {message.id for ticket in self.lane.tickets.values() for message in ticket.waiting}
        return beyond - here - {ticket.front_id for ticket in self.lane.tickets.values()}

    def settle_all(self) -> None:
        """Does nothing: outcomes are settled at once here."""

    def push(self, ticket: str, task: str = "short", payload: bytes = b"1", count: int = 1) -> list[str]:
        return [self.store.push(ticket, task, payload) for _ in range(count)]

    def hand_out(self, count: int = 1000) -> None:
        """The server answers a blocking read. The master has not read the answer yet."""
        if not self.reply and not self.behind:
            self.reply = self.store.read(self.term.leadership, count)

    def read(self, count: int = 1000) -> None:
        """The master reads the answer."""
        self.hand_out(count)
        batch = Batch()
        for id_ in self.reply:
            self.ingest([id_.encode(), self.store.entries[id_]], batch)
            self.lane.read_to = id_key(id_)
        self.reply = []
        self.lane.wake(self.now)
        self.backoffs_over.run(batch)
        self.advance(batch)
        self.refill_now()

    def join(self, name: str, slots: int = 2, tasks: frozenset[str] | None = None) -> str:
        self._lives += 1
        incarnation = f"life{self._lives}"
        self.registered[incarnation] = (name, slots)
        if tasks is not None:
            self.tasks[incarnation] = tasks
        queue = f"queue:{name}"
        facts = (queue, slots, registration(incarnation, queue, slots), tasks)
        self.lane.consumers[incarnation] = Consumer(name, incarnation, *facts)
        self.store.leases[incarnation] = name
        self.lane.stranded.fit()
        self.step()
        return incarnation

    def leave(self, *incarnations: str) -> None:
        """Ends these leases, and lets the leader notice it."""
        self._ended(*incarnations)
        self._retire([self.lane.consumers[incarnation] for incarnation in incarnations])

    def look(self, left: dict[str, int]) -> None:
        """The leader checks the leases. ``left``: ms of some leases. All others are full."""
        self._ended(*(incarnation for incarnation, ms in left.items() if ms <= 0))
        seen = {incarnation: left.get(incarnation, self.settings.lease_ms) for incarnation in self.lane.consumers}
        with self._recovering(), patch.object(self.consumers, "find", lambda: seen):
            self.lease_watch.look()
        self.step()

    def _ended(self, *incarnations: str) -> None:
        for incarnation in incarnations:
            del self.registered[incarnation]
            self.store.leases.pop(incarnation, None)
        self.store.parcels = [parcel for parcel in self.store.parcels if parcel.incarnation not in incarnations]

    def _retire(self, consumers: list[Consumer]) -> None:
        with self._recovering():
            self.reroute.retire(consumers, self.lease_watch.given_up)
        self.step()

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Lets the scripts of lease_watch work on the store."""
        clock = SimpleNamespace(time=lambda: self.now / 1000, monotonic=lambda: self.now / 1000)
        with (
            patch("bridge.leader.consumers.reroute.reroute", self._reroute),
            patch("bridge.leader.consumers.reroute.forget", lambda _, *args: self.store.forget(*args)),
            patch("bridge.leader.consumers.lease_watch.time", clock),
        ):
            yield

    def learn_history_cap(self, _rows: int) -> int:
        return 1000

    def _reroute(self, _client: Any, lead: Leadership, life: str, last: str, moves: Any, *rest: Any) -> ReturnCode:
        for _, _, record, _ in moves:
            parsed = records.parse(record)
            self.failures[parsed.ids[0]] = parsed.attempt - 1
        return self.store.reroute(lead, life, last, moves, *rest)

    # -- operators ---------------------------------------------------------------------------------------------------

    def order(self, **order: Any) -> dict[str, Any]:
        """The leader carries out an order. Returns its answer."""
        batch = Batch(keep_outcomes_from="1-0")
        with self.patched():
            self.operator_orders.take("order", json.dumps(order).encode(), batch)
            _, answer = self.operator_orders._answers.pop()
            self.operator_orders._emptied.clear()
            self.advance(batch)
            self.refill_now()
        return answer

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Lets the scripts that orders call work on the store."""
        with (
            self.adopting(),
            patch("bridge.leader.consumers.queues.recall", lambda *_: []),
        ):
            yield

    @contextmanager
    def adopting(self) -> Iterator[None]:
        """Lets claims work on the store."""
        with patch("bridge.leader.stream.pending.adopt", lambda _, *args: self.store.adopt(*args)):
            yield

    def refill_now(self) -> None:
        """Reads messages that a new leader has not read yet, and spilled ones that are needed."""
        with self.adopting():
            while self.rebuilding is not None and self.behind:
                self.rebuilding.read_on()
                if self.sliced:
                    break
            self.refill.run()
            while self.refill.waits and not self.sliced:
                self.refill.run()

    def request(self, *_: Any) -> None:
        """Requests to workers change nothing here."""

    def _dead_message(self, id_: str) -> Message | str:
        found = self.parser.parse(id_, self.store.entries[id_])
        return found if isinstance(found, Message) else "no message"

    # -- workers -----------------------------------------------------------------------------------------------------

    def running(self) -> list[tuple[Parcel, str]]:
        """The messages that could run: the first unsettled one of each run."""
        return [(parcel, ticket) for parcel in self.store.parcels for ticket in parcel.runs]

    def outcome(self, parcel: Parcel, ticket: str, kind: Any, **more: Any) -> Outcome:
        """The next outcome of a run. A failure ends the run."""
        fence, ids = parcel.runs[ticket]
        outcome = Outcome(ids[0], fence, kind, TASKS[self.task_of(ids[0])], **more)
        if kind.name == "DONE" and len(ids) > 1:
            parcel.runs[ticket] = (fence + 1, ids[1:])
        else:
            del parcel.runs[ticket]
        self.store.parcels = [p for p in self.store.parcels if p.runs]
        return outcome

    def task_of(self, id_: str) -> str:
        entry = self.store.entries[id_]
        return entry[3].decode() if entry else "short"

    def ticket_of(self, id_: str) -> str:
        return str(self.store.entries[id_][1].decode())

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.check_conservation()
        self.check_runs()
        self.check_accounts()
        self.check_nobody_is_forgotten()
        self.check_how_far_all_is_done()

    def check_conservation(self) -> None:
        store, unseen = self.store, self.unseen
        everything = [*store.unread(), *store.pending, *store.done, *store.dead]
        assert len(everything) == len(store.entries)
        assert set(everything) == store.entries.keys()
        # In memory each message is once, in order. Messages outside memory are spilled
        for ticket in self.lane.tickets.values():
            here = [message.id for message in (*ticket.run, *ticket.waiting)]
            mine = [id_ for id_ in store.undone(ticket.id) if id_ not in unseen]
            assert here == mine[: len(here)], f"{ticket}: has {here}, should have {mine}"
            rest = mine[len(here) :]
            if self.lane.resting.rests(ticket):
                assert mine[0] == ticket.front_id
                rest = [id_ for id_ in mine if id_ not in (ticket.front_id, *here)]
                here = []
            # The leader knows what the oldest one has behind it
            assert not here or ticket.attempt == 1 + self.failures.get(here[0], 0), ticket
            assert (not rest) or (ticket.spilled_from is not None and ticket.spilled_from <= id_key(rest[0]))
        known = {self.ticket_of(id_) for id_ in store.pending if id_ not in unseen and store.readable(id_)}
        assert known <= self.lane.tickets.keys() | self.lane.parked.keys()
        assert self.lane.tickets.keys().isdisjoint(self.lane.parked)
        for ticket in self.lane.parked.values():
            assert (list(ticket.waiting), list(ticket.run), ticket.due_ms) == ([], [], 0), f"{ticket} is parked"
            shelf = self.lane.parked_name(ticket.id)
            assert ticket.shelved == sum(1 for owner in store.pending.values() if owner == shelf)
            for id_ in store.undone(ticket.id):
                # Messages that were spilled before their ticket was parked stay where they are until they are read.
                spilled = ticket.spilled_from is not None and ticket.spilled_from <= id_key(id_)
                owners = {self.lane.parked_name(ticket.id), *([MASTER] if spilled or id_ in unseen else [])}
                assert store.pending[id_] in owners

    def check_how_far_all_is_done(self) -> None:
        """The floor equals that of a search of all tickets, and no undone message is older."""
        lane, unseen = self.lane, self.unseen
        places = [oldest_of(ticket) for ticket in lane.tickets.values()]
        places += [place for ticket in lane.parked.values() for place in (ticket.parked_from, ticket.spilled_from)]
        oldest = min((place for place in places if place is not None), default=None)
        assert oldest_undone(lane) == oldest
        undone = [id_key(id_) for id_ in self.store.pending if id_ not in unseen and self.store.readable(id_)]
        assert not undone or (oldest is not None and oldest <= min(undone))
        assert lane.older <= set(lane.tickets.values())

    def check_runs(self) -> None:
        store = self.store
        for name, text in store.tickets.items():
            record = records.parse(text)
            # On one consumer (I2). The dispatch checks that they are the oldest undone ones
            owners = {store.pending[id_] for id_ in record.ids}
            shelf = self.lane.parked_name(name)
            if record.parked:
                assert owners <= {shelf, MASTER}
            else:
                assert owners == ({record.consumer} if record.in_flight else {MASTER})
            assert (name in store.retries) == (not record.in_flight and not record.parked)
            kept = self.lane.parked if record.parked else self.lane.tickets
            assert kept[name].record == text
            assert not record.ids or record.attempt == 1 + self.failures.get(record.ids[0], 0)
        shelves = {self.lane.parked_name(name) for name in self.lane.parked}
        claimed = {id_ for id_, owner in store.pending.items() if owner != MASTER and owner not in shelves}
        named = [id_ for text in store.tickets.values() if (r := records.parse(text)).in_flight for id_ in r.ids]
        assert sorted(named) == sorted(claimed)
        if store.counts.get("replayed"):
            return
        # The messages of each ticket end in stream order
        for ends in (store.done, store.dead):
            last: dict[str, tuple[int, int]] = {}
            for id_ in ends:
                if store.readable(id_):
                    assert id_key(id_) > last.get(self.ticket_of(id_), (0, 0)), f"{id_} came too late"
                    last[self.ticket_of(id_)] = id_key(id_)

    def check_accounts(self) -> None:
        lane = self.lane
        held = sum(len(t.run) + len(t.waiting) for t in lane.tickets.values())
        assert lane.held == held
        for ticket in lane.tickets.values():
            assert ticket.bytes == sum(message.size for message in ticket.waiting)
        assert lane.bytes_in_flight == sum(m.size for t in lane.tickets.values() for m in t.run)
        assert lane.bytes == lane.bytes_in_flight + sum(t.bytes for t in lane.tickets.values())
        assert set(lane.in_flight) == {m.id for t in lane.tickets.values() for m in t.run}
        for consumer in lane.consumers.values():
            flying = [t for t in lane.tickets.values() if t.run and t.consumer is consumer]
            assert consumer.tickets == set(flying)
            assert consumer.messages == sum(len(t.run) for t in flying)
            assert consumer.bytes == sum(m.size for t in flying for m in t.run)
            assert consumer.parcels == len({id(t.parcel) for t in flying})
            expected = sum(t.parcel.share_ms * len(t.run) for t in flying if t.parcel is not None)
            assert abs(consumer.backlog_ms - expected) < 1e-6

    def check_nobody_is_forgotten(self) -> None:
        lane = self.lane
        queued: list[Ticket] = [*lane.ready, *lane.suspects, *(t for c in lane.consumers.values() for t in c.ready)]
        assert len(queued) == len(set(queued)), "a ticket waits for room twice"
        for ticket in lane.tickets.values():
            free = bool(ticket.waiting) and not (ticket.run or ticket.due_ms or ticket.front_id)
            assert (ticket in queued) == free == ticket.queued, ticket
            if ticket.due_ms:
                assert any(due == ticket.due_ms and t is ticket for due, _, t in lane.backoffs)
            rests = lane.resting.rests(ticket)
            assert ticket.waiting or ticket.run or ticket.spilled_from or ticket.due_ms or rests, f"{ticket} is empty"
            assert ticket in lane.resting.due if rests and not ticket.due_ms else ticket not in lane.resting.due
            assert ticket.park_reason is None or ticket.run, f"{ticket} is to be parked, and nothing of it runs"
        if lane.suspects:
            # One of them is in flight, or a consumer is kept free for it, or it is the other tickets' turn
            task = self.task_of(lane.suspects[0].waiting[0].id)
            able = [c for c in lane.consumers.values() if c.serving and not c.doubted and c.runs(task)]
            resting = self.now < lane.rest_until and set(queued) > set(lane.suspects)
            assert not able or resting or any(c.alone is not None for c in able), "suspects wait for nothing"
        for consumer in lane.consumers.values():
            alone = consumer.alone
            assert alone is None or alone in lane.suspects or (alone.run and alone.consumer is consumer)
            assert alone is None or not alone.run or consumer.parcels == 1, "a suspect has company"
        pinned = self.settings.policy.value == "rendezvous"
        for consumer in lane.consumers.values():
            if consumer.open and consumer.parcels < consumer.slots:
                assert not consumer.ready, f"{consumer} has an idle slot and tickets that wait"
                idle_for = {ticket for ticket in queued if consumer.runs(ticket.waiting[0].task)} - set(lane.suspects)
                assert pinned or not idle_for, f"{consumer} has an idle slot and {idle_for} wait"
        serving = [c for c in lane.consumers.values() if c.serving]
        for ticket in lane.tickets.values():
            if ticket.stranded:
                served = any(c.runs(ticket.stranded) for c in serving)
                assert not served or ticket.stranded in lane.stranded.open_circuits, f"{ticket} need not wait"
                assert ticket not in lane.spilled
                assert not ticket.waiting
            elif ticket.spilled_from is not None and not lane.resting.rests(ticket):
                assert ticket in lane.spilled, f"nobody reads {ticket} again"
