"""One partition of one epoch, from Arrow batches into the stream: refusals, the guard, waiting, and the result."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import redis
from pyspark.sql.datasource import WriterCommitMessage

from bridge.routing.connection import client
from bridge.routing.errors import ServerUnavailable, TicketBridgeError
from bridge.routing.keys import push_prefix
from bridge.routing.numbers import duration
from bridge.routing.pushes import Columns, Partition, Tickets, guard_of, note_wait, settle_push
from bridge.spark.wire.address import ANSWER_TIMEOUT_S, unavailable
from bridge.spark.wire.encoder import RowEncoder, parts
from bridge.spark.wire.replies import Link, Trouble
from bridge.spark.wire.worker import begin_task
from bridge.spark.write.appending import Appending
from bridge.spark.write.guard import Summary
from bridge.spark.write.layout import Layout
from bridge.spark.write.message_options import as_fields
from bridge.spark.write.options import Idempotence, WriteOptions
from bridge.spark.write.patience import Patience
from bridge.spark.write.per_ticket import PerTicket
from bridge.spark.write.refusals import (
    SequenceCheck,
    check_dates,
    check_payloads,
    check_range,
    check_tasks,
    check_tickets,
)

#: How long a task waits for a server that it cannot reach at its start, in seconds: the address is probably wrong.
FIRST_CONNECTION_S = 10.0
#: How long the guard of one attempt is kept after its end, in seconds.
_ATTEMPT_GUARD_S = 60

_log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    #: Rows of the partition.
    rows: int
    #: How many of them were in the stream before.
    found: int
    #: Seconds that it waited for room, and for what.
    waited_s: float = 0.0
    why: str = ""
    #: The name of the write in its guard.
    run: str = ""


def write_partition(
    options: WriteOptions, layout: Layout, run: str, epoch: int, number: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Appends the rows of one partition in their order; returns when the server has answered for all of them.

    Raises ``PayloadError`` before anything of the refused batch is sent, and what ``bridge.spark.write.appending`` and
    ``bridge.spark.write.per_ticket`` raise. After any error the guard and the stream agree, and another attempt goes
    on.
    """
    begin_task()
    once = options.idempotence
    link = Link(options.url)
    attempt = f"attempt-{uuid.uuid4()}" if once is Idempotence.NONE else run
    patience = Patience(options.max_wait, _noting(link, options, f"{attempt}/{epoch}/{number}"))
    encoder = RowEncoder(layout.key, layout.fields, layout.sequence if once is Idempotence.TICKET else None)
    columns = Columns(encoder.names)
    guard = guard_of(options.stream, attempt, options.guard_key)
    appending: Appending | PerTicket
    if once is Idempotence.TICKET:
        appending = PerTicket(
            link, _tickets(options), columns, patience, chunk_rows=options.chunk_size, url=options.url
        )
    else:
        at = Partition(options.stream, guard, epoch, number, layout.partitions, options.high_water, options.guard_ttl)
        appending = Appending(
            link, at, columns, patience, chunk_rows=options.chunk_size, window=options.window, url=options.url
        )
    try:
        _open(link, options)
        appending.begin()
        for batch in checked(options, layout, batches):
            for part in parts(batch):
                appending.add(encoder.encode(part))
        appending.finish()
        if once is Idempotence.NONE:
            _settle_attempt(link, guard, epoch)
    finally:
        link.close()
    return Written(appending.rows, appending.found, round(patience.waited_s, 3), patience.why, run)


def checked(options: WriteOptions, layout: Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each after it was checked. Raises ``PayloadError`` for a row that is refused."""
    rising = SequenceCheck(layout.sequence) if layout.sequence else None
    for rows in batches:
        batch, tickets = rows, rows.column(layout.key)
        check_tickets(tickets)
        check_dates(batch, tickets, [layout.key, *layout.fields])
        check_tasks(batch, tickets, layout.fields)
        batch = as_fields(batch, layout.key, layout.fields)
        check_payloads(batch, tickets, list(layout.fields), options.max_payload)
        if rising is not None:
            rising.check(tickets, batch.column(layout.sequence))
            if options.idempotence is Idempotence.TICKET:
                check_range(tickets, batch.column(layout.sequence), layout.sequence or "")
        yield batch


def settle(
    options: WriteOptions,
    layout: Layout,
    run: str,
    epoch: int,
    messages: Sequence[WriterCommitMessage | None],
    life_s: int,
) -> None:
    """Notes in the guard that an epoch is written and what it has done, and removes older epochs.

    All rows are in the stream already. If the server is away now, older notes stay until they expire; no row is lost.
    """
    written = [message for message in messages if isinstance(message, Written)]
    longest = max(written, key=lambda one: one.waited_s, default=Written(0, 0))
    summary = Summary(
        rows=sum(one.rows for one in written),
        there_already=sum(one.found for one in written),
        partitions=len(messages),
        waited_s=longest.waited_s,
        waited_for=longest.why,
    )
    if summary.waited_for:
        _log.warning("a partition waited %s: %s", duration(summary.waited_s * 1000), summary.waited_for)
    if options.idempotence is not Idempotence.WATERMARK:
        return
    if layout.partitions not in (None, len(messages)) and summary.rows:
        _log.warning(
            "the rows were put into %d partitions by ticket, and written in %d: a step between the two must neither "
            "move nor reorder rows, or order is lost",
            layout.partitions,
            len(messages),
        )
    guard = guard_of(options.stream, run, options.guard_key)
    try:
        with client(options.url, timeout_s=ANSWER_TIMEOUT_S) as connected:
            settle_push(connected, guard, epoch, len(messages), summary.text, life_s)
    except (redis.RedisError, OSError) as error:
        _log.warning("the guard was not settled: %s", unavailable(options.url, error))


def _settle_attempt(link: Link, guard: str, epoch: int) -> None:
    """Lets the guard of an attempt expire soon. All its rows are written: an error here must not repeat it."""
    try:
        settle_push(link.client(), guard, epoch, 1, "{}", _ATTEMPT_GUARD_S)
    except (redis.RedisError, OSError, TicketBridgeError, Trouble) as error:
        _log.warning("the guard of an attempt was not settled, and stays for guardTtl: %s", error)


def _open(link: Link, options: WriteOptions) -> None:
    """Connects. Waits for a short time only."""
    patience = Patience(min(FIRST_CONNECTION_S, options.max_wait), lambda _why, _for_s: None)
    while True:
        try:
            link.client()
            return
        except Trouble as trouble:
            patience.wait(str(trouble), _not_reached(options))


def _not_reached(options: WriteOptions) -> Callable[[str], TicketBridgeError]:
    return lambda why: ServerUnavailable(f"no Redis at {options.shown_url}: {why}")


def _tickets(options: WriteOptions) -> Tickets:
    """Where the last sequence numbers of tickets are kept."""
    prefix = options.guard_key or push_prefix(options.stream)
    return Tickets(options.stream, prefix, options.high_water, options.guard_ttl)


def _noting(link: Link, options: WriteOptions, who: str) -> Callable[[str, float], None]:
    """Notes on the server which partition waits and why, for ``bridge.spark.write.guard.waiting``, if the server
    answers.
    """

    def note(why: str, for_s: float) -> None:
        if link.idle:
            with suppress(redis.RedisError, OSError, TicketBridgeError):
                note_wait(link.client(), options.stream, who, why, int(for_s * 1000))

    return note
