"""A lane that keeps the promise, in a few lines and without a server: it makes the history that a true leader writes.

The caller draws what happens, one `Event` after another. An event that is not possible at the moment does nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hypothesis import strategies as st

from bridge.routing.history import Delivery, What
from bridge.routing.ids import Place, id_key, late_place

HOSTS = ("a", "b")
#: When the lane began, Unix ms.
BEGAN_MS = 1_700_000_000_000


class Event(Enum):
    PUSH = "push"
    PUSH_BROKEN = "push broken"
    DISPATCH = "dispatch"
    DONE = "done"
    FAIL = "fail"
    DIE = "die"
    RETURN = "return"
    CONSUMER_DIES = "consumer dies"
    CONSUMER_FREEZES = "consumer freezes"
    WAKE = "wake"
    REPLAY = "replay"
    NACK = "nack"
    DROP = "drop"
    PUSH_DELAYED = "push delayed"
    CANCEL = "cancel"
    PUSH_UNWANTED = "push unwanted"
    PUSH_SKIPPED = "push skipped"


#: (event, ticket, a number for the event's choices)
Happening = tuple[Event, int, int]


GOOD = [Event.PUSH] * 4 + [Event.DISPATCH] * 5 + [Event.DONE] * 6
#: Deaths and replays, which make the order hard to check.
REPLAYED = [Event.PUSH] * 4 + [Event.DISPATCH] * 6 + [Event.DIE] * 3 + [Event.REPLAY] * 4 + [Event.DONE] * 3
#: Delayed messages that others overtake.
OVERTAKEN = [Event.PUSH, Event.PUSH_DELAYED, Event.DISPATCH, Event.DONE]
#: All events of a lane whose messages are not delayed.
PROMPT = [event for event in Event if event not in (Event.PUSH_DELAYED, Event.CANCEL)]


def happenings(most: int = 80, *, kinds: Sequence[Event] = tuple(Event)) -> st.SearchStrategy[list[Happening]]:
    """Draws events of ``kinds``: mostly successes of three tickets, many failures of one, or many delays of one."""

    def drawn(kinds: list[Event], tickets: int) -> st.SearchStrategy[list[Happening]]:
        one = st.tuples(st.sampled_from(kinds), st.integers(0, tickets - 1), st.integers(0, 5))
        return st.lists(one, min_size=10, max_size=most)

    found = drawn([*GOOD, *kinds], 3) | drawn([*REPLAYED, *kinds], 1)
    return found | drawn(OVERTAKEN, 1) if Event.PUSH_DELAYED in kinds else found


@dataclass
class Message:
    id: str
    ticket: str
    attempt: int = 1
    #: It had an attempt, or its consumer was lost. It stays the first of its ticket.
    begun: bool = False
    #: Others overtake it until then, Unix ms. 0: it is not delayed.
    due_ms: int = 0

    @property
    def place(self) -> Place:
        return late_place(self.due_ms, self.id) if self.due_ms else id_key(self.id)


@dataclass
class Ticket:
    name: str
    waiting: deque[Message] = field(default_factory=deque)
    run: deque[Message] = field(default_factory=deque)
    fence: int = 0
    consumer: str = ""
    dispatched_ms: int = 0
    dead: list[Message] = field(default_factory=list)
    delayed: list[Message] = field(default_factory=list)


class TrueLane:
    """``entries``: (id, ticket) as in the stream; ``steps``: the history; ``marks``: for each step, the number of
    entries in the stream at that time.
    """

    def __init__(self) -> None:
        self.now_us = BEGAN_MS * 1000
        self.entries: list[tuple[str, str | None]] = []
        self.steps: list[list[Delivery]] = []
        self.marks: list[int] = []
        self.tickets: dict[str, Ticket] = {}
        self._last_fence = 0
        #: Executions of frozen processes: they end when they wake up.
        self._frozen: list[Delivery] = []
        self._pushed = 0

    def play(self, happened: Iterable[Happening]) -> TrueLane:
        for event, ticket, number in happened:
            self._come_due()
            self._happens(event, self._ticket(f"T{ticket}"), number)
            self.now_us += 700 + 30_000 * number
        return self

    def finish(self) -> TrueLane:
        """Handles all waiting messages, also those that are delayed. Replays no dead one."""
        delayed = [message.due_ms for ticket in self.tickets.values() for message in ticket.delayed]
        self.now_us = max([self.now_us, *(1000 * (due_ms + 1) for due_ms in delayed)])
        self._come_due()
        for ticket in self.tickets.values():
            while ticket.waiting or ticket.run:
                self._happens(Event.DISPATCH, ticket, 3)
                self._happens(Event.DONE, ticket, 1)
        return self

    @property
    def pending(self) -> list[str]:
        """Ids of the undone messages."""
        return [m.id for ticket in self.tickets.values() for m in (*ticket.run, *ticket.waiting, *ticket.delayed)]

    def _ticket(self, name: str) -> Ticket:
        return self.tickets.setdefault(name, Ticket(name))

    def _happens(self, event: Event, ticket: Ticket, number: int) -> None:
        if event is Event.PUSH:
            ticket.waiting.append(Message(self._entry(ticket.name), ticket.name))
        elif event is Event.PUSH_BROKEN:
            named = ticket.name if number % 2 else None
            id_ = self._entry(named)
            self._write([Delivery(id_, "", "", "", 0, 0, 0, 0, 0, What.REFUSED, 0)])
        elif event is Event.PUSH_DELAYED:
            self._delay(ticket, number)
        elif event is Event.CANCEL and ticket.delayed:
            self._note(ticket.delayed.pop(number % len(ticket.delayed)), What.CANCELLED)
        elif event in (Event.PUSH_UNWANTED, Event.PUSH_SKIPPED):
            what = What.LEFT_OUT if event is Event.PUSH_UNWANTED else What.SKIPPED
            self._write([Delivery(self._entry(ticket.name), "", "", "", 0, 0, 0, 0, 0, what, 0)])
        elif event is Event.DISPATCH:
            self._dispatch(ticket, number)
        elif event is Event.REPLAY and ticket.dead:
            self._replay(ticket, ticket.dead.pop(number % len(ticket.dead)))
        elif event is Event.WAKE and self._frozen:
            woken = self._frozen.pop(0)
            ran_us = self.now_us - woken.started_us
            self._write([replace(woken, ticket="", consumer="", attempt=0, service_ms=ran_us / 1000, what=What.STALE)])
        elif ticket.run:
            self._ends(event, ticket, number)

    def _ends(self, event: Event, ticket: Ticket, number: int) -> None:
        message = ticket.run[0]
        if event is Event.DONE:
            rows = []
            for _ in range(min(len(ticket.run), 1 + number)):
                rows.append(self._row(ticket, ticket.run.popleft(), What.DONE, ran=True))
                ticket.fence += 1
            self._write(rows)
        elif event is Event.DROP:
            self._write([self._row(ticket, message, What.DROPPED, ran=True)])
            ticket.run.popleft()
            ticket.fence += 1
        elif event in (Event.FAIL, Event.NACK):
            what = What.FAILED if event is Event.FAIL else What.NACKED
            self._write([self._row(ticket, message, what, ran=True), *self._rest(ticket)])
            message.attempt += event is Event.FAIL
            message.begun = True
            self._take_back(ticket)
        elif event is Event.DIE:
            self._write([self._row(ticket, message, What.DEAD, ran=True), *self._rest(ticket)])
            ticket.run.popleft()
            ticket.dead.append(message)
            self._take_back(ticket)
        elif event is Event.RETURN:
            self._write([self._row(ticket, message, What.RETURNED), *self._rest(ticket)])
            self._take_back(ticket)
        elif event in (Event.CONSUMER_DIES, Event.CONSUMER_FREEZES):
            if event is Event.CONSUMER_FREEZES:
                self._frozen.append(replace(self._row(ticket, message, What.STALE), started_us=self.now_us))
            self._write([self._row(ticket, message, What.LOST), *self._rest(ticket)])
            message.attempt += number % 2
            message.begun = True
            self._take_back(ticket)

    def _dispatch(self, ticket: Ticket, number: int) -> None:
        if ticket.run or not ticket.waiting:
            return
        for _ in range(min(len(ticket.waiting), 1 + number)):
            ticket.run.append(ticket.waiting.popleft())
        self.now_us += 1
        ticket.fence = max(self._last_fence + 1, self.now_us)
        self._last_fence = ticket.fence + len(ticket.run) - 1
        ticket.consumer = f"w{number}@{HOSTS[number % len(HOSTS)]}"
        ticket.dispatched_ms = self.now_us // 1000

    def _replay(self, ticket: Ticket, message: Message) -> None:
        self._write([Delivery(message.id, ticket.name, "t", "", 0, 0, 0, 0, 0, What.REPLAYED, 0)])
        message.attempt, message.begun, message.due_ms = 1, False, 0
        self._put_in_place(ticket, message)

    def _delay(self, ticket: Ticket, number: int) -> None:
        message = Message(self._entry(ticket.name), ticket.name)
        message.due_ms = self.now_us // 1000 + 1 + 40 * number
        ticket.delayed.append(message)
        self._note(message, What.DELAYED)

    def _come_due(self) -> None:
        """The messages that are due take their places in the order of their tickets."""
        for ticket in self.tickets.values():
            due = [message for message in ticket.delayed if message.due_ms < self.now_us // 1000]
            for message in sorted(due, key=lambda one: one.place):
                ticket.delayed.remove(message)
                self._note(message, What.DUE)
                self._put_in_place(ticket, message)

    def _put_in_place(self, ticket: Ticket, message: Message) -> None:
        at = 1 if ticket.waiting and ticket.waiting[0].begun and not ticket.run else 0
        while at < len(ticket.waiting) and ticket.waiting[at].place < message.place:
            at += 1
        ticket.waiting.insert(at, message)

    def _note(self, message: Message, what: What) -> None:
        due_ms = 0 if what is What.CANCELLED else message.due_ms
        self._write([Delivery(message.id, message.ticket, "", "", 0, 0, due_ms, 0, 0, what, 0)])

    def _take_back(self, ticket: Ticket) -> None:
        ticket.waiting.extendleft(reversed(ticket.run))
        ticket.run.clear()

    def _row(self, ticket: Ticket, message: Message, what: What, *, ran: bool = False) -> Delivery:
        started_us = service_ms = 0.0
        if ran:
            self.now_us += 40
            started_us, service_ms = self.now_us, 1.5
            self.now_us += 1500
        times = (ticket.dispatched_ms, int(started_us), service_ms)
        return Delivery(message.id, ticket.name, "t", ticket.consumer, message.attempt, ticket.fence, *times, what, 0)

    def _rest(self, ticket: Ticket) -> list[Delivery]:
        rest = []
        for i, message in enumerate(ticket.run):
            if i:
                rest.append(replace(self._row(ticket, message, What.RETURNED), fence=ticket.fence + i))
        return rest

    def _entry(self, ticket: str | None) -> str:
        self.now_us += 300
        self._pushed += 1
        id_ = f"{self.now_us // 1000}-{self._pushed}"
        self.entries.append((id_, ticket))
        return id_

    def _write(self, rows: list[Delivery]) -> None:
        self.now_us += 200
        self.steps.append([replace(row, written_ms=self.now_us // 1000) for row in rows])
        self.marks.append(len(self.entries))
