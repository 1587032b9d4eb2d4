"""The two DataFrames that every number of a report comes from: deliveries (rows of the history) and messages.

``bridge.spark.reporting.definitions`` says what a message, an execution, a retry, a failure, a loss and the three times
are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from bridge.routing.history import What
from bridge.spark.archiving.reading import Range, id_numbers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Outcomes of a message.
DONE, DROPPED, DEAD, REFUSED, UNDONE, UNKNOWN = "done", "dropped", "dead", "refused", "undone", "unknown"
LEFT_OUT, SKIPPED = "left_out", "skipped"
#: What the last row of a message says, and the outcome that this is. All others are undone.
_OUTCOMES = {
    What.DONE: DONE, What.DROPPED: DROPPED,
    What.DEAD: DEAD, What.REFUSED: REFUSED, What.LEFT_OUT: LEFT_OUT, What.SKIPPED: SKIPPED,
    What.CANCELLED: LEFT_OUT,
}  # fmt: skip

#: Rows that do not decide the outcome of their message.
_STALE = What.STALE.value
_CAME_AGAIN = (What.FAILED.value, What.NACKED.value, What.LOST.value)
#: Ids from here on, in ms, are times (2001-09-09) …
_FIRST_TIME_MS = 10**12
#: … and from here on they are none; somewhat later, their microseconds would not fit into 64 bits.
_LAST_TIME_MS = 10**14


def deliveries(history: DataFrame, within: Range) -> DataFrame:
    """The history's rows of the messages in a range, with what they count as.

    Columns: ``message_id``, ``ticket_id``, ``task`` (null where the row names none), ``consumer``, ``what``,
    ``place`` (sorts the rows of a message), ``begun`` and ``retry`` (truth values), ``enqueued_us``, ``started_us``,
    ``ended_us``, ``service_us`` and ``written_us`` (whole microseconds, null where not known).
    """
    what = fn.col("what")
    begun = what.isin(What.DONE.value, What.DROPPED.value, *_CAME_AGAIN) | (
        (what == What.DEAD.value) & (fn.col("fence") != 0)
    )
    written = id_numbers(fn.col("history_id"))
    # An archive also has entries that were not lists of rows. They name no message.
    known = fn.col("message_id").isNotNull() & within.holds(fn.col("message_id"))
    rows = history.filter(known).select(
        "message_id",
        *(_named(name).alias(name) for name in ("ticket_id", "task", "consumer")),
        "what",
        fn.struct(written[0].alias("ms"), written[1].alias("seq"), "row").alias("place"),
        begun.alias("begun"),
        _time_of_id(fn.col("message_id")).alias("enqueued_us"),
        fn.when(begun, fn.unix_micros("started_at")).alias("started_us"),
        # As bridge.routing.history computes an end: to the microsecond.
        fn.when(begun & fn.col("started_at").isNotNull(), fn.bround(fn.col("service_ms") * 1000).cast("long")).alias(
            "service_us"
        ),
        fn.unix_micros("written_at").alias("written_us"),
    )
    before = Window.partitionBy("message_id").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    decisive = fn.when(fn.col("begun") | what.isin(What.REPLAYED.value, What.DEAD.value), what)
    last = fn.last(decisive, ignorenulls=True).over(before)
    return rows.withColumn("ended_us", fn.col("started_us") + fn.col("service_us")).withColumn(
        "retry", fn.col("begun") & fn.coalesce(last.isin(*_CAME_AGAIN), fn.lit(False))
    )


def due_times(entries: DataFrame) -> DataFrame:
    """When messages were to be due: ``message_id`` and ``due_us``, of those that said so. ``entries``: the archive's
    table of messages. It lacks messages whose entries left the stream before they were archived.
    """
    return entries.filter(fn.col("due").isNotNull()).select("message_id", fn.unix_micros("due").alias("due_us"))


def messages(rows: DataFrame, due: DataFrame) -> DataFrame:
    """One row per message, from `deliveries` and `due_times`.

    Columns: ``message_id``, ``ticket_id`` and ``task`` (null: no row of it names one), ``outcome``, ``enqueued_us``,
    ``delayed`` (1: it was due later than it was enqueued, else 0), ``first_start_us``, ``waiting_us``,
    ``turnaround_us``, and how many ``executions``, ``retries``, ``failures``, ``losses``, ``returns``, ``replays`` and
    ``stale``.
    """
    what, place = fn.col("what"), fn.col("place")
    last = fn.max_by(what, fn.when(what != _STALE, place))
    outcome = fn.when(last.isNull(), fn.lit(UNKNOWN))
    for said, means in _OUTCOMES.items():
        outcome = outcome.when(last == said.value, fn.lit(means))
    outcome = outcome.otherwise(fn.lit(UNDONE))
    done_end = fn.max(fn.when(what == What.DONE.value, fn.col("ended_us")))
    found = rows.groupBy("message_id").agg(
        fn.max_by("ticket_id", fn.when(fn.col("ticket_id").isNotNull(), place)).alias("ticket_id"),
        fn.max_by("task", fn.when(fn.col("task").isNotNull(), place)).alias("task"),
        outcome.alias("outcome"),
        fn.max("enqueued_us").alias("enqueued_us"),
        fn.min("started_us").alias("first_start_us"),
        done_end.alias("done_end_us"),
        how_many(fn.col("begun")).alias("executions"),
        how_many(fn.col("retry")).alias("retries"),
        how_many(is_failure()).alias("failures"),
        how_many(what == What.LOST.value).alias("losses"),
        how_many(what == What.RETURNED.value).alias("returns"),
        how_many(what == What.REPLAYED.value).alias("replays"),
        how_many(what == What.STALE.value).alias("stale"),
    )
    zero = fn.lit(0).cast("long")
    delayed = fn.coalesce(fn.col("due_us") > fn.col("enqueued_us"), fn.lit(False))
    # A delay is no waiting.
    could_start = fn.when(delayed, fn.col("due_us")).otherwise(fn.col("enqueued_us"))
    waiting = fn.col("first_start_us") - could_start
    turnaround = fn.when(fn.col("outcome") == DONE, fn.col("done_end_us") - could_start)
    return (
        found.join(due, "message_id", "left")
        .withColumn("delayed", delayed.cast("long"))
        .withColumn("waiting_us", fn.when(waiting.isNotNull(), fn.greatest(waiting, zero)))
        .withColumn("turnaround_us", fn.when(turnaround.isNotNull(), fn.greatest(turnaround, zero)))
        .drop("done_end_us", "due_us")
    )


def is_failure() -> Column:
    """Whether a delivery is a failure."""
    what = fn.col("what")
    return (what == What.FAILED.value) | ((what == What.DEAD.value) & fn.col("begun"))


def how_many(condition: Column) -> Column:
    """How many rows of a group fulfil a condition; 0, not null, for none."""
    return fn.count(fn.when(condition, fn.lit(1)))


def _named(name: str) -> Column:
    """A name in the history, where '' means that there is none."""
    return fn.when(fn.col(name) != "", fn.col(name))


def _time_of_id(message_id: Column) -> Column:
    ms = id_numbers(message_id)[0].try_cast("long")
    return fn.when((ms >= _FIRST_TIME_MS) & (ms < _LAST_TIME_MS), ms * 1000)
