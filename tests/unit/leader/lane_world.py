"""A lane without a server: the real picture, planner, rebuild and refill, over `lane_store`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from bridge.app.traits import TaskTraits
from bridge.leader.consumers.lease_watch import LeaseWatch
from bridge.leader.consumers.leases import Leases
from bridge.leader.consumers.queues import Queues
from bridge.leader.consumers.reroute import Reroute
from bridge.leader.duties.operator_orders import OperatorOrders
from bridge.leader.duties.refill import Refill
from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.leader.picture.planner import Planner
from bridge.leader.picture.settling import Settling
from bridge.leader.step.history_cap import HistoryCap
from bridge.leader.step.term import Term
from bridge.leader.stream.backoffs_over import BackoffsOver
from bridge.leader.stream.delayed import Delayed
from bridge.leader.stream.first_messages import FirstMessages
from bridge.leader.stream.pending import PendingList
from bridge.leader.stream.reading import Reading
from bridge.leader.takeover.rebuild import Rebuild
from bridge.protocol.envelope import Envelopes
from bridge.protocol.outcomes import Kind, Outcome
from bridge.protocol.registration import Registration, read_registration
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.messages import EntryParser, LeftOut, Message, Refusal
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Leadership, Read
from bridge.settings.lane import LaneSettings
from tests.reference.contents import MASTER
from tests.unit.leader import lane_checks
from tests.unit.leader.lane_store import FakeEnvelopes, Parcel, Store, id_key
from tests.unit.leader.lane_times import LaneTimes

#: What follows a stream id of the lane where people read it.
ID_SUFFIX = "@p2"
#: Task -> measured service time in ms.
TASKS = {"short": 0.1, "middle": 8.0, "long": 50.0, "alone": 0.1, "limited": 0.1}
TRAITS = {
    "alone": TaskTraits(False, (None, None)),
    "limited": TaskTraits(True, (30.0, 20.0)),
}


def registration(incarnation: str, queue: str, slots: int) -> Registration:
    """The registration of a consumer."""
    fields = {"incarnation": incarnation, "queue": queue, "slots": slots, "started": 1}
    return read_registration(json.dumps(fields).encode())


class LeaderEnded(Exception):
    """The leader ended between two steps."""


class LaneWorld:
    """Plays the leader: the same steps, without a socket."""

    def __init__(
        self,
        *,
        page: int = 1000,
        sliced: bool = False,
        clocked: bool = False,
        max_payload: int = 1000,
        **settings: Any,
    ) -> None:
        window = settings.pop("window", 100)
        given = LaneSettings(**{"max_attempts": 3, **settings})
        # Smaller than the settings allow, so that a few messages fill it.
        self.settings = given.model_copy(update={"window": window})
        self.store = Store(self.settings.keys)
        self.now = 1_000_000
        if clocked:
            self.store.now_us = lambda: self.now * 1000
            self.store.clock_ms = lambda: self.now
        #: Messages that an operator cancelled.
        self.cancelled: set[str] = set()
        #: What the checks have seen of the ends of messages.
        self.done, self.dead = lane_checks.Ends(), lane_checks.Ends()
        self.last_outcome = "0-0"
        #: There are no notices here, and no listeners.
        self.on_notice: dict[Any, Any] = {}
        self.after_write: list[Any] = []
        nothing: Any = SimpleNamespace(call=lambda *_command: [])
        self.history_cap = HistoryCap(self.settings.history, nothing, "history")
        self.registered: dict[str, tuple[str, int]] = {}
        self.parser = EntryParser(default_task="short", max_payload=max_payload, known_tasks=list(TASKS))
        #: Entries that the server sent to the master and the master has not read yet.
        self.reply: list[str] = []
        self.old_outcomes: list[Outcome] = []
        #: Message id -> failures that were settled.
        self.failures: dict[str, int] = {}
        self._lives = 0
        self._leader_ends = False
        #: Incarnation -> the tasks that it can run. Missing: all tasks.
        self.tasks: dict[str, frozenset[str]] = {}
        #: Whether a step reads only one page, so that other steps may come between.
        self.sliced = sliced
        #: Entries in one page of the pending list.
        self.page = page
        self.lead()

    def lead(self) -> None:
        """A new leader, which knows only what is in the store."""
        #: Clocks that always agree. Other tests cover clocks that do not.
        self.times = LaneTimes(lambda: self.now)
        self.lane = self._picture()
        self.breakers = Breakers(self.lane)
        self.settling = Settling(
            self.lane,
            breakers=self.breakers,
            max_attempts=lambda _task: self.settings.max_attempts,
            delay_ms=lambda attempt: attempt * 100,
            parks=lambda _task: self.settings.on_dead == "park",
            id_suffix=ID_SUFFIX,
        )
        traits = {task: TRAITS.get(task, TaskTraits(True, (None, None))) for task in TASKS}
        envelopes = FakeEnvelopes()
        #: Ids of messages that went out to run before what waits at their worker.
        self.went_first = envelopes.first
        self.planner = Planner(self.lane, cast("Envelopes", envelopes), traits.__getitem__, self.settling.expire)
        #: There are no manual changes here.
        self.manual_changes = cast("Any", SimpleNamespace(mend_taken=lambda: False))
        self.term = Term(
            settings=self.settings,
            leadership=Leadership(self.settings.keys, self._elected(), MASTER),
            redis=None,
            wire=cast("Any", self.store),
            parser=self.parser,
            clock=cast("Any", self.times),
            own_tasks=frozenset(TASKS),
            facts={},
        )
        term, lane, steps, settling = self.term, self.lane, cast("Any", self), self.settling
        self.pending = PendingList(term, lane)
        self.first_messages = FirstMessages(term, lane, self.pending, settling)
        self.queues = Queues(term, lane, steps, settling)
        self.operator_orders = OperatorOrders(
            term, lane, steps, self.pending, self.queues, self.manual_changes, self._find_consumers
        )
        # A letter has the id of its message here.
        self.operator_orders._subject = self._subject  # type: ignore[method-assign, assignment]
        self.operator_orders._dead_message = self._dead_message  # type: ignore[method-assign]
        self.leases = Leases(term.clock, self.settings.lease)
        self.consumers = SimpleNamespace(find=self._find_consumers)
        self.reroute = Reroute(term, lane, steps, settling, self.leases)
        #: There are no reports of workers here.
        lost_runs = cast("Any", SimpleNamespace(find=lambda _consumers: None))
        parts = (self.leases, cast("Any", self.consumers), self.reroute, self.queues, lost_runs)
        self.lease_watch = LeaseWatch(term, lane, steps, *parts)
        self.names = ()
        self.take_late = Reading(term, lane).take_late
        self.delayed = Delayed(term, lane, steps, steps)
        parts_of_refill = (self.pending, self.first_messages, self.manual_changes, self.delayed)
        self.refill = Refill(term, lane, steps, steps, *parts_of_refill)
        self.backoffs_over = BackoffsOver(term, lane, settling)
        self.rebuilding: Rebuild | None = None
        self.reply = []

    def _picture(self) -> Lane:
        return Lane(self.settings, self.times)

    @property
    def deferred(self) -> Mapping[str, Ticket]:
        """Tickets that wait for another lane. This one is alone."""
        return {}

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be dispatched now, because of another lane."""
        return False

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
        self.begin()
        self.step()
        self._retire([c for c in self.lane.consumers.values() if not c.alive])

    def begin(self) -> None:
        """The leader reads the records."""
        steps, consumers = cast("Any", self), cast("Any", self.consumers)
        parts = (steps, steps, self.pending, self.first_messages, self.manual_changes, consumers)
        # The floor is of use only where the group was changed by hand.
        with self.adopting(), self.moving(), patch("bridge.leader.takeover.rebuild.note_floor"):
            self.rebuilding = Rebuild(self.term, self.lane, *parts, self.delayed)
            self.rebuilding.run()

    def _find_consumers(self) -> dict[str, int]:
        for incarnation, (name, slots) in self.registered.items():
            if incarnation in self.lane.consumers:
                continue
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
        if self.planner.left_some:
            # As the leader does it: at once.
            self.advance(Batch())

    def step(self, outcomes: Iterable[Outcome] = ()) -> None:
        """One turn: settles outcomes, wakes tickets that are due, and sends the batch."""
        batch = Batch()
        for outcome in outcomes:
            # Every read of the outcome stream trims what it read.
            batch.keep_outcomes_from = "1-0"
            settled = self.settling.settle(outcome, batch)
            if settled is not None and outcome.kind in (Kind.FAILED, Kind.FAILED_OWING, Kind.LOST):
                self.failures[outcome.message_id] = self.failures.get(outcome.message_id, 0) + 1
                if self.breakers.why(self.task_of(outcome.message_id)):
                    # Only a trial's failure is charged.
                    self.failures[outcome.message_id] = settled.attempt - 1
            self.old_outcomes.append(outcome)
        self.lane.wake()
        self.backoffs_over.run(batch)
        self.move_due(batch)
        self.advance(batch)
        self.refill_now()

    def move_due(self, batch: Batch) -> None:
        """The leader's timer moves what is due."""
        if self.lane.next_due_ms is None:
            return
        with self.moving():
            self.delayed._again_at = 0.0
            self.delayed.run(batch)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Lets the script of the timer work on the store."""

        def moved(_: Any, lead: Leadership, count: int, read_to: str, *, before_ms: int | None, **_more: Any) -> Any:
            return self.store.move_due(lead, count, read_to, before_ms)

        with patch("bridge.leader.stream.delayed.move_due", moved):
            yield

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

    def push(
        self, ticket: str, task: str = "short", payload: bytes = b"1", count: int = 1, **options: int
    ) -> list[str]:
        return [self.store.push(ticket, task, payload, **options) for _ in range(count)]

    def push_delayed(self, ticket: str, due_ms: int, *, hold: bool = False, task: str = "short") -> str:
        held = {"hold": 1} if hold else {}
        return self.store.push(ticket, task, b"1", due=due_ms, **held)

    def hand_out(self, count: int = 1000) -> None:
        """The server answers a blocking read. The master has not read the answer yet."""
        if not self.reply and not self.behind:
            self.reply = self.store.read(self.term.leadership, count)

    def read(self, count: int = 1000) -> None:
        """The master reads the answer."""
        self.hand_out(count)
        batch = Batch()
        self.delayed.read_with([[id_.encode()] for id_ in self.reply])
        self.lane.read_all = not self.store.unread()
        for id_ in self.reply:
            self.ingest([id_.encode(), self.store.entries[id_]], batch)
            self.lane.read_to = id_key(id_)
        self.lane.read_all = False
        self.reply = []
        self.lane.wake()
        self.backoffs_over.run(batch)
        self.move_due(batch)
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

    def leave(self, *incarnations: str, leader_ends: bool = False) -> None:
        """Ends these leases, and lets the leader notice it. ``leader_ends``: it ends when it has moved some tickets,
        and another one takes over.
        """
        self._ended(*incarnations)
        self._leader_ends = leader_ends
        try:
            self._retire([self.lane.consumers[incarnation] for incarnation in incarnations])
        except LeaderEnded:
            self._leader_ends = False
            self.rebuild()

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

    def _reroute(self, _client: Any, lead: Leadership, life: str, last: str, moves: Any, *rest: Any) -> ReturnCode:
        for _, _, record, _ in moves:
            parsed = records.parse(record)
            if parsed.ids:
                self.failures[parsed.ids[0]] = parsed.attempt - 1
        code = self.store.reroute(lead, life, last, moves, *rest)
        if self._leader_ends:
            raise LeaderEnded
        return code

    # -- operators ---------------------------------------------------------------------------------------------------

    def order(self, **order: Any) -> dict[str, Any]:
        """The leader carries out an order. Returns its answer."""
        batch = Batch(keep_outcomes_from="1-0")
        with self.patched():
            self.operator_orders.take("order", json.dumps(order).encode(), batch)
            _, answer = self.operator_orders._answers.pop()
            self.operator_orders._emptied.clear()
            if order.get("act") == "cancel":
                self.cancelled.update(answer["changed"])
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

    def _subject(self, id_: str) -> tuple[str, int]:
        return id_, int(self.store.letters.get(id_, {}).get("due_ms", 0))

    def _dead_message(self, id_: str) -> Message | str:
        found = self.parser.parse(id_, self.store.entries[id_])
        return found if isinstance(found, Message) else "no message"

    # -- workers -----------------------------------------------------------------------------------------------------

    def running(self) -> list[tuple[Parcel, str]]:
        """The messages that could run: the first unsettled one of each run."""
        return [(parcel, ticket) for parcel in self.store.parcels for ticket in parcel.runs]

    def outcome(self, parcel: Parcel, ticket: str, kind: Any, **more: Any) -> Outcome:
        """The next outcome of a run. A failure or a refusal ends the run, and a dropped message does not."""
        fence, ids = parcel.runs[ticket]
        outcome = Outcome(ids[0], fence, kind, TASKS[self.task_of(ids[0])], **more)
        if kind.name in ("DONE", "DROPPED") and len(ids) > 1:
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

    def check(self) -> None:
        """What must hold after each step."""
        lane_checks.check_all(self)
