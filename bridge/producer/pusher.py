"""Adds many rows to the stream, in their order, and knows at every moment how many are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
from redis import Redis

from bridge.link.connections import UNAVAILABLE
from bridge.link.failures import translated
from bridge.routing.errors import ServerUnavailable, TicketBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.producer.rows import Row

#: Bytes of payload that one batch holds at most, however many rows were asked for.
BATCH_BYTES = 8 * 1024 * 1024


@dataclass
class Pushed:
    """What is in the stream so far. Ids are those of the stream's entries."""

    rows: int = 0
    first_id: str | None = None
    last_id: str | None = None
    #: Rows of a batch whose reply was lost: each of them may be in, or not.
    uncertain: int = 0


def push_rows(
    client: Redis, stream: str, rows: Iterable[Row], size: int, pushed: Pushed, told: Callable[[int], None]
) -> None:
    """Adds ``rows`` in batches of ``size``, counting in ``pushed`` and telling each batch's size to ``told``.

    When ``rows`` raises, what came before is pushed first: so ``pushed`` counts exactly the rows before the bad one.
    Raises that error, or `ServerUnavailable`.
    """
    batch: list[Row] = []
    for batch in _batches(rows, size):
        _add(client, stream, batch, pushed)
        told(len(batch))


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


def _add(client: Redis, stream: str, batch: list[Row], pushed: Pushed) -> None:
    # No transaction: a batch would only keep other clients waiting. Replies say row by row what is in.
    with client.pipeline(transaction=False) as pipe:
        for row in batch:
            pipe.xadd(stream, row.fields())  # type: ignore[arg-type]
        try:
            replies = pipe.execute(raise_on_error=False)
        except UNAVAILABLE as exc:
            pushed.uncertain = len(batch)
            raise ServerUnavailable(
                f"lost Redis while the rows of lines {batch[0].line} to {batch[-1].line} were on their way, some of "
                f"which may be in: {exc}"
            ) from None
        except BaseException:
            # Ctrl-C, most of all.
            pushed.uncertain = len(batch)
            raise
    refused: tuple[Row, Exception] | None = None
    late = 0
    for row, reply in zip(batch, replies, strict=True):
        if isinstance(reply, Exception):
            refused = refused or (row, reply)
            continue
        pushed.rows += 1
        late += refused is not None
        id_ = reply.decode() if isinstance(reply, bytes) else str(reply)
        pushed.first_id = pushed.first_id or id_
        pushed.last_id = id_
    if refused is None:
        return
    row, error = refused
    shown = translated(error) if isinstance(error, redis.exceptions.RedisError) else None
    behind = f"; {late} rows after it are in" if late else ""
    raise ServerUnavailable(f"the row of line {row.line} was refused: {shown or error}{behind}")
