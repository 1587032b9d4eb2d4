"""The options of a write to a ``redisstream``, checked once, before Spark starts a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.address import without_secrets
from bridge.spark.wire.options import (
    DEFAULT_STREAM,
    DEFAULT_URL,
    SHARED,
    WRITE_ONLY,
    Option,
    checked_values,
    column,
    columns,
    positive,
    text,
)
from bridge.spark.write.limits import MAX_CHUNK_ROWS, MAX_GUARD_TTL_S


class Idempotence(StrEnum):
    """What keeps a row from being written twice."""

    #: How many rows of each partition were written; the rows of a partition must come in the same order again.
    WATERMARK = "watermark"
    #: The last sequence number of each ticket; rows may come in any partition.
    TICKET = "ticket"
    #: Nothing: each attempt writes all its rows.
    NONE = "none"


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write. One attribute per option; ``OPTIONS`` has the names that users write."""

    #: Where the server is. Never printed: it may hold a password.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: The stream to append to.
    stream: str = DEFAULT_STREAM
    #: The column that becomes the field ``ticket_id``.
    key_column: str = "ticket_id"
    #: A column of whole numbers that rise within each ticket. If it is named, rows that break this are refused.
    seq_column: str | None = None
    #: The columns that become fields of the same name, after ``ticket_id``. Empty: all but key and sequence.
    fields: tuple[str, ...] = ()
    #: Columns by which the writer sorts a whole partition. Empty: rows are sent in the order in which they come.
    order_by: tuple[str, ...] = ()
    #: Rows of a chunk, which the server appends in one step.
    chunk_size: int = 500
    #: Chunks that may be unanswered at once.
    window: int = 8
    #: Largest payload in bytes. A larger one is refused, as the bridge would refuse it.
    max_payload: int = 1024 * 1024
    #: What keeps a row from being written twice.
    idempotence: Idempotence = Idempotence.WATERMARK
    #: The name of a batch: rows that a batch of this name has written are not written again. None: each write has its
    #: own.
    run_id: str | None = None
    #: Beginning of the names of guards. None: the stream's own (``bridge.routing.keys.push_guard``).
    guard_key: str | None = None
    #: How long a guard is kept after it was last written to, in seconds.
    guard_ttl: int = 7 * 24 * 3600
    #: Entries in the stream at which the writer waits for room. None: it never waits for room.
    high_water: int | None = None
    #: Longest wait without progress, in seconds: for room in the stream, for memory, for a server that is away.
    max_wait: int = 600

    @property
    def shown_url(self) -> str:
        """The server's address without user, password and query, fit for errors and logs."""
        return without_secrets(self.url)


def _chunk_size(name: str, value: str) -> int:
    number = positive(name, value)
    if number > MAX_CHUNK_ROWS:
        raise ConfigurationError(
            f"option {name} may be {MAX_CHUNK_ROWS} at most, not {number}: the server does nothing else meanwhile"
        )
    return number


def _guard_ttl(name: str, value: str) -> int:
    number = positive(name, value)
    if number > MAX_GUARD_TTL_S:
        raise ConfigurationError(f"option {name} may be {MAX_GUARD_TTL_S} seconds (ten years) at most, not {number}")
    return number


def _kind(name: str, value: str) -> Idempotence:
    try:
        return Idempotence(value.strip().lower())
    except ValueError:
        raise ConfigurationError(f"option {name} must be watermark, ticket or none, not {value!r}") from None


#: Option name as users write it → attribute of ``WriteOptions`` and the function that checks its value.
OPTIONS: dict[str, Option] = {
    **SHARED,
    "keyColumn": ("key_column", column),
    "seqColumn": ("seq_column", column),
    "orderBy": ("order_by", columns),
    "chunkSize": ("chunk_size", _chunk_size),
    "window": ("window", positive),
    "maxPayload": ("max_payload", positive),
    "idempotence": ("idempotence", _kind),
    "runId": ("run_id", text),
    "guardKey": ("guard_key", text),
    "guardTtl": ("guard_ttl", _guard_ttl),
    "highWater": ("high_water", positive),
    "maxWait": ("max_wait", positive),
}
assert set(OPTIONS) == {*SHARED, *WRITE_ONLY}


def parse(given: Mapping[str, str]) -> WriteOptions:
    """The options of one write.

    Raises ``ConfigurationError`` with one line for an unknown name, a name that only a read knows, an impossible value
    and options that do not go together. The value of ``url`` is in no error.
    """
    options = WriteOptions(**checked_values(given, OPTIONS, foreign="is for reading; a write does not know it"))
    if options.idempotence is Idempotence.TICKET and options.seq_column is None:
        raise ConfigurationError("idempotence=ticket needs seqColumn: the sequence tells what was written already")
    if options.guard_ttl <= 2 * options.max_wait:
        raise ConfigurationError(
            f"guardTtl ({options.guard_ttl}) must be more than twice maxWait ({options.max_wait}): a guard that "
            "expires while its writer waits no longer guards"
        )
    if options.run_id is not None and options.idempotence is not Idempotence.WATERMARK:
        raise ConfigurationError(f"runId has no meaning with idempotence={options.idempotence}; leave it out")
    return options


def parse_streaming(given: Mapping[str, str]) -> WriteOptions:
    """The options of a streaming write, which is named by Spark. Raises as ``parse`` does, and for ``runId``."""
    options = parse(given)
    if options.run_id is not None:
        raise ConfigurationError("runId is for batch writes; a streaming query is named by its checkpoint")
    return options
