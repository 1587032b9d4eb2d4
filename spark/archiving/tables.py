r"""The tables of an archive: their columns, and how each is made from entries of a stream, its history or dead letters.

The bridge keeps a stream id in a partition's history and dead letters. Here each id names its partition
(``1700000000000-0@p3``), as it does wherever the bridge shows one: two partitions may have the same stream id.

Times are UTC instants with microseconds. ``date`` is a folder of the archive, and so is ``batch``, the number of the
epoch that wrote the rows. Bytes that are not UTF-8 have no column of their own type: such a payload is null, and
``fields`` has it as ``\x`` and hexadecimal digits, which is never JSON by accident.

Columns are made by functions, since PySpark makes a column only where Java runs, and names and types are needed before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from bridge.routing.partitions import AT
from bridge.spark.read.options import DEAD, HISTORY, MESSAGES
from bridge.spark.wire.entry_ids import LAST_TIME_MS
from bridge.spark.write.message_options import NOT_PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Where a row of `bridge.routing.history` has what.
_MESSAGE, _TICKET, _TASK, _CONSUMER, _ATTEMPT, _FENCE, _DISPATCHED_MS, _STARTED_US, _SERVICE_MS, _WHAT, _WHY = range(11)
#: The longest time that something can have taken: 100 years.
_LONGEST_MS = 100 * 36525 * 864_000
#: How a dead letter names the fields of an entry that could not be processed.
_CAME = "field:"
_PAYLOAD = "payload"


@dataclass(frozen=True)
class Kept:
    """A column of a table: its name, its type, and how it is made of an entry."""

    name: str
    kind: str
    make: Callable[[], Column]
    #: Whether it is made again from the other columns when the table is read: older files have no such column.
    again: bool = False
    #: Whether it is null where older files have no such column.
    later: bool = False


@dataclass(frozen=True)
class Table:
    """One table of the archive."""

    #: Also the value of the data source's option ``table``: what the table is made of.
    name: str
    #: The columns that are read of the data source.
    schema: str
    #: The columns that the archive keeps.
    columns: tuple[Kept, ...]
    #: The time whose date is the folder of a row.
    time: str
    #: What is done with the entries before the columns are made.
    prepare: Callable[[DataFrame], DataFrame] = lambda entries: entries
    #: Whether entries leave it regularly: a lane drops messages that are done (`bridge_retention`), and operators
    #: replay or drop dead letters.
    leaves: bool = False

    @property
    def types(self) -> dict[str, str]:
        """The type of each column, by name; ``date`` and ``batch`` are not among them."""
        return {column.name: column.kind for column in self.columns}

    def made_again(self) -> dict[str, Column]:
        """The columns that are made from the others when the table is read, by name."""
        return {column.name: column.make() for column in self.columns if column.again}

    def rows(self, entries: DataFrame) -> DataFrame:
        """The rows of the table, with their ``date``, from entries with the columns of ``schema``."""
        made = self.prepare(entries).select(
            *(column.make().cast(column.kind).alias(column.name) for column in self.columns)
        )
        return made.withColumn("date", fn.to_date(self.time))


def _each_row(entries: DataFrame) -> DataFrame:
    """One row for each row of the history, in the column ``of``: what became of one delivery
    (`bridge.routing.history`).
    """
    # Numbers as text: as Spark would read them in one array they would all be floats, and fences lose digits.
    rows = fn.from_json("d", "array<array<string>>")
    # Outer: an entry that is no list of rows is seen in the archive, too.
    return entries.select("id", "enqueued_at", fn.posexplode_outer(rows).alias("row", "of"))


def _of(place: int) -> Callable[[], Column]:
    """A member of a row of the history, as text; null in a row that lacks it."""
    return lambda: fn.get("of", place)


def _with_partition(message_id: Column) -> Column:
    """A stream id of the partition that the entry is of, as a message id: with what follows the entry's own id."""
    return fn.concat(message_id, fn.regexp_extract("id", f"{AT}.*", 0))


def _number(place: int, kind: str) -> Column:
    return _of(place)().try_cast(kind)


def _started_at() -> Column:
    started = _number(_STARTED_US, "long")
    return fn.when(started.between(1, 1000 * LAST_TIME_MS), fn.timestamp_micros(started))


def _service_ms() -> Column:
    """Null if it never ran, and for what is no time (NaN, 1e308): a report counts with it."""
    took = _number(_SERVICE_MS, "double")
    return fn.when((_number(_STARTED_US, "long") > 0) & took.between(0, _LONGEST_MS), took)


def _col(name: str) -> Callable[[], Column]:
    return lambda: fn.col(name)


def _text(value: Column) -> Column:
    """Bytes as text; null where they are not text."""
    return fn.try_validate_utf8(value.cast("string"))


def _hex(value: Column) -> Column:
    return fn.concat(fn.lit("\\x"), fn.lower(fn.hex(value)))


def _shown(value: Column) -> Column:
    """Bytes as text; in hexadecimal where they are not text."""
    return fn.coalesce(_text(value), _hex(value))


def _with_payload(fields: Column) -> Column:
    """The fields. A payload that is not text has no column, and is among them."""
    payload = fn.col(_PAYLOAD)
    lacking = payload.isNotNull() & _text(payload).isNull()
    return fn.when(lacking, fn.map_concat(fields, fn.create_map(fn.lit(_PAYLOAD), _hex(payload)))).otherwise(fields)


def _time_of_id(id_: Column) -> Column:
    return _time(fn.split(id_, "-")[0].try_cast("long"))


def _time_after_0(ms: Column) -> Column:
    """A time; null for 0, with which the history says that there was none."""
    return fn.when(ms > 0, _time(ms))


def _time(ms: Column) -> Column:
    return fn.when(ms.between(0, LAST_TIME_MS), fn.timestamp_millis(ms))


def _came(name: str) -> Column:
    """A field of a letter's message; of one that could not be processed, the field of the entry as it came."""
    return fn.coalesce(fn.col(name), fn.try_element_at("fields", fn.lit(_CAME + name)))


def _fields_that_came() -> Column:
    """The entry as it came, of a message that could not be processed."""
    came = fn.map_filter("fields", lambda name, _: name.startswith(_CAME))
    fields = fn.transform_keys(came, lambda name, _: fn.substring(name, len(_CAME) + 1, 1 << 30))
    return _with_payload(fn.transform_values(fields, lambda _, value: _shown(value)))


def _cut_bytes() -> Column:
    """How much of its message a letter lacks. 0: nothing."""
    of_payload = fn.col("payload_bytes").try_cast("long") - fn.octet_length(_PAYLOAD)
    return fn.coalesce(fn.col("cut_bytes").try_cast("long"), of_payload, fn.lit(0))


def _option(name: str) -> Callable[[], Column]:
    """An option of a message (``bridge.routing.message_options``) as a number; null for none and for no number."""

    def make() -> Column:
        value = fn.try_element_at("fields", fn.lit(name)).try_cast("long")
        if name in NOT_PAYLOAD:
            return value
        payload = fn.map_contains_key(fn.coalesce("fields", fn.create_map()), fn.lit(_PAYLOAD))
        return fn.when(payload | fn.col(_PAYLOAD).isNotNull(), value)

    return make


def _time_option(name: str) -> Callable[[], Column]:
    return lambda: _time(_option(name)())


TABLES = (
    Table(
        HISTORY,
        "id STRING, d STRING, enqueued_at TIMESTAMP",
        (
            Kept("history_id", "string", _col("id")),
            Kept("row", "int", _col("row")),
            Kept("message_id", "string", lambda: _with_partition(_of(_MESSAGE)())),
            Kept("ticket_id", "string", _of(_TICKET)),
            Kept("task", "string", _of(_TASK)),
            Kept("consumer", "string", _of(_CONSUMER)),
            Kept("attempt", "int", lambda: _number(_ATTEMPT, "int")),
            Kept("fence", "long", lambda: _number(_FENCE, "long")),
            Kept("enqueued_at", "timestamp", lambda: _time_of_id(_of(_MESSAGE)())),
            Kept("dispatched_at", "timestamp", lambda: _time_after_0(_number(_DISPATCHED_MS, "long"))),
            Kept("started_at", "timestamp", _started_at),
            Kept("service_ms", "double", _service_ms),
            Kept("what", "string", _of(_WHAT)),
            Kept("written_at", "timestamp", _col("enqueued_at")),
            Kept("why", "string", _of(_WHY), later=True),
        ),
        time="written_at",
        prepare=_each_row,
    ),
    Table(
        DEAD,
        "id STRING, message_id STRING, reason STRING, error STRING, traceback STRING, attempts STRING, at_ms STRING, "
        "ticket_id BINARY, task BINARY, payload BINARY, payload_bytes STRING, cut_bytes STRING, consumer STRING, "
        "fence STRING, fields MAP<STRING, BINARY>",
        (
            Kept("letter_id", "string", _col("id")),
            Kept("message_id", "string", lambda: _with_partition(fn.col("message_id"))),
            Kept("ticket_id", "string", lambda: _shown(_came("ticket_id"))),
            Kept("task", "string", lambda: _shown(_came("task"))),
            Kept(_PAYLOAD, "string", lambda: _text(_came(_PAYLOAD))),
            Kept("reason", "string", _col("reason")),
            Kept("error", "string", _col("error")),
            Kept("traceback", "string", _col("traceback")),
            Kept("attempts", "int", lambda: fn.col("attempts").try_cast("int")),
            Kept("consumer", "string", _col("consumer")),
            Kept("fence", "long", lambda: fn.col("fence").try_cast("long")),
            Kept("at", "timestamp", lambda: _time(fn.col("at_ms").try_cast("long"))),
            Kept("fields", "map<string,string>", _fields_that_came),
            Kept("cut_bytes", "long", _cut_bytes, later=True),
        ),
        time="at",
        leaves=True,
    ),
    Table(
        MESSAGES,
        "id STRING, ticket_id STRING, task STRING, payload BINARY, fields MAP<STRING, STRING>, enqueued_at TIMESTAMP",
        (
            Kept("message_id", "string", _col("id")),
            Kept("ticket_id", "string", _col("ticket_id")),
            Kept("task", "string", _col("task")),
            Kept(_PAYLOAD, "string", lambda: _text(fn.col(_PAYLOAD))),
            #: Beside ticket, task and payload.
            Kept("fields", "map<string,string>", lambda: _with_payload(fn.col("fields"))),
            Kept("enqueued_at", "timestamp", _col("enqueued_at")),
            #: Options. They are in ``fields``, too, as the entry has them.
            Kept("due", "timestamp", _time_option("due"), again=True),
            Kept("hold", "boolean", lambda: _option("hold")() == 1, again=True),
            Kept("max_attempts", "int", _option("max_attempts"), again=True),
            Kept("timeout_ms", "long", _option("timeout"), again=True),
            Kept("expires", "timestamp", _time_option("expires"), again=True),
            Kept("priority", "int", _option("priority"), again=True),
        ),
        time="enqueued_at",
        leaves=True,
    ),
)
#: The columns of each table with their types.
COLUMNS = {table.name: table.types for table in TABLES}
#: Table -> its columns that are made from the others when it is read.
AGAIN = {table.name: table.made_again for table in TABLES}
#: Table -> its columns that are null in older files.
LATER = {table.name: tuple(column.name for column in table.columns if column.later) for table in TABLES}
