"""The options of the ``redisstream`` data source, checked once, before Spark starts a task.

Spark hands options over as strings under lower-cased names. Here they become one frozen object; a name that is not
known is refused with the nearest one that is, since a misspelt option that is silently ignored loses order or data
much later, where nobody looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from routing.errors import ConfigurationError
from spark.wire.address import check_url, without_secrets

DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_STREAM = "ticket_stream"
#: Longest ticket in bytes of UTF-8: the contract of the stream, not an option.
MAX_TICKET_BYTES = 512
#: Ten years, in seconds: what is kept for longer is kept for ever, and servers refuse times that are too large.
MAX_GUARD_TTL_S = 10 * 366 * 24 * 3600
#: Fields of a row: a script cannot put more words into one command.
MAX_FIELDS = 3900
#: A server works on one chunk at a time, for about 3 µs a row.
MAX_CHUNK_ROWS = 10_000


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
    """What a write needs to know. One attribute per option; ``OPTIONS`` holds the names that users write."""

    #: Where the server is. Never printed: it may hold a password.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: The stream to append to.
    stream: str = DEFAULT_STREAM
    #: The column that becomes the field ``ticket_id``.
    key_column: str = "ticket_id"
    #: A whole-number column that rises within each ticket; when named, rows that break this are refused.
    seq_column: str | None = None
    #: The columns that become fields of the same name, after ``ticket_id``. Empty: all but key and sequence.
    fields: tuple[str, ...] = ()
    #: Columns that the writer sorts a whole partition by. Empty: rows are sent as Spark hands them over.
    order_by: tuple[str, ...] = ()
    #: Rows per chunk: what the server appends in one step.
    chunk_size: int = 500
    #: Chunks that may be unanswered at once.
    window: int = 8
    #: Largest payload in bytes; what is over it is refused, as the bridge would refuse it.
    max_payload: int = 1024 * 1024
    #: What keeps a row from being written twice.
    idempotence: Idempotence = Idempotence.WATERMARK
    #: Names a batch: what a batch of this name has written is not written again. None: a fresh one for each write.
    run_id: str | None = None
    #: Beginning of the names of guards. None: the stream's own (``routing.keys.push_guard``).
    guard_key: str | None = None
    #: How long a guard is kept after it was last written to, in seconds.
    guard_ttl: int = 7 * 24 * 3600
    #: Entries in the stream at which the writer waits. None: it never waits for room in the stream.
    high_water: int | None = None
    #: Longest time without progress, in seconds: for room in the stream, for memory, for a server that is away.
    max_wait: int = 600

    @property
    def shown_url(self) -> str:
        """The server's address without user, password and query, fit for errors and logs."""
        return without_secrets(self.url)


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty")
    return value.strip()


def _url(name: str, value: str) -> str:
    return check_url(_text(name, value), called=f"option {name}")


def _columns(name: str, value: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in value.split(","))
    if not all(columns):
        raise ConfigurationError(f"option {name} must be column names separated by commas, not {value!r}")
    doubled = sorted({column for column in columns if columns.count(column) > 1})
    if doubled:
        raise ConfigurationError(f"option {name} names column {doubled[0]!r} twice")
    return columns


def _positive(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"option {name} must be a whole number of at least 1, not {value!r}")
    return number


def _chunk_size(name: str, value: str) -> int:
    number = _positive(name, value)
    if number > MAX_CHUNK_ROWS:
        raise ConfigurationError(
            f"option {name} may be {MAX_CHUNK_ROWS} at most, not {number}: the server does nothing else meanwhile"
        )
    return number


def _guard_ttl(name: str, value: str) -> int:
    number = _positive(name, value)
    if number > MAX_GUARD_TTL_S:
        raise ConfigurationError(f"option {name} may be {MAX_GUARD_TTL_S} seconds (ten years) at most, not {number}")
    return number


def _kind(name: str, value: str) -> Idempotence:
    try:
        return Idempotence(value.strip().lower())
    except ValueError:
        raise ConfigurationError(f"option {name} must be watermark, ticket or none, not {value!r}") from None


#: Option name as users write it → attribute of ``WriteOptions`` and the function that checks its value.
OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "url": ("url", _url),
    "stream": ("stream", _text),
    "keyColumn": ("key_column", _text),
    "seqColumn": ("seq_column", _text),
    "fields": ("fields", _columns),
    "orderBy": ("order_by", _columns),
    "chunkSize": ("chunk_size", _chunk_size),
    "window": ("window", _positive),
    "maxPayload": ("max_payload", _positive),
    "idempotence": ("idempotence", _kind),
    "runId": ("run_id", _text),
    "guardKey": ("guard_key", _text),
    "guardTtl": ("guard_ttl", _guard_ttl),
    "highWater": ("high_water", _positive),
    "maxWait": ("max_wait", _positive),
}
#: What only a read knows. ``spark.read.options`` says what they mean.
READ_ONLY = ("startingId", "endingId", "maxRowsPerTrigger", "numPartitions", "failOnDataLoss")
#: What Spark hands to a sink of its own: it is no concern of ours.
_SPARKS = ("checkpointlocation", "queryname")

_BY_LOWER_NAME = {name.lower(): name for name in OPTIONS}
_READ_BY_LOWER_NAME = {name.lower(): name for name in READ_ONLY}


def nearest(name: str, known: list[str]) -> str:
    """``'; did you mean X?'`` for the known name closest to ``name``, else the list of what is known."""
    lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), list(lower), n=1)
    if close:
        return f"; did you mean {lower[close[0]]}?"
    return f"; known are {', '.join(known)}" if known else "; there is none at all"


def check_names(given: Mapping[str, str]) -> None:
    """Raises ``ConfigurationError`` for a name that neither a write nor a read knows."""
    for name in given:
        if name.lower() not in (*_BY_LOWER_NAME, *_READ_BY_LOWER_NAME, *_SPARKS):
            raise ConfigurationError(f"option {name} is unknown{nearest(name, [*OPTIONS, *READ_ONLY])}")


def parse(given: Mapping[str, str]) -> WriteOptions:
    """The options of one write.

    Raises ``ConfigurationError`` with one line for an unknown name, a name that only a read knows, an impossible value
    and options that do not go together. The value of ``url`` is in no error.
    """
    check_names(given)
    options = WriteOptions()
    for given_name, value in given.items():
        if given_name.lower() in _SPARKS:
            continue
        name = _BY_LOWER_NAME.get(given_name.lower())
        if name is None:
            raise ConfigurationError(
                f"option {_READ_BY_LOWER_NAME[given_name.lower()]} is for reading; a write does not know it"
            )
        attribute, check = OPTIONS[name]
        options = replace(options, **{attribute: check(name, str(value))})
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
    """The same for a streaming write, in which Spark names what must not be written twice."""
    options = parse(given)
    if options.run_id is not None:
        raise ConfigurationError("runId is for batch writes; a streaming query is named by its checkpoint")
    return options
