"""Which messages of an archive a replay takes, and what it sends for each.

A message is known from its entry (``messages``), from a row of its history, or from its dead letter. Any of the three
may be missing: a stream drops acknowledged entries, and a history is capped. The body of a message is that of its
entry. If the archive has no entry, the body is that of its dead letter. A message with neither is **missing**, and so
is one whose letter is **cut**: it holds the beginning of the message.

A replay sends what the tasks got: ticket, task and payload, and the options of the message (when it was to be due,
attempts, time limit, expiry, priority). If the entry named no task, none is sent, and the lane's default decides again.
The payload of an entry without ``payload`` is its other fields, as an object of strings, as the bridge reads it. It has
no options but ``due`` and ``hold``. The letter of a message that was given up has no options.

A message that has expired is left out: it would be dead again at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from bridge.routing.history import What
from bridge.routing.messages import WHOLE_ENTRY, Refused
from bridge.spark.archiving.reading import Range, id_numbers, layout_generation, read_table
from bridge.spark.read.options import DEAD, HISTORY, MESSAGES
from bridge.spark.wire.encoder import KEY_FIELD
from bridge.spark.wire.entry_ids import LAST_TIME_MS
from bridge.spark.write.message_options import EXPIRES, NOT_PAYLOAD, OPTIONS, RULES
from bridge.spark.write.order import in_ticket_order
from bridge.spark.write.refusals import PAYLOAD, TASK
from bridge.spark.write.rejects import Checks, refusal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The place of a message in its ticket. It orders the writing and is not sent.
PLACE = "place"
_TIME = "__time"
_STALE = What.STALE.value
_GIVEN_UP = (What.DEAD.value, What.REFUSED.value)
#: Reasons for which a refused entry is not a message of a ticket, or is not in the archive as it came: a part is not
#: text, or a field was there twice.
_NO_MESSAGE = tuple(reason.value for reason in (Refused.NO_TICKET, Refused.BAD_TICKET, Refused.NOT_UTF8, Refused.TWICE))
#: Bytes, and fields, of a message that a letter holds at most.
LETTER_BYTES = 64 * 1024
LETTER_FIELDS = 2500


@dataclass(frozen=True)
class Selection:
    """Which messages. Empty: all."""

    within: Range
    tickets: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    #: Only messages whose last row is dead or refused.
    dead_only: bool = False
    #: Whether messages are sent without ``expires``, so that none has expired.
    without_expires: bool = False


@dataclass(frozen=True)
class Counts:
    """How many messages a selection has."""

    #: Messages that were selected …
    selected: int
    #: … and of those: without a body in the archive, or without all of it,
    missing: int
    #: with a body that no lane can process (no ticket, not text, a field twice, an empty task, too large),
    unusable: int
    #: and how many tickets the others have.
    tickets: int
    first_id: str | None
    last_id: str | None
    #: Those that have expired.
    expired: int = 0
    #: Those of the missing ones that have a letter which is cut.
    cut: int = 0
    #: Option -> how many of the messages that are written have it.
    with_option: dict[str, int] = field(default_factory=dict)

    @property
    def replayable(self) -> int:
        """Messages that a replay writes."""
        return self.selected - self.missing - self.unusable - self.expired

    @property
    def options(self) -> tuple[str, ...]:
        """The options that are sent: those that any message has."""
        return tuple(self.with_option)


def selected(
    session: SparkSession, archive: str, selection: Selection, *, max_payload: int, now_ms: int = 0
) -> DataFrame:
    """The selected messages. Columns: ``message_id``, ``ticket_id``, ``task``, ``payload``, the options, ``missing``,
    ``unusable`` and ``expired`` (truth values, at most one of them true), ``cut`` (true of some that are missing).
    ``max_payload``: in bytes; what is larger is unusable. ``now_ms``: what has expired by then is expired.
    """
    within = selection.within.holds(fn.col("message_id")) & fn.col("message_id").isNotNull()
    entries = read_table(session, archive, MESSAGES).filter(within).alias("m")
    states = _last_states(read_table(session, archive, HISTORY).filter(within)).alias("h")
    letters = _letters(read_table(session, archive, DEAD).filter(within)).alias("d")
    found = entries.join(states, "message_id", "full").join(letters, "message_id", "full")
    ticket = fn.coalesce("m.ticket_id", "d.ticket_id", "h.ticket_id")
    of_entry = fn.col("m.enqueued_at").isNotNull() | fn.col("m.fields").isNotNull() | fn.col("m.ticket_id").isNotNull()
    body = fn.when(of_entry, _body("m")).otherwise(_body("d"))
    rows = found.select(
        "message_id",
        ticket.alias(KEY_FIELD),
        fn.when(of_entry, fn.col("m.task")).otherwise(fn.col("d.task")).alias(TASK),
        body.alias(PAYLOAD),
        *(fn.when(of_entry, _field("m", name)).otherwise(_field("d", name)).alias(name) for name in OPTIONS),
        fn.coalesce("m.task", "d.task", "h.task").alias("known_task"),
        fn.coalesce(fn.col("h.what").isin(*_GIVEN_UP), fn.col("d.reason").isNotNull()).alias("given_up"),
        (~of_entry & fn.coalesce(fn.col("d.reason") == Refused.TRIMMED.value, fn.lit(True))).alias("gone"),
        (~of_entry & fn.coalesce(_is_cut("d"), fn.lit(False))).alias("cut"),
        fn.coalesce(fn.col("d.reason").isin(*_NO_MESSAGE), fn.lit(False)).alias("no_message"),
    )
    if selection.tickets:
        rows = rows.filter(fn.col(KEY_FIELD).isin(*selection.tickets))
    if selection.tasks:
        rows = rows.filter(fn.col("known_task").isin(*selection.tasks))
    if selection.dead_only:
        rows = rows.filter("given_up")
    if selection.without_expires:
        rows = rows.withColumn(EXPIRES, fn.lit(None).cast("string"))
    rows = rows.withColumn("missing", fn.col("gone") | fn.col("cut"))
    why = refusal(rows, key=KEY_FIELD, checks=Checks([TASK, *OPTIONS, PAYLOAD], max_payload))
    unusable = ~fn.col("missing") & (fn.col("no_message") | why.isNotNull() | fn.col(PAYLOAD).isNull())
    rows = rows.withColumn("unusable", unusable).drop("known_task", "given_up", "no_message", "gone")
    over = fn.coalesce(fn.col(EXPIRES).try_cast("long") <= now_ms, fn.lit(False))
    return rows.withColumn("expired", over & ~fn.col("missing") & ~fn.col("unusable"))


def count(rows: DataFrame) -> Counts:
    """The counts of what `selected` found."""
    usable = _usable()
    place = fn.struct(*id_numbers(fn.col("message_id")), "message_id")
    counts = rows.agg(
        fn.count(fn.lit(1)).alias("selected"),
        fn.count(fn.when(fn.col("missing"), 1)).alias("missing"),
        fn.count(fn.when(fn.col("unusable"), 1)).alias("unusable"),
        fn.count_distinct(fn.when(usable, fn.col(KEY_FIELD))).alias("tickets"),
        fn.min_by("message_id", place).alias("first_id"),
        fn.max_by("message_id", place).alias("last_id"),
        fn.count(fn.when(fn.col("expired"), 1)).alias("expired"),
        fn.count(fn.when(fn.col("cut"), 1)).alias("cut"),
        *(fn.count(fn.when(usable, fn.col(name))).alias(name) for name in OPTIONS),
    ).first()
    assert counts is not None
    found = counts.asDict()
    options = {name: found.pop(name) for name in OPTIONS}
    return Counts(with_option={name: number for name, number in options.items() if number}, **found)


def _usable() -> Column:
    """Whether a message is written."""
    return ~fn.col("missing") & ~fn.col("unusable") & ~fn.col("expired")


def in_replay_order(rows: DataFrame, *, partitions: int, max_payload: int, options: tuple[str, ...] = ()) -> DataFrame:
    """The messages that can be sent: each ticket in the order of its ids, tickets interleaved by time as before.

    ``options``: the options that any message has (`Counts.options`). They are sent, too.

    The order is the same each time: no two rows of a partition compare equal.
    """
    usable = rows.filter(_usable())
    ms, seq = id_numbers(fn.col("message_id"))
    # A message in the wrong partition may have the numbers of another one of its ticket.
    order = (layout_generation(fn.col("message_id")), ms, seq, "message_id")
    place = fn.row_number().over(Window.partitionBy(KEY_FIELD).orderBy(*order)).cast("long")
    # An id that is not a time leaves its ticket's clock unchanged.
    time = fn.when(ms <= LAST_TIME_MS, fn.timestamp_millis(ms.try_cast("long")))
    sent = usable.select(KEY_FIELD, TASK, *options, PAYLOAD, place.alias(PLACE), time.alias(_TIME))
    return in_ticket_order(
        sent,
        key=KEY_FIELD,
        sequence=PLACE,
        time=_TIME,
        partitions=partitions,
        checks=Checks([TASK, *options, PAYLOAD], max_payload),
    ).drop(_TIME)


def _last_states(history: DataFrame) -> DataFrame:
    """For each message its ticket, its task, and its state by the last row that has one."""
    place = fn.struct(*id_numbers(fn.col("history_id")), "row")

    def last(name: str) -> Column:
        return fn.max_by(name, fn.when(fn.col(name) != "", place)).alias(name)

    stands = fn.when(fn.col("what") != _STALE, place)
    return history.groupBy("message_id").agg(last("ticket_id"), last("task"), fn.max_by("what", stands).alias("what"))


def _letters(dead: DataFrame) -> DataFrame:
    """The newest letter of each message. A message that was replayed and died again has several."""
    place = fn.struct(*id_numbers(fn.col("letter_id")))
    kept = ("ticket_id", "task", PAYLOAD, "fields", "reason", "error", "cut_bytes")
    newest = dead.groupBy("message_id").agg(fn.max_by(fn.struct(*kept), place).alias("letter"))
    return newest.select("message_id", *(fn.col(f"letter.{name}").alias(name) for name in kept))


def _is_cut(table: str) -> Column:
    """Whether a letter lacks a part of its message. One of an older archive, which does not say it, if it may be so."""
    fields = fn.col(f"{table}.fields")
    came = fn.when(fn.cardinality(fields) > 0, fn.concat_ws("", fn.map_keys(fields), fn.map_values(fields)))
    held = fn.octet_length(fn.coalesce(came, fn.col(f"{table}.{PAYLOAD}")))
    full = (held >= LETTER_BYTES) | fn.coalesce(fn.cardinality(fields) >= LETTER_FIELDS, fn.lit(False))
    # Older masters did not write the size of what they had not read.
    too_large = fn.col(f"{table}.reason") == Refused.TOO_LARGE.value
    unread = fn.coalesce(too_large & fn.col(f"{table}.error").contains(WHOLE_ENTRY), fn.lit(False))
    return unread | fn.coalesce(fn.col(f"{table}.cut_bytes") > 0, full)


def _field(table: str, name: str) -> Column:
    """An option of a message."""
    value = fn.try_element_at(fn.col(f"{table}.fields"), fn.lit(name))
    return fn.when(fn.col(f"{table}.{PAYLOAD}").isNotNull(), value) if name in RULES else value


def _body(table: str) -> Column:
    """The payload, or else the other fields as one. Null for a payload that is not text, which is among the fields."""
    fields = fn.coalesce(fn.col(f"{table}.fields"), fn.create_map().cast("map<string,string>"))
    rest = fn.map_filter(fields, lambda name, _: ~name.isin(KEY_FIELD, TASK, *NOT_PAYLOAD))
    made = fn.when(~fn.map_contains_key(fields, fn.lit(PAYLOAD)), fn.to_json(rest))
    return fn.coalesce(fn.col(f"{table}.{PAYLOAD}"), made)
