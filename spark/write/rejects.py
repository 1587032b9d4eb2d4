"""Rows that would be refused, found by Spark before anything is written: as an expression, or as a table.

These are the checks of ``bridge.spark.write.refusals`` in Spark SQL, so that a whole DataFrame can be checked first.
Only the writer finds a sequence that does not rise, since that needs the sorted rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from bridge.routing.errors import ConfigurationError
from bridge.routing.exact_json import MAX_DEPTH
from bridge.spark.write.columns import column, in_one_line, require_column
from bridge.spark.write.layout import WHOLE
from bridge.spark.write.limits import MAX_TICKET_BYTES
from bridge.spark.write.message_options import (
    DUE,
    EXPIRES,
    FALSE,
    HOLD,
    NOT_PAYLOAD,
    OPTIONS,
    RULES,
    TOO_LATE,
    TRUE,
    bounds_of,
    wanted,
)
from bridge.spark.write.refusals import EMPTY_TASK, PAYLOAD, TASK

#: Columns of a table of rejected rows: why a row was rejected, and the text of a row that could not be read.
REASON, ROW = "reason", "row"


@dataclass(frozen=True)
class Checks:
    """The checks of a row, beside those of its ticket and its sequence number."""

    #: The columns that will be sent; None: all but key and sequence.
    fields: Sequence[str] | None = None
    #: The largest payload in bytes; None: any.
    max_payload: int | None = None
    #: Whether the column ``payload`` must be JSON that masters take. Each is parsed twice; the result of ``to_json``
    #: needs no check, if it is not nested deeply.
    json: bool = False
    #: The refusal of a row without a number; None: that it is not a whole number.
    unplaced: str | None = None


#: Only the checks of ticket and number.
NO_MORE = Checks()


def split_rejects(
    rows: DataFrame,
    *,
    key: str,
    sequence: str | None = None,
    checks: Checks = NO_MORE,
) -> tuple[DataFrame, DataFrame]:
    """The rows that can be written, and the other rows with an additional column ``reason``.

    Both are plain expressions over ``rows``: using both reads the input twice, unless it is cached.
    """
    why = refusal(rows, key=key, sequence=sequence, checks=checks)
    return rows.where(why.isNull()), rows.withColumn(REASON, why).where(fn.col(REASON).isNotNull())


def refusal(rows: DataFrame, *, key: str, sequence: str | None = None, checks: Checks = NO_MORE) -> Column:
    """Why a row would be refused, with the name of its ticket; null for a row that would not be.

    Raises ``ConfigurationError`` for a column that does not exist, and for a ``sequence`` that does not hold whole
    numbers: as text, 10 would come before 9.
    """
    require_column(rows, "key", key)
    if sequence is not None:
        kind = rows.schema[require_column(rows, "sequence", sequence)].dataType.typeName()
        if kind not in WHOLE:
            raise ConfigurationError(f"sequence: {sequence!r} is {kind}, not a whole number; cast it to long")
    ticket = column(key).cast("string")
    shown = fn.concat(fn.lit("ticket '"), in_one_line(fn.substring(ticket, 1, 40)), fn.lit("'"))
    size = fn.octet_length(ticket)
    cases: list[tuple[Column, Column]] = [
        (ticket.isNull(), fn.lit("a row has no ticket (null)")),
        # Also of text: what Spark reads from a Parquet file is not checked.
        (~fn.is_valid_utf8(ticket), fn.lit("a ticket is not valid UTF-8")),
        (size == 0, fn.lit("a row has an empty ticket")),
        (
            size > MAX_TICKET_BYTES,
            fn.concat(
                shown, fn.lit("… has "), size.cast("string"), fn.lit(f" bytes, at most {MAX_TICKET_BYTES} are allowed")
            ),
        ),
    ]
    if sequence is not None:
        text = fn.concat(shown, fn.lit(f" has a row whose {checks.unplaced or f'{sequence} is not a whole number'}"))
        cases.append((column(sequence).isNull(), text))
    sent = checks.fields
    if sent is None:
        sent = [name for name in rows.columns if name not in (key, sequence)]
    if checks.max_payload is not None:
        bytes_ = _payload_bytes(sent)
        text = fn.concat(
            fn.lit("the payload of "), shown, fn.lit(" has "), bytes_.cast("string"),
            fn.lit(f" bytes; maxPayload allows {checks.max_payload}"),
        )  # fmt: skip
        cases.append((bytes_ > checks.max_payload, text))
    if TASK in sent:
        empty = fn.concat(fn.lit("task of "), shown, fn.lit(f" {EMPTY_TASK}"))
        cases.append((fn.octet_length(column(TASK).cast("string")) == 0, empty))
    cases += _odd_options(rows, sent, shown)
    if checks.json and PAYLOAD in sent:
        payload = column(PAYLOAD)
        for odd, what in (
            (~_is_json(payload), "is not JSON"),
            (_is_too_deep(payload), f"is nested more than {MAX_DEPTH} levels deep"),
            (_has_too_large_number(payload), "has a number that is too large"),
        ):
            cases.append((odd, fn.concat(fn.lit("the payload of "), shown, fn.lit(f" {what}"))))
    first, *others = cases
    why = fn.when(*first)
    for condition, text in others:
        why = why.when(condition, text)
    return why


def _odd_options(rows: DataFrame, sent: Sequence[str], shown: Column) -> list[tuple[Column, Column]]:
    """The checks of the columns that are options. ``shown``: the ticket."""
    cases = []
    for name in OPTIONS:
        if name not in sent or (name in RULES and PAYLOAD not in sent):
            continue
        given = column(name).isNotNull()
        if name in RULES:
            given &= column(PAYLOAD).isNotNull()
        if name == HOLD:
            good = fn.lower(column(name).cast("string")).isin(*TRUE, *FALSE)
        else:
            number = _whole(rows, name)
            good = number.between(*bounds_of(name))
        text = fn.concat(fn.lit(f"{name} of "), shown, fn.lit(f" is no option: it must be {wanted(name)}"))
        cases.append((given & ~fn.coalesce(good, fn.lit(False)), text))
        if name == EXPIRES and DUE in sent:
            never = given & fn.coalesce(number <= _whole(rows, DUE), fn.lit(False))
            cases.append((never, fn.concat(fn.lit(f"{name} of "), shown, fn.lit(f" {TOO_LATE}"))))
    return cases


def _whole(rows: DataFrame, name: str) -> Column:
    """A column as a whole number, of times in milliseconds; null for what has other characters than 1 to 15 digits."""
    if dict(rows.dtypes)[name] == "timestamp":
        return fn.unix_millis(column(name))
    text = column(name).cast("string")
    # Java's "$" also matches before a line break at the end.
    return fn.when(text.rlike(r"^[0-9]{1,15}\z"), text.try_cast("long"))


def _payload_bytes(fields: Sequence[str]) -> Column:
    """The size of a row's payload: ``payload``, or else its other fields together, as the bridge reads them."""
    rest = fn.lit(0).cast("long")
    for name in fields:
        if name not in (PAYLOAD, TASK, *NOT_PAYLOAD):
            length = fn.octet_length(column(name).cast("string")) + len(name.encode())
            rest = rest + fn.coalesce(length.cast("long"), fn.lit(0))
    if PAYLOAD not in fields:
        return rest
    return fn.coalesce(fn.octet_length(column(PAYLOAD)).cast("long"), rest)


def _is_json(text: Column) -> Column:
    """Whether a text is one JSON value; true for null, which means that there is no payload.

    Spark's parser stops after the first value, whatever follows. A text that parses as the only element of an array,
    and as the only member of an object, is exactly one value.
    """
    listed = fn.try_parse_json(fn.concat(fn.lit("["), text, fn.lit("]")))
    named = fn.try_parse_json(fn.concat(fn.lit('{"":'), text, fn.lit("}")))
    # The parser reads bytes that are not UTF-8, too. Masters do not.
    return text.isNull() | (fn.is_valid_utf8(text) & listed.isNotNull() & named.isNotNull())


def _is_too_deep(json: Column) -> Column:
    """Whether JSON is nested more deeply than masters take it. Most JSON has too few brackets for that."""
    brackets = fn.regexp_replace(_without_texts(json), r"[^\[\]{}]+", "")
    # Each round takes the innermost level away.
    rounds = fn.sequence(fn.lit(1), fn.lit(MAX_DEPTH))
    left = fn.aggregate(rounds, brackets, lambda text, _: fn.regexp_replace(text, r"\[\]|\{\}", ""))
    opened = fn.length(json) - fn.length(fn.translate(json, "[{", ""))
    return fn.when(opened > MAX_DEPTH, left != "").otherwise(fn.lit(False))


def _has_too_large_number(json: Column) -> Column:
    """Whether JSON has a number beyond a double, which masters refuse. Most JSON has none that looks so."""
    numbers = fn.regexp_extract_all(_without_texts(json), fn.lit(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"), fn.lit(0))
    beyond = fn.exists(numbers, lambda number: number.cast("double") == float("inf"))
    return fn.when(json.rlike(r"[0-9]{200}|[eE]\+?[0-9]{3}"), beyond).otherwise(fn.lit(False))


def _without_texts(json: Column) -> Column:
    """JSON without what is in its texts. No expression with alternatives: Java's go too deep in a long text."""
    plain = fn.replace(fn.replace(json, fn.lit("\\\\"), fn.lit("")), fn.lit('\\"'), fn.lit(""))
    return fn.regexp_replace(plain, '"[^"]*"', '""')
