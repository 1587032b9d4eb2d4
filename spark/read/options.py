"""The options of a read from a ``redisstream``, checked once, before Spark starts a task.

``url``, ``stream`` and ``fields`` are options of a write too (``bridge.spark.wire.options``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.address import without_secrets
from bridge.spark.wire.entry_ids import LAST, ZERO, EntryId
from bridge.spark.wire.options import (
    DEFAULT_STREAM,
    DEFAULT_URL,
    READ_ONLY,
    SHARED,
    Option,
    checked_values,
    positive,
    text,
)

#: What can be read: the values of the option ``table``.
MESSAGES, HISTORY, DEAD = "messages", "history", "dead"


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read. One attribute per option; ``READ_OPTIONS`` has the names that users write."""

    #: Where the server is. Never printed: it may hold a password.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: The stream to read.
    stream: str = DEFAULT_STREAM
    #: What of the stream: its messages, or the history or the dead letters of one of its groups.
    table: str = MESSAGES
    #: The consumer group whose history or dead letters are read. Empty for messages.
    group: str = ""
    #: The fields that become columns, when no schema is given. Empty: those of a message, and a map of all others.
    fields: tuple[str, ...] = ()
    #: The first id to read. None: only entries that are added after a streaming query begins.
    starting_id: EntryId | None = ZERO
    #: The last id to read, of a batch. ``LAST``: the last entry when the read is planned.
    ending_id: EntryId = LAST
    #: Most rows of one epoch of a streaming query. None: all.
    max_rows: int | None = None
    #: How many tasks read. None: it follows from the number of entries.
    partitions: int | None = None
    #: Whether to fail when entries that were to be read are gone; otherwise a warning is logged and the read goes on.
    fail_on_data_loss: bool = True

    @property
    def shown_url(self) -> str:
        """The server's address without user, password and query, fit for errors and logs."""
        return without_secrets(self.url)


def _starting(name: str, value: str) -> EntryId | None:
    text = value.strip().lower()
    if text == "latest":
        return None
    return ZERO if text == "earliest" else _id(name, value, "earliest, latest or an id")


def _ending(name: str, value: str) -> EntryId:
    if value.strip().lower() == "latest":
        return LAST
    end = _id(name, value, "latest or an id")
    # As in XRANGE, a time alone means all of that millisecond.
    return end if "-" in value else EntryId(end.ms, LAST.seq)


def _id(name: str, value: str, allowed: str) -> EntryId:
    try:
        return EntryId.of(value.strip())
    except ValueError:
        raise ConfigurationError(f"option {name} must be {allowed} like 1700000000000-0, not {value!r}") from None


def _table(name: str, value: str) -> str:
    known = (MESSAGES, HISTORY, DEAD)
    if value.strip().lower() not in known:
        raise ConfigurationError(f"option {name} must be {MESSAGES}, {HISTORY} or {DEAD}, not {value!r}")
    return value.strip().lower()


def _truth(name: str, value: str) -> bool:
    values = {"true": True, "false": False}
    if value.strip().lower() not in values:
        raise ConfigurationError(f"option {name} must be true or false, not {value!r}")
    return values[value.strip().lower()]


#: Option name as users write it → attribute of ``ReadOptions`` and the function that checks its value.
READ_OPTIONS: dict[str, Option] = {
    **SHARED,
    "table": ("table", _table),
    "group": ("group", text),
    "startingId": ("starting_id", _starting),
    "endingId": ("ending_id", _ending),
    "maxRowsPerTrigger": ("max_rows", positive),
    "numPartitions": ("partitions", positive),
    "failOnDataLoss": ("fail_on_data_loss", _truth),
}
assert set(READ_OPTIONS) == {*SHARED, *READ_ONLY}


def parse_read(given: Mapping[str, str]) -> ReadOptions:
    """The options of one read.

    Raises ``ConfigurationError`` with one line for an unknown name, for a name that only a write knows, for an
    impossible value, and for a group that is missing or of no use. The value of ``url`` is in no error.
    """
    options = ReadOptions(**checked_values(given, READ_OPTIONS, foreign="is for writing; a read does not know it"))
    if options.table != MESSAGES and not options.group:
        raise ConfigurationError(f"option group is missing: table={options.table} is that of one consumer group")
    if options.table == MESSAGES and options.group:
        raise ConfigurationError("option group is for table=history and table=dead; messages belong to no group")
    return options
