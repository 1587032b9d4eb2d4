"""The tables of a report, each a DataFrame made by aggregation from deliveries and messages.

``bridge.spark.reporting.definitions`` says what is counted, and how percentiles, throughput and utilisation are
computed. Columns whose names end in ``_ms`` are milliseconds. In the history, messages that were refused, left out or
skipped name no ticket and no task, so they are in ``totals`` only, and refused ones in ``dead_letters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from bridge.routing.history import What
from bridge.spark.archiving.reading import Range, id_numbers
from bridge.spark.reporting.deliveries import (
    DEAD,
    DONE,
    DROPPED,
    LEFT_OUT,
    REFUSED,
    SKIPPED,
    UNDONE,
    UNKNOWN,
    how_many,
    is_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Percentiles, and what their columns are called.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: What ``percentile_approx`` may be off by is one over this, in ranks; so groups smaller than this are exact.
ACCURACY = 10_000
#: Bars in a decade of the distributions.
BINS_PER_DECADE = 5
#: Most points of the throughput over time.
MOST_BUCKETS = 120
_SECOND_US = 1_000_000
_STEPS_S = (
    *(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400, 30 * 86400),
)
_ERROR_CHARS = 200
#: The outcomes that the totals count.
OUTCOMES = (DONE, DROPPED, DEAD, REFUSED, LEFT_OUT, SKIPPED, UNDONE, UNKNOWN)


@dataclass(frozen=True)
class Facts:
    """What the tables are made from: deliveries, messages and dead letters of the same range."""

    deliveries: DataFrame
    messages: DataFrame
    letters: DataFrame


@dataclass(frozen=True)
class Whole:
    """The totals of which shares are computed. Times in ms."""

    messages: int
    waiting_ms: float
    service_ms: float


def totals(facts: Facts) -> DataFrame:
    """One row: everything together. Tickets and consumers are counted by their own tables."""
    outcome = fn.col("outcome")
    counted = facts.messages.agg(
        fn.count(fn.lit(1)).alias("messages"),
        *(how_many(outcome == kind).alias(kind) for kind in OUTCOMES),
        *_sums("delayed", "executions", "retries", "failures", "losses", "returns", "replays", "stale"),
        *_waiting_and_turnaround(),
        fn.timestamp_micros(fn.min("enqueued_us")).alias("first_enqueued_at"),
        fn.min("enqueued_us").alias("first_us"),
    )
    served = facts.deliveries.agg(
        *_service(),
        *_span(),
        fn.timestamp_micros(fn.max("written_us")).alias("last_written_at"),
        fn.min("written_us").alias("first_written_us"),
        fn.max("written_us").alias("last_us"),
    )
    letters = facts.letters.agg(fn.count(fn.lit(1)).alias("letters"))
    found = counted.crossJoin(served).crossJoin(letters)
    # Where the buckets of time begin. Ids that are not times do not count.
    first = fn.least("first_us", "first_written_us")
    return _with_throughput(found).withColumn("first_us", first).drop("first_written_us")


def per(facts: Facts, key: str, whole: Whole) -> DataFrame:
    """One row per ticket (``ticket_id``) or per ``task``. Shares are of all messages and of all waiting time."""
    outcome = fn.col("outcome")
    # Per ticket, the number of tickets is 1.
    tickets = [] if key == "ticket_id" else [fn.count_distinct("ticket_id").alias("tickets")]
    counted = (
        facts.messages.filter(fn.col(key).isNotNull())
        .groupBy(key)
        .agg(
            fn.count(fn.lit(1)).alias("messages"),
            *tickets,
            *(how_many(outcome == kind).alias(kind) for kind in (DONE, DEAD, UNDONE)),
            *_sums("delayed", "executions", "retries", "failures", "losses", "returns", "replays"),
            *_waiting_and_turnaround(),
        )
    )
    served = facts.deliveries.filter(fn.col(key).isNotNull() & fn.col("begun")).groupBy(key).agg(*_service(), *_span())
    found = counted.join(served, key, "left")
    waited = fn.coalesce("waiting_sum_ms", fn.lit(0.0))
    return (
        _with_throughput(found)
        .withColumn("share_of_messages", fn.col("messages") / fn.lit(whole.messages))
        .withColumn("share_of_waiting", _share(waited, whole.waiting_ms))
    )


def consumers(facts: Facts, whole: Whole) -> DataFrame:
    """One row per consumer that executed anything: how the work was spread over the workers."""
    begun = facts.deliveries.filter(fn.col("begun") & fn.col("consumer").isNotNull())
    counted = begun.groupBy("consumer").agg(
        fn.count(fn.lit(1)).alias("executions"),
        how_many(fn.col("what") == What.DONE.value).alias(DONE),
        how_many(is_failure()).alias("failures"),
        how_many(fn.col("what") == What.LOST.value).alias("losses"),
        fn.count_distinct("ticket_id").alias("tickets"),
        *_service(),
        *_span(),
        fn.timestamp_micros(fn.min("started_us")).alias("first_start_at"),
        fn.timestamp_micros(fn.max("ended_us")).alias("last_end_at"),
    )
    ran = begun.filter(fn.col("ended_us") > fn.col("started_us"))
    edges = ran.select("consumer", fn.col("started_us").alias("at"), fn.lit(1).alias("step")).union(
        ran.select("consumer", fn.col("ended_us").alias("at"), fn.lit(-1).alias("step"))
    )
    # An execution that ends when another starts does not overlap it: ends come first.
    so_far = (
        Window.partitionBy("consumer").orderBy("at", "step").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    peaks = (
        edges.withColumn("running", fn.sum("step").over(so_far))
        .groupBy("consumer")
        .agg(fn.max("running").alias("peak"))
    )
    found = counted.join(peaks, "consumer", "left")
    running = fn.when(fn.col("span_us") > 0, fn.col("service_sum_ms") * 1000 / fn.col("span_us"))
    return (
        _with_throughput(found)
        .withColumn("running", running)
        .withColumn("utilisation", fn.col("running") / fn.col("peak"))
        .withColumn("busy_ms", fn.coalesce("service_sum_ms", fn.lit(0.0)))
        .withColumn("share_of_busy", _share(fn.col("busy_ms"), whole.service_ms))
        .drop("service_sum_ms")
    )


def bucket_us(first_us: int, last_us: int) -> int:
    """The length of the buckets of `over_time`, in microseconds: the shortest round one that makes at most 120."""
    for step in _STEPS_S:
        if (last_us - first_us) / (step * _SECOND_US) <= MOST_BUCKETS - 1:
            return int(step * _SECOND_US)
    return int(_STEPS_S[-1] * _SECOND_US) * (1 + int((last_us - first_us) / (_STEPS_S[-1] * _SECOND_US * MOST_BUCKETS)))


def over_time(facts: Facts, bucket: int) -> DataFrame:
    """Per bucket of ``bucket`` microseconds: messages enqueued and done, failures, losses, and the waiting of those
    that were first started in it. Buckets in which nothing happened have no row. ``bucket_start`` is its beginning.
    """

    def part(rows: DataFrame, at: str, **values: Column) -> DataFrame:
        columns = {name: fn.lit(0) for name in ("enqueued", DONE, "failures", "losses")}
        columns["waiting_us"] = fn.lit(None).cast("long")
        place = fn.floor(fn.col(at) / bucket).cast("long").alias("bucket")
        return rows.filter(fn.col(at).isNotNull()).select(
            place, *(column.alias(name) for name, column in (columns | values).items())
        )

    what = fn.col("what")
    ended = facts.deliveries.filter((what == What.DONE.value) | is_failure() | (what == What.LOST.value))
    found = (
        part(facts.messages, "enqueued_us", enqueued=fn.lit(1))
        .union(part(facts.messages, "first_start_us", waiting_us=fn.col("waiting_us")))
        .union(
            part(
                ended,
                "written_us",
                done=(what == What.DONE.value).cast("int"),
                failures=is_failure().cast("int"),
                losses=(what == What.LOST.value).cast("int"),
            )
        )
    )
    counted = found.groupBy("bucket").agg(*_sums("enqueued", DONE, "failures", "losses"), *_percentiles("waiting"))
    start = fn.timestamp_micros(fn.col("bucket") * bucket)
    return counted.select(
        start.alias("bucket_start"),
        fn.lit(bucket / _SECOND_US).alias("bucket_s"),
        *(name for name in counted.columns if name != "bucket"),
        (fn.col(DONE) / fn.lit(bucket / _SECOND_US)).alias("throughput_per_s"),
    ).orderBy("bucket_start")


def distribution(facts: Facts) -> DataFrame:
    """How often a time was how long, for ``waiting``, ``service`` and ``turnaround``, in bars that grow by 10^(1/5):
    columns ``measure``, ``from_ms``, ``to_ms``, ``n``. Times under a microsecond are in the bar of a microsecond.
    """
    begun = facts.deliveries.filter(fn.col("begun"))
    waiting, turnaround = (facts.messages.select(fn.col(f"{name}_us")) for name in ("waiting", "turnaround"))
    found: DataFrame | None = None
    for name, rows in (("waiting", waiting), ("service", begun.select("service_us")), ("turnaround", turnaround)):
        value = fn.col(f"{name}_us")
        one = rows.filter(value.isNotNull()).select(
            fn.lit(name).alias("measure"),
            fn.floor(fn.log10(fn.greatest(value, fn.lit(1).cast("long"))) * BINS_PER_DECADE).cast("int").alias("bin"),
        )
        found = one if found is None else found.union(one)
    assert found is not None
    edge = fn.lit(10.0)
    return (
        found.groupBy("measure", "bin")
        .agg(fn.count(fn.lit(1)).alias("n"))
        .select(
            "measure",
            (fn.pow(edge, fn.col("bin") / BINS_PER_DECADE) / 1000).alias("from_ms"),
            (fn.pow(edge, (fn.col("bin") + 1) / BINS_PER_DECADE) / 1000).alias("to_ms"),
            "n",
        )
        .orderBy("measure", "from_ms")
    )


def letters(dead: DataFrame, within: Range) -> DataFrame:
    """The dead letters whose messages are in the range."""
    return dead.filter(within.holds(fn.col("message_id")))


def dead_reasons(facts: Facts) -> DataFrame:
    """One row per reason and task of the dead letters, the most frequent first, with the newest error as an example."""
    place = fn.struct(*id_numbers(fn.col("letter_id")), "letter_id")
    return (
        facts.letters.groupBy("reason", "task")
        .agg(
            fn.count(fn.lit(1)).alias("letters"),
            fn.count_distinct("ticket_id").alias("tickets"),
            fn.min("at").alias("first_at"),
            fn.max("at").alias("last_at"),
            fn.max_by(fn.substring(fn.col("error"), 1, _ERROR_CHARS), place).alias("newest_error"),
        )
        .orderBy(fn.col("letters").desc(), "reason", "task")
    )


def _sums(*names: str) -> list[Column]:
    return [fn.coalesce(fn.sum(name), fn.lit(0)).cast("long").alias(name) for name in names]


def _percentiles(measure: str) -> list[Column]:
    """p50, p90, p99 and max of ``<measure>_us``, in ms; null for a group without values."""
    value = fn.col(f"{measure}_us")
    found = fn.percentile_approx(value, [*PERCENTILES.values()], ACCURACY)
    return [
        *((fn.get(found, fn.lit(i)) / 1000).alias(f"{measure}_{name}_ms") for i, name in enumerate(PERCENTILES)),
        (fn.max(value) / 1000).alias(f"{measure}_max_ms"),
    ]


def _waiting_and_turnaround() -> list[Column]:
    return [
        *_percentiles("waiting"),
        _sum_ms("waiting"),
        *_percentiles("turnaround"),
    ]


def _service() -> list[Column]:
    return [*_percentiles("service"), _sum_ms("service")]


def _sum_ms(measure: str) -> Column:
    # Spark refuses a sum that 64 bits do not hold.
    return (fn.sum(fn.col(f"{measure}_us").cast("double")) / 1000).alias(f"{measure}_sum_ms")


def _span() -> list[Column]:
    return [(fn.max("ended_us") - fn.min("started_us")).alias("span_us")]


def _share(part: Column, whole: float) -> Column:
    return part / fn.lit(whole) if whole else fn.lit(None).cast("double")


def _with_throughput(found: DataFrame) -> DataFrame:
    """``throughput_per_s`` from ``done`` and ``span_us``; null where there is no span."""
    return found.withColumn(
        "throughput_per_s", fn.when(fn.col("span_us") > 0, fn.col(DONE) * _SECOND_US / fn.col("span_us"))
    )
