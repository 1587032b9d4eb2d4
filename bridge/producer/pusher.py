"""Adds many rows to the stream, in their order, and counts at every moment how many are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

import redis
from redis import Redis

from bridge.link.connections import UNAVAILABLE
from bridge.link.failures import translated
from bridge.producer.options import due_ms_of
from bridge.routing import producing
from bridge.routing.errors import LayoutLost, ServerUnavailable, TicketBridgeError
from bridge.routing.ids import id_key
from bridge.routing.layouts import layout_of, lost_layout, restore_layout
from bridge.routing.partitions import Layout, partition_of
from bridge.routing.producing import places_of
from bridge.routing.return_codes import ReturnCode, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.producer.rows import Row

#: Most rows, and bytes of payload, in one batch, whatever number of rows the caller asked for: it is one call of a
#: script.
CALL_ROWS = 500
BATCH_BYTES = 1024 * 1024


@dataclass
class Destination:
    """Where rows go: the stream, and how it is split. The server refuses rows that go by another layout."""

    stream: str
    layout: Layout = field(default_factory=Layout)

    def number_of(self, ticket: bytes) -> int:
        """The number of the partition of a ticket's messages."""
        return partition_of(ticket, self.layout.partitions)


@dataclass
class Pushed:
    """The rows that are in the stream so far, and message ids."""

    rows: int = 0
    first_id: str | None = None
    last_id: str | None = None
    #: How many of them are due later than they were added.
    delayed: int = 0
    #: Number of rows of the batch whose reply was lost, or has not been counted: each of them may be in or not.
    uncertain: int = 0

    def count(self, rows: int, delayed: int, first_id: str | None, last_id: str | None) -> None:
        """Counts one batch whose reply has come.

        Ctrl-C may come between any two statements. All counts change in one call, so that it never finds half a batch.
        """
        self.__dict__.update(
            rows=self.rows + rows,
            delayed=self.delayed + delayed,
            first_id=self.first_id or first_id,
            last_id=last_id or self.last_id,
            uncertain=0,
        )


def push_rows(
    client: Redis,
    destination: Destination,
    rows: Iterable[Row],
    size: int,
    pushed: Pushed,
    on_batch: Callable[[int], None],
) -> None:
    """Adds ``rows`` in batches of ``size``, and counts them in ``pushed``. Calls ``on_batch`` with each batch's size.

    When ``rows`` raises, the rows before the bad one are added first, and ``pushed`` counts exactly these. Then that
    error is raised. Also raises `ServerUnavailable`.
    """
    batch: list[Row] = []
    for batch in _batches(rows, min(size, CALL_ROWS)):
        _add(client, destination, batch, pushed)
        on_batch(len(batch))


def _batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    held = 0
    stopped: TicketBridgeError | None = None
    source = iter(rows)
    while True:
        try:
            row = next(source)
        except StopIteration:
            break
        except TicketBridgeError as exc:
            stopped = exc
            break
        batch.append(row)
        held += len(row.payload)
        if len(batch) >= size or held >= BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
    if stopped is not None:
        raise stopped


def _add(client: Redis, destination: Destination, batch: list[Row], pushed: Pushed) -> None:
    now_ms = _now_ms(client) if any(row.values and row.counts_from_now for row in batch) else 0
    rows = [list(chain.from_iterable(row.fields(now_ms).items())) for row in batch]
    pushed.uncertain = len(batch)
    try:
        code, *replies = _call(client, destination, batch, rows)
        while code is ReturnCode.LAYOUT:
            _learn(client, destination, replies[0])
            code, *replies = _call(client, destination, batch, rows)
    except UNAVAILABLE as exc:
        raise ServerUnavailable(
            f"lost Redis while sending the rows of lines {batch[0].line} to {batch[-1].line}, some of which may be "
            f"in: {exc}"
        ) from None
    except redis.exceptions.ResponseError as exc:
        # It refused the whole call: it is busy with a script, or this user may not push any more.
        pushed.uncertain = 0
        what = f"the rows of lines {batch[0].line} to {batch[-1].line} were refused"
        raise ServerUnavailable(f"{what}: {translated(exc) or exc}") from None
    except TicketBridgeError:
        pushed.uncertain = 0
        raise
    refused: tuple[Row, Exception] | None = None
    late = delayed = 0
    ids: list[str] = []
    for row, reply in zip(batch, replies, strict=True):
        if isinstance(reply, Exception):
            refused = refused or (row, reply)
            continue
        id_ = text_of(reply)
        delayed += (due_ms_of(row.values, now_ms) or 0) > id_key(id_)[0]
        late += refused is not None
        ids.append(id_ + destination.layout.suffix(destination.number_of(row.ticket)))
    pushed.count(len(ids), delayed, ids[0] if ids else None, ids[-1] if ids else None)
    if refused is None:
        return
    row, error = refused
    shown = translated(error) if isinstance(error, redis.exceptions.RedisError) else None
    behind = f"; {late} rows after it are in" if late else ""
    raise ServerUnavailable(f"the row of line {row.line} was refused: {shown or error}{behind}")


def _call(
    client: Redis, destination: Destination, batch: Sequence[Row], rows: Sequence[Sequence[bytes | str]]
) -> Sequence[Any]:
    """One attempt, by the layout that is known."""
    hashes = [crc32(row.ticket) for row in batch] if destination.layout.is_split else ()
    return producing.push_rows(client, places_of(destination.stream, destination.layout, hashes), rows)


def _now_ms(client: Redis) -> int:
    """The server's time. Raises `ServerUnavailable`."""
    try:
        found: Any = client.time()
    except redis.exceptions.RedisError as exc:
        raise ServerUnavailable(f"a delay needs the server's time: {translated(exc) or exc}") from None
    seconds, us = found
    return int(seconds) * 1000 + int(us) // 1000


def _learn(client: Redis, destination: Destination, stored: bytes) -> None:
    """Goes by the ``stored`` layout from now on. Stores it again when it was lost. Raises `ConfigurationError`."""
    known = destination.layout
    if stored:
        destination.layout = layout_of(stored, destination.stream)
    elif known.text:
        destination.layout = restore_layout(client, destination.stream, known)
    else:
        raise LayoutLost(lost_layout(destination.stream))
