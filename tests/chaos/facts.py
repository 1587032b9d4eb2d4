"""The evidence of a chaos run, of which the bridge writes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Message:
    """A pushed message. ``n``: its number in its ticket, from 0 without gaps: as it was pushed. In what the checks get:
    in the order of the places.

    ``dies``: it can never succeed and must end as a dead letter. ``pushed_ns``: Unix ns when its id was known.
    ``kind``: what filters look at. ``version``: of the stream; "": it has one. ``generation``: of the stream's layout.
    ``expired``: it must never begin. ``due_ms``: when it is due (Unix ms); 0: it is not delayed. ``hold``: its ticket
    waits for it.
    """

    message_id: str
    ticket: str
    n: int
    dies: bool = False
    pushed_ns: int = 0
    kind: str = ""
    version: str = ""
    generation: int = 0
    expired: bool = False
    due_ms: int = 0
    hold: bool = False

    @property
    def overtaken(self) -> bool:
        """Whether others of its ticket overtake it until it is due."""
        return self.due_ms > 0 and not self.hold

    @property
    def place(self) -> tuple[int, ...]:
        """Where it is in the order of its ticket: as though it had been pushed at the end of the ms when it is due."""
        ms, _, number = self.message_id.partition("-")
        key = (int(ms), int(number or 0))
        return (self.due_ms, 1, *key) if self.overtaken else (key[0], 0, key[1])


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution, as its own process wrote it down. Times in ns of CLOCK_BOOTTIME; ``wall_ns`` is its start, Unix.

    ``seen_ns``: its last sign of life; ``end_ns``: None for one that was cut off; ``outcome``: done, raised or ''.
    ``parent``: the process that its process was forked by; with pools that do not fork that is not the worker.
    """

    ticket: str
    message_id: str
    n: int
    attempt: int
    fence: int
    consumer: str
    pool: str
    pid: int
    parent: int
    start_ns: int
    wall_ns: int
    seen_ns: int
    end_ns: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What one success left in the lane's Redis, in the order of application. ``at_ms``: Unix ms by the server.
    ``place``: among the effects of its ticket, from 0. ``kept``: whether it changed the ticket's state. ``stored``: an
    HTTP consumer or a task that drops the message wrote it itself, before the outcome was written.
    """

    ticket: str
    message_id: str
    n: int
    fence: int
    at_ms: int
    place: int = 0
    kept: bool = False
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. ``at_ms``: Unix ms, the server's clock."""

    message_id: str
    ticket: str
    attempts: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a lane that should be at rest. Counts; ``ownerless``: a line for each key that nobody owns."""

    unread: int = 0
    pending: int = 0
    records: int = 0
    applied: int = 0
    retries: int = 0
    outcomes: int = 0
    done: int = 0
    dead: int = 0
    ownerless: Sequence[str] = ()
    delayed: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """A process that the operating system did not let run (SIGSTOP), in ns of CLOCK_BOOTTIME."""

    pid: int
    from_ns: int
    to_ns: int


@dataclass
class Notes:
    """What was done to the lane, as far as it excuses anything."""

    freezes: list[Freeze] = field(default_factory=list)
    #: From and to (ns of CLOCK_BOOTTIME) of times in which no worker could renew its lease: the server was away.
    outages: list[tuple[int, int]] = field(default_factory=list)
    #: When a server that may lose its last writes crashed: CLOCK_BOOTTIME and Unix, both in ns.
    lossy_crashes: list[tuple[int, int]] = field(default_factory=list)
    #: Processes that were killed while they may have run something: each can use up one attempt that left no trace.
    kills: int = 0
    #: Entries that somebody took off the pending list by hand. Until they are pending again, nothing says that they are
    #: undone.
    taken: set[str] = field(default_factory=set)
    #: Messages that an operator replayed: they may come later than their place.
    replayed: set[str] = field(default_factory=set)
    #: How many replays there were: each takes a dead letter back that the lane has counted.
    replays: int = 0
    #: Replays that were ordered and never answered: done or not.
    replays_in_doubt: int = 0


@dataclass
class Evidence:
    """All of a run."""

    messages: Sequence[Message]
    executions: Sequence[Execution]
    effects: Sequence[Effect]
    letters: Sequence[Letter]
    rest: Rest
    notes: Notes
    max_attempts: int
