"""The transitions of a writer from outside, such as Spark: rows into the stream, each once, and never into a full one.

The head of each script says which promise it keeps. A writer sends many chunks without waiting for replies, and has
their rows encoded as RESP. So for each script there are two functions: one runs it, the other returns the opening of
its call. The writer sends the opening and then the encoded rows. Both take the arguments from one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from bridge.routing.keys import layout_key, push_guard, push_prefix, push_tickets, push_waiting
from bridge.routing.partitions import Layout
from bridge.routing.producing import Places, places_of
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_APPEND_ONCE = Script("append_once")
_APPEND_PER_TICKET = Script("append_per_ticket")
_NOTE_WAIT = Script("note_wait")
_SETTLE_PUSH = Script("settle_push")

#: What must be loaded on a server before chunks are sent there.
LOADING: tuple[tuple[str, str, str], ...] = (_APPEND_ONCE.loading, _APPEND_PER_TICKET.loading)
#: How long a note that a writer waits is kept, in seconds. A writer that still waits renews it sooner.
NOTE_LIFE_S = 30


@dataclass(frozen=True)
class Answer:
    """The result of a chunk. ``detail``: the mark, the number of entries, or of partitions, depending on ``code``."""

    code: ReturnCode
    detail: str = ""

    @classmethod
    def of(cls, reply: Sequence[bytes | int]) -> Answer:
        first, *rest = reply
        assert isinstance(first, bytes)
        return cls(code_of(first), " ".join(text_of(part) if isinstance(part, bytes) else str(part) for part in rest))


@dataclass(frozen=True)
class Columns:
    """The fields of each row, the ticket's first."""

    names: tuple[str, ...]

    def arguments(self) -> list[Argument]:
        return [len(self.names), *self.names]


@dataclass(frozen=True)
class Partition:
    """One partition of one epoch of a write."""

    stream: str
    #: The guard's key, ``bridge.routing.keys.push_guard``.
    guard: str
    epoch: int
    number: int
    #: How many there are; None: not known.
    count: int | None
    #: Entries in the stream at which to wait; None: never.
    high_water: int | None
    guard_ttl_s: int

    @property
    def field(self) -> str:
        """The field of the guard that holds this partition's mark."""
        return f"{self.epoch}/{self.number}"

    def arguments(
        self, before: str, after: str, present: bytes, columns: Columns, places: Places | None
    ) -> tuple[list[Argument], list[Argument]]:
        """Keys and arguments of a chunk that moves the mark from ``before`` to ``after``, up to its values."""
        places = places or places_of(self.stream, Layout(), ())
        keys: list[Argument] = [self.guard, layout_key(self.stream), *places.streams]
        args: list[Argument] = [
            places.layout.text,
            places.numbers,
            *places.signs,
            self.epoch,
            self.number,
            _or_none(self.count),
            before,
            after,
        ]
        return keys, [*args, _or_none(self.high_water), self.guard_ttl_s, present, *columns.arguments()]


@dataclass(frozen=True)
class Tickets:
    """The last numbers of tickets that were written to a stream."""

    stream: str
    #: Beginning of the hashes' keys.
    prefix: str
    high_water: int | None
    #: How long a number is kept at least.
    guard_ttl_s: int

    def arguments(
        self, present: bytes, columns: Columns, places: Places | None
    ) -> tuple[list[Argument], list[Argument]]:
        """Keys and arguments of a chunk, up to its rows."""
        places = places or places_of(self.stream, Layout(), ())
        numbers = (push_tickets(self.prefix, one) for one in (0, 1))
        keys: list[Argument] = [layout_key(self.stream), *numbers, *places.streams]
        return keys, [
            places.layout.text,
            places.numbers,
            *places.signs,
            _or_none(self.high_water),
            self.guard_ttl_s,
            present,
            *columns.arguments(),
        ]


def append_once(
    client: Redis,
    at: Partition,
    before: str,
    after: str,
    columns: Columns,
    values: Sequence[bytes],
    present: bytes = b"",
    places: Places | None = None,
) -> Answer:
    """Appends rows. ``values``: their values, row by row. Without values it only moves the mark.

    ``places``: where the rows go; None: to the stream, which is not split.
    """
    keys, args = at.arguments(before, after, present, columns, places)
    return Answer.of(_APPEND_ONCE.run(client, keys, [*args, *values]))


def once_opening(
    at: Partition,
    before: str,
    after: str,
    columns: Columns,
    rows: int,
    present: bytes = b"",
    places: Places | None = None,
) -> bytes:
    """The same call up to the values of ``rows`` rows."""
    keys, args = at.arguments(before, after, present, columns, places)
    return _APPEND_ONCE.opening(keys, args, rows * len(columns.names))


def append_per_ticket(
    client: Redis,
    at: Tickets,
    columns: Columns,
    values: Sequence[bytes],
    present: bytes = b"",
    places: Places | None = None,
) -> Answer:
    """Appends those rows that are new; ``values``: number and values of each. The answer's detail counts them."""
    keys, args = at.arguments(present, columns, places)
    return Answer.of(_APPEND_PER_TICKET.run(client, keys, [*args, *values]))


def per_ticket_opening(
    at: Tickets, columns: Columns, rows: int, present: bytes = b"", places: Places | None = None
) -> bytes:
    """The same call up to the numbers and values of ``rows`` rows."""
    keys, args = at.arguments(present, columns, places)
    return _APPEND_PER_TICKET.opening(keys, args, rows * (1 + len(columns.names)))


def note_wait(client: Redis, stream: str, who: str, why: str, waiting_ms: int) -> None:
    """Notes why a partition waits; with an empty ``why``, that it goes on."""
    _NOTE_WAIT.run(client, [push_waiting(stream)], [who, why, waiting_ms, NOTE_LIFE_S])


def settle_push(client: Redis, guard: str, epoch: int, partitions: int, outcome: str, life_s: int) -> ReturnCode:
    """Notes that an epoch is committed, with its summary ``outcome`` (JSON). Forgets older epochs."""
    return code_of(_SETTLE_PUSH.run(client, [guard], [epoch, partitions, outcome, life_s]))


def guard_of(stream: str, run: str, prefix: str | None = None) -> str:
    """The key of the guard of one write; ``prefix`` instead of the stream's own."""
    return push_guard(prefix or push_prefix(stream), run)


def _or_none(number: int | None) -> Argument:
    return "" if number is None else number
