"""Rows that cannot be pushed: named in an error, or put into a table with the reason.

Both check the whole log before anything is written. If a bad row were found half way, the first part of the log would
be in the stream. The corrected log is another log, and its push would write that part again.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as fn

from bridge.spark.job.log_columns import MALFORMED
from bridge.spark.pushing.messages import Messages
from bridge.spark.write.columns import column, in_one_line
from bridge.spark.write.refusals import PAYLOAD
from bridge.spark.write.rejects import REASON, ROW, refusal, split_rejects

#: Bad rows that an error names.
NAMED = 3
_TIMES = "__times"


def divided(messages: Messages, *, limit: int) -> tuple[Messages, DataFrame]:
    """The messages that can be pushed, and a table of those that cannot, with a column ``reason``.

    ``limit`` is the largest payload in bytes. If several rows of a ticket have one sequence number, the row whose
    payload sorts first can be pushed. A streaming DataFrame is not searched for such rows.
    """
    frame = messages.frame
    aside = []
    if MALFORMED in frame.columns:
        bad = column(MALFORMED).isNotNull()
        aside.append(frame.where(bad).withColumn(REASON, fn.lit("the row cannot be read")))
        frame = frame.where(~bad)
    good, rejects = split_rejects(frame, key=messages.key, sequence=messages.sequence, checks=messages.checks(limit))
    if not frame.isStreaming and messages.may_tie:
        # Sorted by all that is sent, so that each push of the same log chooses the same row.
        others = (column(name) for name in messages.fields if name != PAYLOAD)
        same = Window.partitionBy(column(messages.key), column(messages.sequence)).orderBy(column(PAYLOAD), *others)
        numbered = good.withColumn(_TIMES, fn.row_number().over(same))
        good = numbered.where(column(_TIMES) == 1).drop(_TIMES)
        aside.append(numbered.where(column(_TIMES) > 1).drop(_TIMES).withColumn(REASON, _tie(messages)))
    for rows in aside:
        rejects = rejects.unionByName(rows)
    return replace(messages, frame=good.drop(MALFORMED)), rejects.withColumnRenamed(MALFORMED, ROW)


def first_reasons(messages: Messages, *, limit: int) -> str:
    """The first few reasons why these messages cannot be pushed; empty if they can.

    Raises Spark's error for a row that cannot be read.
    """
    why = refusal(messages.frame, key=messages.key, sequence=messages.sequence, checks=messages.checks(limit))
    rows = messages.frame.withColumn(REASON, why)
    if messages.may_tie:
        # One pass for both checks.
        alike = rows.groupBy(column(messages.key), column(messages.sequence)).agg(
            fn.max(REASON).alias(REASON), fn.count(fn.lit(1)).alias(_TIMES)
        )
        tie = fn.when(column(_TIMES) > 1, _tie(messages))
        rows = alike.select(fn.coalesce(column(REASON), tie).alias(REASON))
    found = [str(row[REASON]) for row in rows.where(column(REASON).isNotNull()).take(NAMED + 1)]
    reasons = "; ".join(found[:NAMED])
    return f"{reasons}; and more" if len(found) > NAMED else reasons


def keep_rejects(rejects: DataFrame, folder: str, *, run: str) -> int:
    """Writes the rows into ``folder``, each run as a table of its own; returns how many.

    A push of the same name replaces the table of the earlier one, and nothing else. The format is Parquet, or JSON
    lines if the folder's name ends in ``.jsonl``. Without bad rows there is no table. The run's name is quoted, so that
    any name makes one folder within this one.
    """
    # Not isEmpty, which reads no column: Spark refuses that where malformed rows are kept.
    if not rejects.take(1):
        return 0
    counted = Observation("rejected")
    rows = rejects.observe(counted, fn.count(fn.lit(1)).alias("rows"))
    rows.write.format(table_format(folder)).mode("overwrite").save(f"{folder.rstrip('/')}/run={quote(run, safe='')}")
    return int(counted.get["rows"])


def table_format(folder: str) -> str:
    """The format of a table of rejected rows: by the name of its folder."""
    return "json" if folder.rstrip("/").lower().endswith((".json", ".jsonl", ".ndjson")) else "parquet"


def _tie(messages: Messages) -> Column:
    ticket = in_one_line(fn.substring(column(messages.key), 1, 40))
    return fn.concat(
        fn.lit(f"{messages.sequence} does not rise within ticket '"),
        ticket,
        fn.lit("': "),
        column(messages.sequence).cast("string"),
        fn.lit(" comes more than once"),
    )
