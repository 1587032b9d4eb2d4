"""The columns that are options of a message (``bridge.routing.message_options``), as the fields of an entry.

A time becomes milliseconds since 1970, a truth value ``1`` or none. ``due`` and ``hold`` are options in every row, the
others in a row with a ``payload``. What a master would refuse is refused before it is written. A ``hold`` without a
``due`` is not sent: masters would refuse it.
"""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from bridge.routing.errors import PayloadError
from bridge.routing.message_options import FURTHEST_MS, HIGHEST_PRIORITY, LONGEST_TIMEOUT_MS, MOST_ATTEMPTS
from bridge.spark.wire.encoder import as_bytes, is_text

DUE = "due"
HOLD = "hold"
EXPIRES = "expires"
#: Fields that are never a part of a payload that is made of the other fields.
NOT_PAYLOAD = (DUE, HOLD)
#: The columns that may be times.
TIMES = (DUE, EXPIRES)
#: The texts of a truth value, whatever their capitals.
TRUE, FALSE = ("1", "true"), ("0", "false", "")
#: Columns that are options beside a payload, with the least and the largest number; None: 100 years from now.
RULES: dict[str, tuple[int, int | None]] = {
    "max_attempts": (1, MOST_ATTEMPTS),
    "timeout": (1, LONGEST_TIMEOUT_MS),
    EXPIRES: (0, None),
    "priority": (0, HIGHEST_PRIORITY),
}
#: All columns that are options of a message with a payload.
OPTIONS = (*NOT_PAYLOAD, *RULES)
#: How the refusal of a message ends that expires before it is due.
TOO_LATE = "is not after the time when the message is due: it would never begin"
_PAYLOAD = "payload"
#: Digits of a time in milliseconds. A master refuses what is more than 100 years away.
_DIGITS = r"^[0-9]{1,15}$"


def bounds_of(name: str) -> tuple[int, int]:
    """The least and the largest number that the column ``name`` of `RULES`, or `DUE`, may have now."""
    least, most = RULES.get(name, (0, None))
    return least, time.time_ns() // 1_000_000 + FURTHEST_MS if most is None else most


def wanted(name: str) -> str:
    """What a value of the column ``name`` must be, as the end of a sentence."""
    if name == HOLD:
        return "true or false, or 1 or 0"
    least, most = RULES.get(name, (0, None))
    if most is None:
        return "a time, or milliseconds since 1970, at most 100 years ahead"
    return f"a whole number{' of milliseconds' if name == 'timeout' else ''} from {least} to {most}"


def as_fields(batch: pa.RecordBatch, key: str, fields: tuple[str, ...]) -> pa.RecordBatch:
    """The batch with its options as an entry has them. ``fields``: the columns that are sent.

    Raises ``PayloadError`` for a value that cannot be.
    """
    if DUE in fields:
        due = _ms(batch.column(DUE))
        _refuse(batch, key, DUE, pc.and_(pc.is_valid(batch.column(DUE)), pc.invert(_within(due, DUE))))
        batch = batch.set_column(batch.schema.get_field_index(DUE), DUE, due)
    if HOLD in fields:
        there = batch.column(HOLD)
        held = _is_word(there, TRUE)
        _refuse(batch, key, HOLD, pc.and_(pc.is_valid(there), pc.invert(pc.or_(held, _is_word(there, FALSE)))))
        held = pc.and_(held, pc.is_valid(batch.column(DUE))) if DUE in fields else pa.nulls(len(batch), pa.bool_())
        column = pc.if_else(held, pa.scalar("1"), pa.scalar(None, pa.string()))
        batch = batch.set_column(batch.schema.get_field_index(HOLD), HOLD, column)
    rules = [name for name in RULES if name in fields] if _PAYLOAD in fields else []
    if not rules:
        return batch
    has_payload = pc.is_valid(batch.column(_PAYLOAD))
    for name in rules:
        there = batch.column(name)
        number = _ms(there)
        _refuse(batch, key, name, pc.and_(pc.and_(pc.is_valid(there), has_payload), pc.invert(_within(number, name))))
        if name == EXPIRES and DUE in fields:
            late = pc.less_equal(number.cast(pa.int64()), batch.column(DUE).cast(pa.int64()))
            late = pc.fill_null(pc.and_(late, has_payload), fill_value=False)
            if pc.any(late).as_py():
                ticket = batch.column(key)[pc.index(late, value=True).as_py()].as_py()
                raise PayloadError(f"{name} of ticket {ticket!r} {TOO_LATE}")
        if pa.types.is_timestamp(there.type):
            batch = batch.set_column(batch.schema.get_field_index(name), name, number)
    return batch


def _refuse(batch: pa.RecordBatch, key: str, name: str, odd: pa.Array) -> None:
    """Raises ``PayloadError`` for the first row where ``odd`` is true."""
    if pc.any(odd).as_py():
        row = pc.index(odd, value=True).as_py()
        ticket, value = batch.column(key)[row].as_py(), batch.column(name)[row]
        # A column of text may hold bytes that are not UTF-8.
        shown = value.as_buffer().to_pybytes().decode(errors="replace") if is_text(value.type) else value.as_py()
        raise PayloadError(f"{name} of ticket {ticket!r} is {shown!r:.60}: it must be {wanted(name)}")


def _ms(column: pa.Array) -> pa.Array:
    """A whole number as text, of times the milliseconds since 1970; null for what is no such number."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    raw = as_bytes(column)
    digits = pc.match_substring_regex(raw, _DIGITS)
    # Not a null scalar: with that, pyarrow 18 takes values from another place of an array that is a slice.
    return pc.if_else(digits, raw, pa.nulls(len(raw), pa.binary())).cast(pa.string())


def _within(number: pa.Array, name: str) -> pa.Array:
    """Whether each text is a number that the option ``name`` may have; false for null."""
    least, most = bounds_of(name)
    number = number.cast(pa.int64())
    return pc.fill_null(pc.and_(pc.greater_equal(number, least), pc.less_equal(number, most)), fill_value=False)


def _is_word(column: pa.Array, words: tuple[str, ...]) -> pa.Array:
    """Whether each value is one of these texts, whatever its capitals; false for null."""
    # Bytes, which need not be UTF-8.
    matches = pc.match_substring_regex(as_bytes(column), f"^({'|'.join(words)})$", ignore_case=True)
    return pc.fill_null(matches, fill_value=False)
