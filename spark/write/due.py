"""The fields ``due`` and ``hold`` of an entry: a time becomes milliseconds since 1970, a truth value ``1`` or none."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bridge.routing.errors import PayloadError
from bridge.spark.wire.encoder import as_bytes

DUE = "due"
HOLD = "hold"
#: Fields that are never a part of a payload that is made of the other fields.
NOT_PAYLOAD = (DUE, HOLD)
#: Digits of a time in milliseconds. A master refuses what is more than 100 years away.
_DIGITS = r"^[0-9]{1,15}$"


def as_fields(batch: pa.RecordBatch, key: str, fields: tuple[str, ...]) -> pa.RecordBatch:
    """The batch with ``due`` and ``hold`` as an entry has them. ``fields``: the columns that are sent.

    Raises ``PayloadError`` for a value that cannot be.
    """
    for name, convert in ((DUE, _due), (HOLD, _hold)):
        if name in fields:
            column = convert(batch.column(name))
            there = batch.column(name)
            odd = pc.and_(pc.is_valid(there), pc.is_null(column)) if name == DUE else _odd_hold(there)
            if pc.any(odd).as_py():
                row = pc.index(odd, value=True).as_py()
                ticket, value = batch.column(key)[row].as_py(), there[row].as_py()
                wanted = "a time, or milliseconds since 1970" if name == DUE else "true or false, or 1 or 0"
                raise PayloadError(f"{name} of ticket {ticket!r} is {value!r:.60}: it must be {wanted}")
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch


def _due(column: pa.Array) -> pa.Array:
    """Milliseconds since 1970; null where there is no such time."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    text = as_bytes(column).cast(pa.string())
    return pc.if_else(pc.match_substring_regex(text, _DIGITS), text, pa.scalar(None, pa.string()))


def _hold(column: pa.Array) -> pa.Array:
    """``1`` where the ticket waits, else null."""
    held = pc.is_in(_word(column), pa.array(["1", "true"]))
    return pc.if_else(held, pa.scalar("1"), pa.scalar(None, pa.string()))


def _odd_hold(column: pa.Array) -> pa.Array:
    return pc.and_(pc.is_valid(column), pc.invert(pc.is_in(_word(column), pa.array(["1", "true", "0", "false", ""]))))


def _word(column: pa.Array) -> pa.Array:
    return pc.utf8_lower(as_bytes(column).cast(pa.string()))
