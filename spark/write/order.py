"""Arranges a DataFrame so that writing it keeps each ticket in order, and so that every attempt has the same rows.

Two things keep the order. All rows of a ticket are in one partition, which one task writes over one connection. And
that partition is sorted so that the sequence rises within each ticket. The number of partitions is given explicitly,
since Spark would merge partitions otherwise. It is noted in the metadata of the key's column, where the writer finds it
and notices a second attempt with another number.

Rows that cannot be written are found here too. The shuffle is a barrier: no task after it starts before all tasks
before it have ended. So when a row is refused before the shuffle, nothing of the job is written.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from bridge.spark.write.columns import column, require_column
from bridge.spark.write.layout import PARTITIONS
from bridge.spark.write.limits import REFUSED
from bridge.spark.write.rejects import NO_MORE, Checks, refusal

_CLOCK = "__ticket_clock"


def by_ticket(
    rows: DataFrame, *, key: str, partitions: int, sequence: str | None = None, checks: Checks = NO_MORE
) -> DataFrame:
    """The rows in ``partitions`` partitions by ticket, not sorted. For a streaming write, whose writer sorts.

    A row fails the job before anything is written if its ticket is missing, empty or too long, if it has no
    ``sequence``, or if one of the other ``checks`` finds it. Raises ``ConfigurationError`` for a column that does not
    exist, and for a ``sequence`` that does not hold whole numbers.
    """
    why = refusal(rows, key=key, sequence=sequence, checks=checks)
    # The check is in the key, which the shuffle needs: a column of its own could be optimised away.
    checked = fn.when(why.isNotNull(), fn.raise_error(fn.concat(fn.lit(REFUSED), why))).otherwise(column(key))
    kind = rows.schema[key].dataType
    named = checked.cast(kind).alias(key, metadata={PARTITIONS: partitions})
    kept = [named if name == key else column(name) for name in rows.columns]
    return rows.select(*kept).repartition(partitions, column(key))


def in_ticket_order(
    rows: DataFrame,
    *,
    key: str,
    sequence: str,
    partitions: int,
    time: str | None = None,
    checks: Checks = NO_MORE,
) -> DataFrame:
    """The rows in ``partitions`` partitions by ticket, each sorted so that ``sequence`` rises within a ticket.

    Without ``time``, the first events of all tickets come first, then all second ones. With ``time`` (a timestamp, or
    text that can be read as one) tickets interleave as in the log: rows are sorted by the latest time that their ticket
    has had so far, then by sequence. That clock never goes back within a ticket, so within a ticket the sequence
    decides. A time that cannot be read leaves the clock unchanged.

    Refuses what ``by_ticket`` refuses, before anything is written, and raises what it raises.
    """
    placed = by_ticket(rows, key=key, partitions=partitions, sequence=sequence, checks=checks)
    if time is None:
        return placed.sortWithinPartitions(column(sequence), column(key))
    require_column(rows, "time", time)
    until_here = (
        Window.partitionBy(column(key))
        .orderBy(column(sequence))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    clock = fn.max(column(time).try_cast("timestamp")).over(until_here)
    ordered = placed.withColumn(_CLOCK, clock).sortWithinPartitions(column(_CLOCK), column(sequence), column(key))
    return ordered.drop(_CLOCK)
