r"""Pages of entries as Arrow batches. No Python runs per entry, as long as values are UTF-8.

``bridge.spark.read.columns`` says what a column holds. A field that an entry lacks is null. Of a field that it has
twice, the last value counts, as for every client that makes a dictionary of an entry.

**Bytes that are not UTF-8.** A column of type STRING shows each bad byte as ``\xNN``, so one broken message neither
stops a read nor disappears from it. A column of type BINARY holds the bytes themselves. Names of fields are text.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bridge.spark.read.columns import ENQUEUED_AT, ID, REST, Columns
from bridge.spark.wire.entry_ids import LAST_TIME_MS, EntryId
from bridge.spark.wire.page import Page

_TIME = pa.timestamp("us", tz="UTC")
#: Digits of a time in ms from the year 2001 to the year 2286.
_USUAL_DIGITS = 13


class Decoder:
    """Makes batches of one set of columns. ``suffix``: what follows the ids of the stream's entries."""

    def __init__(self, columns: Columns, suffix: str = "") -> None:
        self._suffix = suffix
        self._columns = list(zip(columns.names, columns.binary, strict=True))
        self._own = columns.own
        fields = zip(columns.names, columns.binary, columns.nullable, strict=True)
        self._schema = pa.schema([_arrow_field(*field) for field in fields])

    def decode(self, page: Page) -> pa.RecordBatch:
        """The entries of a page, in order."""
        arrays = [self._column(page, name, binary) for name, binary in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, page: Page, name: str, binary: bool) -> pa.Array:
        if name == ID:
            ids = as_text(page.ids)
            return pc.binary_join_element_wise(ids, self._suffix, "") if self._suffix else ids
        if name == ENQUEUED_AT:
            return times(page.ids)
        if name == REST:
            offsets, names, values = page.others(self._own)
            return pa.MapArray.from_arrays(
                offsets.cast(pa.int32()), as_text(names), values if binary else as_text(values)
            )
        values = page.values_of(name.encode())
        return values if binary else as_text(values)


def as_text(values: pa.Array) -> pa.Array:
    r"""Bytes as text; each byte that is not UTF-8 as ``\xNN``."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def times(ids: pa.Array) -> pa.Array:
    """When entries of these ids were enqueued; null where an id is not a time that Spark can hold."""
    following = pc.binary_slice(ids, _USUAL_DIGITS, _USUAL_DIGITS + 1)
    if pc.all(pc.equal(following, pa.scalar(b"-", pa.binary()))).as_py() is not False:
        ms = pc.binary_slice(ids, 0, _USUAL_DIGITS).cast(pa.string()).cast(pa.int64())
    else:
        each = (EntryId.of(id_).ms for id_ in ids.to_pylist())
        ms = pa.array([time if time <= LAST_TIME_MS else None for time in each], pa.int64())
    return pc.multiply(ms, 1000).cast(_TIME)


def _arrow_field(name: str, binary: bool, nullable: bool) -> pa.Field:
    """As Spark makes it from the schema: Spark compares types and nullability of the two."""
    kind = pa.binary() if binary else pa.string()
    if name == ENQUEUED_AT:
        kind = _TIME
    elif name == REST:
        kind = pa.map_(pa.string(), kind)
    return pa.field(name, kind, nullable=nullable)
