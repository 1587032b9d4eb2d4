"""Rows of an Arrow batch as arguments of a Redis command, encoded for the connection.

A Redis command is ``*<arguments>`` and then ``$<bytes>`` and the bytes for each argument, every piece ended by CRLF.
One ``binary_join_element_wise`` builds the arguments of all rows of a batch. Its data buffer is sent as it is, after
the opening of a call (``bridge.routing.pushes``). No Python runs per row.

A null value means that the row's entry lacks that field. It is sent as a placeholder, and a text beside the values says
which of them exist. The key is never null here: ``bridge.spark.write.refusals`` has refused such rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from bridge.spark.wire.places import places

CRLF = b"\r\n"
#: Batches are cut to this size, in bytes: an encoded array has 32-bit offsets, and memory stays small.
MAX_ENCODED_BYTES = 32 * 1024 * 1024
#: About what the lengths of a row's values take, in bytes.
_FRAME_BYTES = 64
#: Placeholder for a null. It is not empty, so that the digest of a null differs from that of an empty value.
_NOTHING = b"\0"
#: The field that names the ticket. The column may have another name.
KEY_FIELD = "ticket_id"


def bulk(value: bytes) -> bytes:
    """One argument of a command in RESP."""
    return b"$%d%s%s%s" % (len(value), CRLF, value, CRLF)


def as_bytes(column: pa.Array) -> pa.Array:
    """The values of a column as an entry holds them: UTF-8, with numbers and truth values in their usual text."""
    if pa.types.is_binary(column.type):
        return column
    if not (is_text(column.type) or is_bytes(column.type)):
        column = column.cast(pa.string())
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid:
        # A piece of a column of more than 2 GiB: its offsets are too large until it is copied.
        return column.take(places(0, len(column))).cast(pa.binary())


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a type holds bytes as they are."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def byte_lengths(column: pa.Array) -> pa.Array:
    """Length in bytes of each value as it will be sent; null where the value is null."""
    if is_text(column.type) or is_bytes(column.type):
        return pc.binary_length(column)
    return pc.binary_length(column.cast(pa.string()))


def announcements(values: pa.Array, ahead: bytes) -> pa.Array:
    """The bytes before each value: ``ahead``, its length in bytes, and CRLF. No value is null."""
    lengths = pc.binary_length(values)
    shortest, longest = pc.min_max(lengths).values()
    if len(values) and shortest == longest:
        # Many columns are like this, and it is cheaper than the general way.
        return pa.repeat(_scalar(b"%b%d%b" % (ahead, longest.as_py(), CRLF)), len(values))
    # There are far fewer lengths than values, so each length becomes text once.
    lengths = lengths.dictionary_encode()
    digits = lengths.dictionary.cast(pa.string()).cast(pa.binary())
    return _join([_scalar(ahead), digits, _scalar(CRLF)]).take(lengths.indices)


def parts(batch: pa.RecordBatch, limit: int = MAX_ENCODED_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most ``limit`` encoded bytes each, in order. A single row is never cut."""
    if batch.num_rows > 1 and batch.nbytes + batch.num_rows * _FRAME_BYTES > limit:
        half = batch.num_rows // 2
        yield from parts(batch.slice(0, half), limit)
        yield from parts(batch.slice(half), limit)
    elif batch.num_rows:
        yield batch


class EncodedRows:
    """The encoded rows of one batch."""

    def __init__(self, arguments: pa.Array, present: memoryview, columns: int, tickets: pa.Array | None = None) -> None:
        """``arguments``: binary, the arguments of each row; ``present``: a 1 or 0 for each value, or nothing;
        ``tickets``: the ticket of each row.
        """
        self._tickets = tickets
        self._hashes: Sequence[int] | None = None
        self._arguments = arguments
        _, offsets, data = arguments.buffers()
        self._offsets: Sequence[int] = memoryview(offsets).cast("i") if offsets is not None else [0]
        self._wire = memoryview(data) if data is not None else memoryview(b"")
        self._present = present
        self._columns = columns

    def __len__(self) -> int:
        """How many rows."""
        return len(self._arguments)

    def wire(self, start: int, end: int) -> memoryview:
        """The bytes of rows ``start`` to before ``end``; nothing is copied."""
        first = self._arguments.offset
        return self._wire[self._offsets[first + start] : self._offsets[first + end]]

    def present(self, start: int, end: int) -> bytes:
        """A ``1`` or ``0`` for each value of these rows, whether it exists; empty when all do."""
        if not self._present:
            return b""
        marks = bytes(self._present[start * self._columns : end * self._columns])
        return marks if b"0" in marks else b""

    def hashes(self, start: int, end: int) -> Sequence[int]:
        """The CRC-32 of the ticket of each of these rows, which says its partition of a stream that is split."""
        if self._hashes is None:
            assert self._tickets is not None
            self._hashes = array("I", map(crc32, self._tickets.to_pylist()))
        return self._hashes[start:end]

    def fitting(self, start: int, rows: int, size: int) -> int:
        """Where a piece from ``start`` on ends: at most ``rows`` rows and ``size`` bytes, but one row at least."""
        first: int = self._arguments.offset
        end = min(start + rows, len(self))
        limit = self._offsets[first + start] + size
        if self._offsets[first + end] <= limit:
            return end
        last = bisect_right(self._offsets, limit, first + start, first + end + 1) - 1 - first
        return max(start + 1, last)


class RowEncoder:
    """Turns batches into the arguments ``<key> <value> …`` of each row, or ``<sequence> <key> <value> …``."""

    def __init__(self, key_column: str, fields: Sequence[str], sequence: str | None = None) -> None:
        """``fields`` are the columns that follow the key, each a field of its own name."""
        self._columns = [key_column, *fields]
        self._sent = [*([] if sequence is None else [sequence]), *self._columns]
        #: The names of the fields.
        self.names = (KEY_FIELD, *fields)

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """The rows, in order. The batch must fit into one array (``parts``); any slice in its arrays is respected."""
        pieces: list[pa.Array | pa.Scalar] = []
        ahead = b"$"
        sent = [as_bytes(batch.column(name)) for name in self._sent]
        for column in sent:
            there = pc.fill_null(column, _NOTHING) if column.null_count else column
            pieces += [announcements(there, ahead), there]
            ahead = CRLF + b"$"
        arguments = _join([*pieces, _scalar(CRLF)])
        if arguments.null_count:
            # A null here would drop its row in silence. It cannot happen: nulls are filled above.
            raise AssertionError("a row was encoded as nothing")
        values = sent[-len(self._columns) :]
        return EncodedRows(arguments, _presence(values), len(self._columns), values[0])


def _presence(values: list[pa.Array]) -> memoryview:
    """A ``1`` or ``0`` for each value, row by row; empty when none is null."""
    if not any(column.null_count for column in values):
        return memoryview(b"")
    marks = [pc.if_else(pc.is_valid(column), _scalar(b"1"), _scalar(b"0")) for column in values]
    joined = _join(marks)
    start = joined.offset * len(values)
    return memoryview(joined.buffers()[2])[start : start + len(joined) * len(values)]


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _join(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """The pieces of each row, joined; null where any piece is null."""
    return pc.binary_join_element_wise(*pieces, b"", null_handling="emit_null")
