r"""Pages of entries as Arrow batches. No Python runs per entry, as long as values are UTF-8.

``bridge.spark.read.columns`` says what a column holds. A field that an entry lacks is null. Of a field that it has
twice, the last value counts, as for every client that makes a dictionary of an entry.

**Bytes that are not UTF-8.** A column of type STRING shows each bad byte as ``\xNN``, so one broken message neither
stops a read nor disappears from it. A column of type BINARY holds the bytes themselves. Names of fields are text. Names
of one entry that are shown alike are one field: no function of Spark accepts a map that has a name twice.
"""

from __future__ import annotations

from itertools import pairwise

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
            offsets, names, values = _with_names_as_text(*page.others(self._own))
            return pa.MapArray.from_arrays(offsets.cast(pa.int32()), names, values if binary else as_text(values))
        values = page.values_of(name.encode())
        return values if binary else as_text(values)


def as_text(values: pa.Array) -> pa.Array:
    r"""Bytes as text; each byte that is not UTF-8 as ``\xNN``."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def _with_names_as_text(offsets: pa.Array, names: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The same fields with their names as text, each name of an entry once."""
    try:
        return offsets, names.cast(pa.string()), values
    except pa.ArrowInvalid:
        texts = as_text(names).to_pylist()
    ends, kept = [0], list[int]()
    for start, end in pairwise(offsets.to_pylist()):
        kept += {text: at for at, text in enumerate(texts[start:end], start)}.values()
        ends.append(len(kept))
    chosen = pa.array(kept, pa.int64())
    return pa.array(ends, pa.int64()), pa.array(texts, pa.string()).take(chosen), values.take(chosen)


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
