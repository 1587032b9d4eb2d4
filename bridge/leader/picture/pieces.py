"""The pieces of the leader's picture: tickets, consumers, and what travels between them. No I/O, no rules."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from bridge.routing.messages import Message
from bridge.routing.records import LostAttempt

#: Consumers that must have ended under a message before it is suspected of having ended them. One alone happens to
#: every machine some day, and what was in flight there is innocent.
SUSPECT_AFTER = 2
#: Longer than any lease, in ms.
LEASE_UNSEEN = 2**53


class Ticket:
    """One ticket that has undone messages."""

    __slots__ = (
        "attempt",
        "behind",
        "bytes",
        "cause",
        "consumer",
        "dispatched_at",
        "dispatched_ms",
        "due_ms",
        "fence",
        "front_id",
        "id",
        "losses",
        "lost",
        "moving",
        "parcel",
        "park_reason",
        "parked",
        "parked_from",
        "queued",
        "record",
        "run",
        "run_fence",
        "shelved",
        "since",
        "spilled_from",
        "stranded",
        "stranded_id",
        "tail",
        "turn",
        "waiting",
    )

    def __init__(self, id_: str, since: str = "") -> None:
        self.id = id_
        #: Id of the message with which it came into the picture: what came later, of any ticket, is younger. '': it was
        #: there before anything was read.
        self.since = since
        #: Messages that are not in flight, oldest first.
        self.waiting: deque[Message] = deque()
        #: What those cost in memory.
        self.bytes = 0
        #: Messages in flight, oldest first; their fences are ``fence``, ``fence + 1``, …
        self.run: deque[Message] = deque()
        self.fence = 0
        #: The fence of the first message of the run when it was dispatched; names the run in a worker's report.
        self.run_fence = 0
        #: Attempt number of the oldest undone message.
        self.attempt = 1
        #: Text of the record in Redis, '' for none.
        self.record = ""
        self.tail = ""
        #: Where the run is, or where the next one shall go if there is room (sticky routing).
        self.consumer: Consumer | None = None
        self.parcel: Parcel | None = None
        #: Unix ms until which the oldest message waits out its backoff; 0: it does not.
        self.due_ms = 0
        self.queued = False
        #: When it was queued, as a number that grows: whoever waits longest is next, here or there.
        self.turn = 0
        #: Id of the oldest message that is not in memory; None: all are.
        self.spilled_from: tuple[int, int] | None = None
        self.dispatched_at = 0.0
        #: Unix ms of the last dispatch.
        self.dispatched_ms = 0
        #: Why the oldest message comes again.
        self.cause = ""
        #: Consumers that ended while the oldest message may have been running.
        self.losses = 0
        #: The attempt of the oldest message that was cut off half way, if one was: what its rollback must know.
        self.lost: LostAttempt | None = None
        #: Id of a message that was begun before and must come first, and that is not in memory yet.
        self.front_id = ""
        #: Where the ticket moves when what runs is done; '' stands for anybody else.
        self.moving: str | None = None
        #: It is to stand still when what runs is done, and why.
        self.park_reason: str | None = None
        #: It stands still: its messages are pending under a name of their own, and none is in memory.
        self.parked = False
        #: Id of the oldest message that is pending under that name; None: there is none.
        self.parked_from: tuple[int, int] | None = None
        #: How many are.
        self.shelved = 0
        #: The task of its oldest message, while nobody who is here can run it; none of its messages is in memory then.
        #: '': somebody can.
        self.stranded = ""
        #: The id of that message.
        self.stranded_id = ""
        #: How many messages of it wait then, at least.
        self.behind = 0

    @property
    def begun(self) -> bool:
        """Whether the oldest message had a delivery that counts: nothing may be put before it."""
        return self.attempt > 1 or self.losses > 0 or self.lost is not None

    @property
    def suspect(self) -> bool:
        """Whether the oldest message may be what ended its consumers: it goes out alone."""
        return self.losses >= SUSPECT_AFTER

    def cleared(self) -> None:
        """The oldest message is not the one that was begun before: it is done, or dead."""
        self.attempt = 1
        self.losses = 0
        self.lost = None
        self.cause = ""

    def __repr__(self) -> str:
        return f"<Ticket {self.id!r} {len(self.run)} in flight, {len(self.waiting)} waiting>"


class Parcel:
    """One Celery message in flight: what it carries and what that is expected to cost, in ms."""

    __slots__ = ("consumer", "left", "share_ms")

    def __init__(self, consumer: Consumer, count: int, cost_ms: float) -> None:
        self.consumer = consumer
        self.left = count
        self.share_ms = cost_ms / count


T = TypeVar("T")


class Eligibility(property, Generic[T]):
    """An attribute of a consumer on which it depends who may be sent what. Whoever keeps such knowledge looks at
    `Consumer.changes` and need not ask everybody. It is read for each message, so without a call into Python.
    """

    def __init__(self, name: str) -> None:
        slot = f"_{name}"
        read = attrgetter(slot)

        def write(consumer: Consumer, value: T) -> None:
            if read(consumer) != value:
                setattr(consumer, slot, value)
                consumer.update_open()

        super().__init__(read, write)

    if TYPE_CHECKING:

        def __get__(self, consumer: Any, _owner: type | None = None) -> T: ...  # type: ignore[override]

        def __set__(self, consumer: Any, value: T) -> None: ...


class Consumer:
    """One incarnation of a consumer."""

    #: Grows whenever it may have changed who may be sent what, in any lane of this process.
    changes: ClassVar[int] = 0

    __slots__ = (
        "_alive",
        "_alone",
        "_doubted",
        "_draining",
        "_empty",
        "_leaving",
        "_slots",
        "_stalled",
        "_tasks",
        "alone_since",
        "backlog_ms",
        "bytes",
        "incarnation",
        "left_ms",
        "messages",
        "missed",
        "name",
        "open",
        "parcels",
        "queue",
        "ready",
        "registration",
        "stuck",
        "tickets",
    )

    def __init__(
        self,
        name: str,
        incarnation: str,
        queue: str,
        slots: int,
        registration: bytes,
        tasks: frozenset[str] | None = None,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.queue = queue
        #: Whether it may be sent anything, and not only the suspect that it is kept for.
        self.open = False
        self._slots = max(1, slots)
        #: Its pool was shrunk to nothing: what it has would wait there until it grows.
        self._empty = slots < 1
        self.registration = registration
        #: What it can run; None: anything. Consumers that can run the same share one object.
        self._tasks = tasks
        self._alive = True
        #: It shuts down: what it has is still its own, but it takes nothing more.
        self._leaving = False
        #: It takes nothing new, by an operator's order.
        self._draining = False
        #: It holds its lease and does not take what is in its queue.
        self._stalled = False
        #: It missed a renewal while others were lost: it may be lost with them.
        self._doubted = False
        #: What its lease had left when it was last looked at, in ms.
        self.left_ms = LEASE_UNSEEN
        #: How the oldest Celery message in its queue begins, and since when it is seen there (monotonic).
        self.stuck: tuple[bytes, float] = (b"", 0.0)
        #: The suspect that it is kept empty for, or runs.
        self._alone: Ticket | None = None
        #: Since when, in ms.
        self.alone_since = 0
        #: Tickets in flight here.
        self.tickets: set[Ticket] = set()
        #: Tickets that wait for room here: sticky ones, between two runs.
        self.ready: deque[Ticket] = deque()
        self.parcels = 0
        self.messages = 0
        self.backlog_ms = 0.0
        #: Of the messages in flight here.
        self.bytes = 0
        #: Runs that the consumer's last report did not name: run fence -> number of that report.
        self.missed: dict[int, int] = {}
        self.update_open()

    alive = Eligibility[bool]("alive")
    leaving = Eligibility[bool]("leaving")
    draining = Eligibility[bool]("draining")
    empty = Eligibility[bool]("empty")
    stalled = Eligibility[bool]("stalled")
    doubted = Eligibility[bool]("doubted")
    alone = Eligibility["Ticket | None"]("alone")
    slots = Eligibility[int]("slots")
    tasks = Eligibility["frozenset[str] | None"]("tasks")

    def update_open(self) -> None:
        """Something changed of what it depends on whether it may be sent anything."""
        self.open = self.serving and not self._doubted and self._alone is None
        Consumer.changes += 1

    @property
    def serving(self) -> bool:
        """Whether it takes part in the work, be it that just now it is kept for one message alone."""
        return self._alive and not (self._leaving or self._draining or self._stalled or self._empty)

    def runs(self, task: str) -> bool:
        """Whether it can run ``task``."""
        return self._tasks is None or task in self._tasks

    @property
    def load(self) -> float:
        return (self.backlog_ms + self.messages / 1000.0) / self._slots

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.incarnation[:8]} {self.messages} in flight>"
