"""Adds many rows to the stream, in their order, and counts at every moment how many are in."""

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

#: Most bytes of payload in one batch, whatever number of rows the caller asked for.
BATCH_BYTES = 8 * 1024 * 1024


@dataclass
class Pushed:
    """The rows that are in the stream so far. The ids are stream ids."""

    rows: int = 0
    first_id: str | None = None
    last_id: str | None = None
    #: Number of rows of a batch whose reply was lost: each of them may be in or not.
    uncertain: int = 0


def push_rows(
    client: Redis, stream: str, rows: Iterable[Row], size: int, pushed: Pushed, on_batch: Callable[[int], None]
) -> None:
    """Adds ``rows`` in batches of ``size``, and counts them in ``pushed``. Calls ``on_batch`` with each batch's size.

    When ``rows`` raises, the rows before the bad one are added first, and ``pushed`` counts exactly these. Then that
    error is raised. Also raises `ServerUnavailable`.
    """
    batch: list[Row] = []
    for batch in _batches(rows, size):
        _add(client, stream, batch, pushed)
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


def _add(client: Redis, stream: str, batch: list[Row], pushed: Pushed) -> None:
    # Without a transaction, which would make other clients wait. The replies say for each row whether it is in.
    with client.pipeline(transaction=False) as pipe:
        for row in batch:
            pipe.xadd(stream, row.fields())  # type: ignore[arg-type]
        try:
            replies = pipe.execute(raise_on_error=False)
        except UNAVAILABLE as exc:
            pushed.uncertain = len(batch)
            raise ServerUnavailable(
                f"lost Redis while sending the rows of lines {batch[0].line} to {batch[-1].line}, some of which may be "
                f"in: {exc}"
            ) from None
        except BaseException:
            # Most often Ctrl-C.
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
