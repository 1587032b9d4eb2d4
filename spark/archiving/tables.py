r"""The tables of an archive: from the entries of a lane's streams to rows that keep their meaning for years.

Times are UTC instants with microseconds. ``date`` is a folder of the archive, and so is ``batch``, the number of the
epoch that wrote the rows. What is no text has no column of its own type here: payloads that are no UTF-8 are null, and
``fields`` has them as ``\x`` and hexadecimal digits, which is never JSON by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from routing.keys import LaneKeys
from spark.wire.entry_ids import LAST_TIME_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Where a row of `routing.history` has what.
_MESSAGE, _TICKET, _TASK, _CONSUMER, _ATTEMPT, _FENCE, _DISPATCHED_MS, _STARTED_US, _SERVICE_MS, _WHAT = range(10)
#: How a dead letter names the fields of an entry that could not be processed.
_CAME = "field:"
_PAYLOAD = "payload"


@dataclass(frozen=True)
class Table:
    """One table of the archive."""

    name: str
    #: The stream that it is made of.
    stream: Callable[[LaneKeys], str]
    #: The columns that are read of that stream.
    schema: str
    #: From those to the rows of the table, with their ``date``.
    rows: Callable[[DataFrame], DataFrame]
    #: Whether entries leave its stream as a matter of course: what is done leaves a lane (`bridge_retention`).
    leaves: bool = False


def history(entries: DataFrame) -> DataFrame:
    """One row for each row of the history: what became of one delivery of one message (`routing.history`)."""
    # Numbers as text: as Spark would read them in one array they would all be floats, and fences lose digits.
    rows = fn.from_json("d", "array<array<string>>")
    # Outer: an entry that is no list of rows is seen in the archive, too.
    exploded = entries.select(fn.col("id"), fn.col("enqueued_at"), fn.posexplode_outer(rows).alias("row", "of"))
    of = fn.col("of")
    started_us = of[_STARTED_US].try_cast("long")
    dispatched_ms = of[_DISPATCHED_MS].try_cast("long")
    service_ms = of[_SERVICE_MS].try_cast("double")
    return exploded.select(
        fn.col("id").alias("history_id"),
        fn.col("row").cast("int").alias("row"),
        of[_MESSAGE].alias("message_id"),
        of[_TICKET].alias("ticket_id"),
        of[_TASK].alias("task"),
        of[_CONSUMER].alias("consumer"),
        of[_ATTEMPT].try_cast("int").alias("attempt"),
        of[_FENCE].try_cast("long").alias("fence"),
        _time_of_id(of[_MESSAGE]).alias("enqueued_at"),
        fn.when(dispatched_ms > 0, _time(dispatched_ms)).alias("dispatched_at"),
        fn.when(started_us > 0, fn.timestamp_micros(started_us)).alias("started_at"),
        fn.when(started_us > 0, service_ms).alias("service_ms"),
        of[_WHAT].alias("what"),
        fn.col("enqueued_at").alias("written_at"),
        fn.to_date("enqueued_at").alias("date"),
    )


def dead(letters: DataFrame) -> DataFrame:
    """One row for each dead letter. ``fields``: the entry as it came, of a message that could not be processed."""
    came = fn.map_filter("fields", lambda name, _: name.startswith(_CAME))
    fields = fn.transform_keys(came, lambda name, _: fn.substring(name, len(_CAME) + 1, 1 << 30))

    def of(name: str) -> Column:
        return fn.coalesce(fn.col(name), fn.try_element_at("fields", fn.lit(_CAME + name)))

    at = _time(fn.col("at_ms").try_cast("long"))
    return letters.select(
        fn.col("id").alias("letter_id"),
        "message_id",
        _shown(of("ticket_id")).alias("ticket_id"),
        _shown(of("task")).alias("task"),
        _text(of(_PAYLOAD)).alias(_PAYLOAD),
        "reason",
        "error",
        "traceback",
        fn.col("attempts").try_cast("int").alias("attempts"),
        "consumer",
        fn.col("fence").try_cast("long").alias("fence"),
        at.alias("at"),
        _with_payload(fn.transform_values(fields, lambda _, value: _shown(value))).alias("fields"),
        fn.to_date(at).alias("date"),
    )


def messages(entries: DataFrame) -> DataFrame:
    """One row for each message. ``fields``: the fields beside ticket, task and payload."""
    return entries.select(
        fn.col("id").alias("message_id"),
        "ticket_id",
        "task",
        _text(fn.col(_PAYLOAD)).alias(_PAYLOAD),
        _with_payload(fn.col("fields")).alias("fields"),
        "enqueued_at",
        fn.to_date("enqueued_at").alias("date"),
    )


def _text(value: Column) -> Column:
    """Bytes as text; null where they are none."""
    return fn.try_validate_utf8(value.cast("string"))


def _hex(value: Column) -> Column:
    return fn.concat(fn.lit("\\x"), fn.lower(fn.hex(value)))


def _shown(value: Column) -> Column:
    """Bytes as text; in hexadecimal where they are none."""
    return fn.coalesce(_text(value), _hex(value))


def _with_payload(fields: Column) -> Column:
    """The fields, with the payload among them where it has no column since it is no text."""
    payload = fn.col(_PAYLOAD)
    lacking = payload.isNotNull() & _text(payload).isNull()
    return fn.when(lacking, fn.map_concat(fields, fn.create_map(fn.lit(_PAYLOAD), _hex(payload)))).otherwise(fields)


def _time_of_id(id_: Column) -> Column:
    return _time(fn.split(id_, "-")[0].try_cast("long"))


def _time(ms: Column) -> Column:
    return fn.when(ms.between(0, LAST_TIME_MS), fn.timestamp_millis(ms))


_LETTER = (
    "id STRING, message_id STRING, reason STRING, error STRING, traceback STRING, attempts STRING, at_ms STRING, "
    "ticket_id BINARY, task BINARY, payload BINARY, consumer STRING, fence STRING, fields MAP<STRING, BINARY>"
)
_MESSAGE_COLUMNS = (
    "id STRING, ticket_id STRING, task STRING, payload BINARY, fields MAP<STRING, STRING>, enqueued_at TIMESTAMP"
)

TABLES = (
    Table("history", lambda keys: keys.history, "id STRING, d STRING, enqueued_at TIMESTAMP", history),
    Table("dead", lambda keys: keys.dead, _LETTER, dead),
    Table("messages", lambda keys: keys.stream, _MESSAGE_COLUMNS, messages, leaves=True),
)
