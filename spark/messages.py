"""Rows of an event log as messages of the stream: ticket, task and payload."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from routing.errors import InputError
from spark.encoder import KEY_FIELD
from spark.eventlog import column, read_events, require
from spark.refusals import PAYLOAD, TASK

_TIME = "__time"


@dataclass(frozen=True)
class Messages:
    """A DataFrame of messages and the names of its columns."""

    frame: DataFrame
    key: str
    sequence: str
    #: The column that tickets interleave by; None when none was asked for.
    time: str | None
    #: The columns that are fields of an entry, beside the ticket.
    fields: list[str]


def to_messages(
    session: SparkSession,
    path: str,
    *,
    kind: str | None,
    key: str,
    seq: str,
    order: str | None = None,
    task: str | None = None,
    task_column: str | None = None,
) -> Messages:
    """The messages of a log.

    The payload is a JSON object of all columns but the ticket's and the task's. CSV cells are strings in it, empty
    ones too; of JSON lines and Parquet, columns that are null in a row are left out of its object.

    Raises ``InputError`` for a column that is not there. The sequence is read as a whole number: as text, 10 would come
    before 9. One that is none becomes null, which the data source refuses, naming the ticket.
    """
    events = read_events(session, path, kind)
    require(events, "--key", key)
    require(events, "--seq", seq)
    for option, name in (("--order", order), ("--task-column", task_column)):
        if name is not None:
            require(events, option, name)
    rest = [name for name in events.columns if name not in (key, task_column)]
    if not rest:
        raise InputError("the log has no column beside the ticket: there is nothing to send")
    payload = fn.to_json(fn.struct(*(column(name) for name in rest)), {"ignoreNullFields": "true"})
    # Under its own name where that is free, since refusals name it.
    sequence = seq if seq not in (KEY_FIELD, PAYLOAD, TASK, _TIME) else f"{seq} (sequence)"
    columns = [
        column(key).cast("string").alias(KEY_FIELD),
        column(seq).try_cast("long").alias(sequence),
        payload.alias(PAYLOAD),
    ]
    fields = [PAYLOAD]
    if task is not None:
        columns.append(fn.lit(task).alias(TASK))
    elif task_column is not None:
        columns.append(column(task_column).cast("string").alias(TASK))
    if len(columns) > 3:
        fields.insert(0, TASK)
    if order is not None:
        columns.append(column(order).alias(_TIME))
    return Messages(
        frame=events.select(*columns),
        key=KEY_FIELD,
        sequence=sequence,
        time=_TIME if order is not None else None,
        fields=fields,
    )
