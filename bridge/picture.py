"""The pieces of the leader's picture: tickets, consumers, and what travels between them. No I/O, no rules."""

from __future__ import annotations

from collections import deque

from routing.messages import Message
from routing.records import LostAttempt

#: Consumers that must have ended under a message before it is suspected of having ended them. One alone happens to
#: every machine some day, and what was in flight there is innocent.
SUSPECT_AFTER = 2
#: The largest second half of a stream id.
LAST_SEQUENCE = 2**64 - 1


class Ticket:
    """One ticket that has undone messages."""

    __slots__ = (
        "attempt",
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


class Consumer:
    """One incarnation of a consumer."""

    __slots__ = (
        "alive",
        "alone",
        "backlog_ms",
        "draining",
        "incarnation",
        "leaving",
        "messages",
        "missed",
        "name",
        "parcels",
        "queue",
        "ready",
        "registration",
        "slots",
        "stalled",
        "stuck",
        "tickets",
    )

    def __init__(self, name: str, incarnation: str, queue: str, slots: int, registration: bytes) -> None:
        self.name = name
        self.incarnation = incarnation
        self.queue = queue
        self.slots = max(1, slots)
        self.registration = registration
        self.alive = True
        #: It shuts down: what it has is still its own, but it takes nothing more.
        self.leaving = False
        #: It takes nothing new, by an operator's order.
        self.draining = False
        #: It holds its lease and does not take what is in its queue.
        self.stalled = False
        #: The oldest Celery message in its queue, and since when it is seen there (monotonic).
        self.stuck: tuple[bytes, float] = (b"", 0.0)
        #: The suspect that it is kept empty for, or runs.
        self.alone: Ticket | None = None
        #: Tickets in flight here.
        self.tickets: set[Ticket] = set()
        #: Tickets that wait for room here: sticky ones, between two runs.
        self.ready: deque[Ticket] = deque()
        self.parcels = 0
        self.messages = 0
        self.backlog_ms = 0.0
        #: Runs that the consumer's last report did not name: run fence -> number of that report.
        self.missed: dict[int, int] = {}

    @property
    def open(self) -> bool:
        """Whether it may be sent anything."""
        return self.alive and not (self.leaving or self.draining or self.stalled) and self.alone is None

    @property
    def load(self) -> float:
        return self.backlog_ms / self.slots + self.messages / (1000.0 * self.slots)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.incarnation[:8]} {self.messages} in flight>"


def id_key(id_: str) -> tuple[int, int]:
    """A stream id as something that sorts."""
    ms, _, sequence = id_.partition("-")
    return int(ms), int(sequence or 0)


def id_before(key: tuple[int, int]) -> str:
    """The newest stream id that is older than ``key``, which is not the first one."""
    ms, sequence = key
    return f"{ms}-{sequence - 1}" if sequence else f"{ms - 1}-{LAST_SEQUENCE}"


def key_after(key: tuple[int, int]) -> tuple[int, int]:
    """The oldest id that is newer than ``key``."""
    ms, sequence = key
    return (ms, sequence + 1) if sequence < LAST_SEQUENCE else (ms + 1, 0)
