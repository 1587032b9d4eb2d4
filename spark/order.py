"""A DataFrame arranged so that writing it keeps each ticket in order.

Two things make the order: all rows of a ticket are in one partition, which one task writes over one connection, and
that partition is sorted so that the sequence rises within each ticket. The number of partitions is said outright, since
otherwise Spark merges partitions as it sees fit.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from spark.eventlog import column

_CLOCK = "__ticket_clock"


def in_ticket_order(rows: DataFrame, *, key: str, sequence: str, partitions: int, time: str | None = None) -> DataFrame:
    """The rows in ``partitions`` partitions by ticket, each sorted so that ``sequence`` rises within a ticket.

    Without ``time``, all first events come first, then all second ones. With ``time`` (a timestamp, or text that can be
    read as one) tickets interleave as in the log: rows are sorted by the latest time that their ticket has seen so far,
    then by sequence. That clock never goes back within a ticket, whatever the log's times do, so the sequence decides
    there. A time that cannot be read leaves the clock where it was.
    """
    placed = rows.repartition(partitions, column(key))
    if time is None:
        return placed.sortWithinPartitions(column(sequence), column(key))
    until_here = (
        Window.partitionBy(column(key))
        .orderBy(column(sequence))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    clock = fn.max(column(time).try_cast("timestamp")).over(until_here)
    ordered = placed.withColumn(_CLOCK, clock).sortWithinPartitions(column(_CLOCK), column(sequence), column(key))
    return ordered.drop(_CLOCK)
