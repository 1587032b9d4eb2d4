"""The parts of the leader's picture: tickets, consumers, and parcels. No I/O, no rules."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from bridge.protocol.registration import HTTP
from bridge.routing.ids import Place
from bridge.routing.messages import Message
from bridge.routing.records import LostAttempt

if TYPE_CHECKING:
    from bridge.protocol.registration import Registration

#: How many consumers must end while a message may be running before that message is a suspect. A single one proves
#: nothing: any machine may fail.
SUSPECT_AFTER = 2
#: Longest time in ms that a suspect waits when other lanes had work at its consumer. The time is random, so that
#: suspects of two lanes do not meet each time.
APART_MS = 500
#: A value in ms that is larger than any lease: the lease was not looked at yet.
LEASE_UNSEEN = 2**53
#: Least number of messages of a bundle whose time is compared with what was expected, and the largest result.
MEASURED = 8
STRETCH_MAX = 8.0
#: What is expected of a consumer that had nothing to do: its processes may be alone now, and not when it has work.
STRETCH_FIRST = 4.0


#: `Ticket.waiting` of a ticket that has no waiting message in memory. There may be many such tickets, and an empty
#: deque takes 760 bytes. All of them share this one. It is a tuple, so that nothing can be added to it.
NONE_IN_MEMORY: Any = ()


class Scan:
    """Tickets whose spilled messages were read to one place, which they share (`bridge.leader.picture.spilled`)."""

    __slots__ = ("changed", "members", "spilled_from")

    def __init__(self, changed: dict[Ticket, None]) -> None:
        self.members: set[Ticket] = set()
        #: The place of all its members.
        self.spilled_from: Place = ()
        #: Those that have a place of their own again are noted here.
        self.changed = changed


class Ticket:
    """One ticket that has undone messages."""

    __slots__ = (
        "_spilled_from",
        "attempt",
        "bytes",
        "cause",
        "consumer",
        "dispatched_at",
        "dispatched_ms",
        "due_ms",
        "fence",
        "front_id",
        "holding",
        "id",
        "losses",
        "lost",
        "moving",
        "nacked",
        "nacked_since_ms",
        "parcel",
        "park_reason",
        "parked",
        "parked_from",
        "queued",
        "record",
        "run",
        "run_fence",
        "scan",
        "shelved",
        "since",
        "stranded",
        "stranded_id",
        "tail",
        "turn",
        "waiting",
        "waiting_known",
    )

    def __init__(self, id_: str, since: str = "") -> None:
        self.id = id_
        #: Id of the message with which the ticket came into the picture. Messages that came later, of any ticket, are
        #: younger. '': the ticket was there before anything was read.
        self.since = since
        #: Messages that are in memory and not in flight, oldest first. `own_waiting` is for adding to them.
        self.waiting: deque[Message] = NONE_IN_MEMORY
        #: Bytes of these messages.
        self.bytes = 0
        #: Messages in flight, oldest first; their fences are ``fence``, ``fence + 1``, …
        self.run: list[Message] = []
        self.fence = 0
        #: Fence of the run's first message at the dispatch. A worker's report names the run by it.
        self.run_fence = 0
        #: Attempt number of the oldest undone message.
        self.attempt = 1
        #: Text of the ticket record in Redis; '': there is none.
        self.record = ""
        #: Text of the record without its fence, of the run that is in flight.
        self.tail = ""
        #: The consumer that has the run, or that gets the next one if it has room (sticky routing).
        self.consumer: Consumer | None = None
        self.parcel: Parcel | None = None
        #: Unix ms when the backoff of the oldest message ends; 0: it has none.
        self.due_ms = 0
        #: The ticket waits until its oldest message is due, which was not begun (`Lane.hold`).
        self.holding = False
        self.queued = False
        #: Growing number that says when the ticket was queued. The smallest one is next, in whichever queue it is.
        self.turn = 0
        self._spilled_from: Place | None = None
        #: The tickets with which it shares that place; None: it has one of its own.
        self.scan: Scan | None = None
        self.dispatched_at = 0.0
        #: Unix ms of the last dispatch.
        self.dispatched_ms = 0
        #: Why the oldest message is delivered again.
        self.cause = ""
        #: How often in a row the task refused the oldest message without a charge, and since when (Unix ms).
        self.nacked = 0
        self.nacked_since_ms = 0
        #: Consumers that ended while the oldest message may have been running.
        self.losses = 0
        #: The attempt of the oldest message that was cut off, if there was one. Its rollback needs it.
        self.lost: LostAttempt | None = None
        #: Id of a message that was begun before, must come first, and is not in memory yet; '': there is none.
        self.front_id = ""
        #: Consumer to which the ticket moves after its run; '': any other consumer; None: it does not move.
        self.moving: str | None = None
        #: Why the ticket is to be parked after its run; None: it is not to be parked.
        self.park_reason: str | None = None
        #: The ticket is parked: its messages are pending under a name of their own, and none is in memory.
        self.parked = False
        #: The first place that a message which is pending under that name may have; None: none is pending.
        self.parked_from: Place | None = None
        #: How many messages are pending under that name.
        self.shelved = 0
        #: Task of the oldest message, while no consumer can run it. No message is in memory then. '': not stranded.
        self.stranded = ""
        #: Id of that message.
        self.stranded_id = ""
        #: Known number of waiting messages while the ticket is stranded, spilled or rests. There may be more.
        self.waiting_known = 0

    @property
    def spilled_from(self) -> Place | None:
        """Place of the oldest spilled message; None: all messages are in memory."""
        scan = self.scan
        return self._spilled_from if scan is None else scan.spilled_from

    @spilled_from.setter
    def spilled_from(self, place: Place | None) -> None:
        self.leave_scan()
        self._spilled_from = place

    def leave_scan(self) -> None:
        """Has its place for itself from now on."""
        scan = self.scan
        if scan is not None:
            self._spilled_from, self.scan = scan.spilled_from, None
            scan.members.discard(self)
            scan.changed[self] = None

    @property
    def members(self) -> tuple[Ticket]:
        """As a `Scan` of one."""
        return (self,)

    @property
    def begun(self) -> bool:
        """Whether the oldest message had a delivery that counts. No other message may be put before it then."""
        return self.attempt > 1 or self.losses > 0 or self.lost is not None or self.nacked > 0

    @property
    def suspect(self) -> bool:
        """Whether the oldest message may have ended its consumers. It goes out alone then."""
        return self.losses >= SUSPECT_AFTER

    def cleared(self) -> None:
        """Resets the attempts: the message that was begun is done or dead, so another one is the oldest now."""
        self.attempt = 1
        self.nacked = 0
        self.losses = 0
        self.lost = None
        self.cause = ""

    def own_waiting(self) -> deque[Message]:
        """The waiting messages, in a deque to which messages can be added."""
        if self.waiting is NONE_IN_MEMORY:
            self.waiting = deque()
        return self.waiting

    def __repr__(self) -> str:
        return f"<Ticket {self.id!r} {len(self.run)} in flight, {len(self.waiting)} waiting>"


class Parcel:
    """One Celery message in flight: how many messages it still has, and the expected cost of each, in ms."""

    __slots__ = ("began_us", "consumer", "count", "left", "share_ms")

    def __init__(self, consumer: Consumer, count: int, cost_ms: float) -> None:
        self.consumer = consumer
        self.count = count
        self.left = count
        self.share_ms = cost_ms / count
        #: When the first message of it that is done was started, by the consumer's clock; 0: none is done.
        self.began_us = 0

    def ended(self, started_us: int) -> None:
        """Its last message, which was started at that time, is done. The consumer's stretch follows."""
        if self.count >= MEASURED:
            expected_us = self.share_ms * (self.count - 1) * 1000
            seen = min(STRETCH_MAX, max(1.0, (started_us - self.began_us) / expected_us)) if expected_us > 0 else 1.0
            self.consumer.stretch += (seen - self.consumer.stretch) / 4


T = TypeVar("T")


class Eligibility(property, Generic[T]):
    """An attribute of a consumer that decides which messages the consumer may get.

    A change increases `Consumer.changes`. Code that caches the eligibility of consumers compares that number, and need
    not look at all consumers. The attribute is read for each message, so a read runs no Python function.
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

    #: Grows whenever the eligibility of a consumer may have changed, in any lane of this process.
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
        "stretch",
        "stuck",
        "takes_bundles",
        "tickets",
    )

    def __init__(
        self,
        name: str,
        incarnation: str,
        queue: str,
        slots: int,
        registration: Registration | None,
        tasks: frozenset[str] | None = None,
    ) -> None:
        self.name = name
        #: Whether it is a Celery worker. A consumer over HTTP gets no bundles, and no more messages than it has slots:
        #: it takes a message when it can begin it.
        self.takes_bundles = registration is None or registration.kind != HTTP
        self.incarnation = incarnation
        self.queue = queue
        #: Whether the consumer may get any message, and not only the suspect that it is kept for.
        self.open = False
        self._slots = max(1, slots)
        #: Its pool was shrunk to no processes. Messages would wait there until the pool grows.
        self._empty = slots < 1
        #: None: it is not registered any more.
        self.registration = registration
        #: The tasks that it can run; None: any task. Consumers with equal sets share one object.
        self._tasks = tasks
        self._alive = True
        #: It shuts down. It keeps the messages that it has, and takes no more.
        self._leaving = False
        #: It takes no new messages, by an operator's order.
        self._draining = False
        #: It holds its lease, but takes nothing from its queue.
        self._stalled = False
        #: It missed a renewal while other consumers were lost. It may be lost too.
        self._doubted = False
        #: Time left of its lease at the last look, in ms.
        self.left_ms = LEASE_UNSEEN
        #: First bytes of the oldest Celery message in its queue, and since when that one is there (monotonic seconds).
        self.stuck: tuple[bytes, float] = (b"", 0.0)
        #: The suspect that it is kept empty for, or that it runs.
        self._alone: Ticket | None = None
        #: Since when it is kept for the suspect, in ms.
        self.alone_since = 0
        #: Tickets in flight here.
        self.tickets: set[Ticket] = set()
        #: Tickets that wait for room here.
        self.ready: deque[Ticket] = deque()
        self.parcels = 0
        self.messages = 0
        self.backlog_ms = 0.0
        #: How many times longer than expected a bundle lasts: its processes share processors with other work.
        self.stretch = STRETCH_FIRST
        #: Bytes of the messages in flight here.
        self.bytes = 0
        #: Fence of a run that a report of the consumer did not name -> number of the first such report.
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
        """Updates `open` after a change of the attributes that it depends on."""
        self.open = self.serving and not self._doubted and self._alone is None
        Consumer.changes += 1

    @property
    def serving(self) -> bool:
        """Whether it takes part in the work. It may be kept for a suspect just now."""
        return self._alive and not (self._leaving or self._draining or self._stalled or self._empty)

    def runs(self, task: str) -> bool:
        """Whether it can run ``task``."""
        return self._tasks is None or task in self._tasks

    @property
    def load(self) -> float:
        return (self.backlog_ms + self.messages / 1000.0) / self._slots

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.incarnation[:8]} {self.messages} in flight>"
