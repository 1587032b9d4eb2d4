"""The world of the model: what the server holds, what masters and workers hold, and what only the checker knows.

All of it is immutable and compares by value, so that two ways to one world are one state. Tickets, workers, lives of
workers (incarnations), terms and fences are small integers; a message is a ticket and its position in it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from bridge.routing.states import EDGES, State

T = TypeVar("T")

#: States as small integers: what a message's state is in a `World`.
CODES: dict[State, int] = {state: code for code, state in enumerate(State)}
UNREAD = CODES[State.UNREAD]
WAITING = CODES[State.WAITING]
IN_FLIGHT = CODES[State.IN_FLIGHT]
AWAITING = CODES[State.AWAITING_RETRY]
DEAD = CODES[State.DEAD]
DONE = CODES[State.DONE]

#: The product's own table: nothing in the model moves a message but along these.
MOVES: dict[str, tuple[int, int]] = {name: (CODES[a], CODES[b]) for name, (a, b) in EDGES.items()}


class Broken(Exception):
    """An invariant or a promise does not hold."""


class Run(NamedTuple):
    """Consecutive messages of a ticket that are in flight, or (fence 0) the one message that awaits a retry.

    It is a ticket record, and what a Celery message carries; then ``doubt`` says that it went out before.
    """

    ticket: int
    first: int
    length: int
    fence: int
    attempt: int
    worker: int
    life: int
    doubt: bool = False


class Out(NamedTuple):
    """An outcome in the outcome stream. ``kind``: that of `bridge.protocol.outcomes.Kind`."""

    worker: int
    life: int
    kind: str
    ticket: int
    pos: int
    fence: int


class Lease(NamedTuple):
    """The registration of a worker's name and the key of its incarnation's lease."""

    life: int
    held: bool
    leaving: bool
    #: The server's clock was set, and so the key is gone, although the worker may trust in it.
    early: bool = False


class Change(NamedTuple):
    """What a script does to one ticket: only if its record is ``expected``. ``moves``: (edge, position)."""

    ticket: int
    expected: Run | None
    record: Run | None
    moves: tuple[tuple[str, int], ...]


class Script(NamedTuple):
    """A script on its way from a master to the server. ``over``: the worker and the life that it is about."""

    kind: str
    term: int
    changes: tuple[Change, ...] = ()
    outs: tuple[Out, ...] = ()
    over: tuple[int, int] = (0, 0)
    since: int = 0


class Master(NamedTuple):
    """A master. ``term`` 0: it stands by. ``known``: for each ticket a bit for each message that it has read."""

    term: int
    known: tuple[int, ...]
    sent: Script | tuple[()] = ()


class Exec(NamedTuple):
    """A run that a worker holds, at one of its messages.

    ``phase``: 'held', 'noted' (its fence is in shared memory), 'running', 'wrote' (the reply to its outcome was lost);
    'looked' and 'begun' without `Guard.NOTE_FIRST`. ``late``: its process was frozen past its lease.
    """

    run: Run
    pos: int
    phase: str
    late: bool = False

    @property
    def fence(self) -> int:
        return self.run.fence + self.pos - self.run.first

    @property
    def following(self) -> Exec | None:
        """The same run at its next message, before it starts."""
        run = self.run
        return self._replace(pos=self.pos + 1, phase="held") if self.pos + 1 < run.first + run.length else None

    @property
    def named(self) -> str:
        return f"{self.run.ticket}.{self.pos} (fence {self.fence})"


class Worker(NamedTuple):
    """A worker's processes. ``mode``: 'up', 'frozen', 'orphans' (the main process is dead, children are not) or 'down'.

    ``past``: its own deadline is over. ``hands``: popped from the queue, not taken yet. ``newest``: fences seen.
    """

    mode: str
    life: int
    past: bool
    going: bool
    hands: tuple[Run, ...]
    execs: tuple[Exec, ...]
    newest: tuple[int, ...]


class World(NamedTuple):
    """One state. ``won``, ``effects`` and ``begun`` are ghosts: nobody acts on them, they are what the checks know."""

    term: int
    lead: int
    fence: int
    messages: tuple[tuple[int, ...], ...]
    records: tuple[Run | None, ...]
    outcomes: tuple[Out, ...]
    leases: tuple[Lease, ...]
    queues: tuple[tuple[Run, ...], ...]
    applied: tuple[int, ...]
    masters: tuple[Master, ...]
    late: tuple[Script, ...]
    workers: tuple[Worker, ...]
    #: Messages whose success was written under the current fence.
    won: tuple[tuple[bool, ...], ...]
    #: Messages whose effects were applied, in that order.
    effects: tuple[tuple[int, ...], ...]
    #: The newest message of each ticket that was started under a current fence.
    begun: tuple[int, ...]
    #: The last fence that was given out when the server last forgot something, where that matters.
    outage: int = 0


class Setup(NamedTuple):
    """What is explored. ``messages``: how many each ticket has; ``faults``: most faults in one history."""

    messages: tuple[int, ...] = (2,)
    faults: int = 2
    effects: bool = True
    leaving: bool = False
    #: Whether the leader takes Celery messages back from queues (a drain, a consumer that takes nothing).
    recalling: bool = False
    #: Whether somebody sets the server's clock forward.
    stepping: bool = False
    run_max: int = 2
    attempts_max: int = 2
    workers: int = 2
    masters: int = 2
    #: Whether only what users see counts: not who wrote a thing (I8), when a ticket moved (I5), what fence it got (I4).
    promises_only: bool = False

    def first(self) -> World:
        """Nothing was read, nobody leads, the workers are there."""
        tickets = len(self.messages)
        none = (0,) * tickets
        worker = Worker("up", 1, False, False, (), (), none)
        return World(
            term=0,
            lead=0,
            fence=0,
            messages=tuple((UNREAD,) * n for n in self.messages),
            records=(None,) * tickets,
            outcomes=(),
            leases=(Lease(1, True, False),) * self.workers,
            queues=((),) * self.workers,
            applied=none,
            masters=(Master(0, none),) * self.masters,
            late=(),
            workers=(worker,) * self.workers,
            won=tuple((False,) * n for n in self.messages),
            effects=((),) * tickets,
            begun=(-1,) * tickets,
        )


def twins(world: World) -> bool:
    """Whether both workers are alike, and nothing names one of them: what one may do now, the other need not."""
    workers = world.workers
    return (
        workers[0] == workers[-1]
        and world.leases[0] == world.leases[-1]
        and not world.outcomes
        and not any(world.records)
        and not any(world.queues)
        and not world.late
        and not any(master.sent for master in world.masters)
    )


def put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    """``items`` with another one at ``at``."""
    return (*items[:at], item, *items[at + 1 :])
