"""Rows of an Arrow batch as XADD commands, the way they go over the wire.

A Redis command is ``*<arguments>`` and then ``$<bytes>`` and the bytes for each argument, every piece ended by CRLF.
All of it but the values and their lengths is the same in every row, so one ``binary_join_element_wise`` builds the
commands of a whole batch, and the data buffer behind its result is what the socket gets. No Python runs per row.

Nulls, said out loud: a null value means that its field is left out of that row's entry. The key is never null here
(``spark.refusals`` has refused that before).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

CRLF = b"\r\n"
#: One encoded array has 32-bit offsets; batches are cut so that it stays far below, and memory with it. In bytes.
MAX_ENCODED_BYTES = 32 * 1024 * 1024
#: What a row takes beside its values, about: field names, lengths and the command itself. In bytes.
_FRAME_BYTES = 256
#: The field that names the ticket, whatever the column is called.
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
    return column.cast(pa.binary())


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


def parts(batch: pa.RecordBatch, limit: int = MAX_ENCODED_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most ``limit`` bytes on the wire each, in order; a single row is never cut."""
    if batch.num_rows > 1 and batch.nbytes + batch.num_rows * _FRAME_BYTES > limit:
        half = batch.num_rows // 2
        yield from parts(batch.slice(0, half), limit)
        yield from parts(batch.slice(half), limit)
    elif batch.num_rows:
        yield batch


class EntryEncoder:
    """Turns batches into ``XADD <stream> * ticket_id <key> <field> <value> …``, one command per row."""

    def __init__(self, stream: str, key_column: str, fields: Sequence[str]) -> None:
        """``fields`` are the columns that follow the key, each a field of its own name."""
        self._command = bulk(b"XADD") + bulk(stream.encode()) + bulk(b"*")
        self._columns = [(key_column, KEY_FIELD), *((name, name) for name in fields)]

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """The commands of the rows, in order, as an array of binary with one element per row.

        The batch must be small enough for one array (``parts``). Any slice or offset in its arrays is respected.
        """
        pieces: list[pa.Array | pa.Scalar] = []
        literal = b""
        values_in_all = 0
        optional: list[pa.Array] = []
        for column_name, field_name in self._columns:
            values = as_bytes(batch.column(column_name))
            lengths = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
            opening = bulk(field_name.encode()) + b"$"
            if values.null_count == 0:
                values_in_all += 1
                pieces += [_scalar(literal + opening), lengths, _scalar(CRLF), values]
                literal = CRLF
                continue
            # The whole field is null where its value is, and an empty text in its place leaves it out.
            field = _join([_scalar(opening), lengths, _scalar(CRLF), values, _scalar(CRLF)])
            pieces += [_scalar(literal), pc.fill_null(field, b"")]
            literal = b""
            optional.append(values)
        pieces.append(_scalar(literal))
        commands = _join([*self._opening(3 + 2 * values_in_all, optional), *pieces])
        if commands.null_count:
            # A null command would drop its row in silence. Cannot happen while the two branches above are right.
            raise AssertionError("a row was encoded as nothing")
        return commands

    def _opening(self, arguments: int, optional: list[pa.Array]) -> list[pa.Array | pa.Scalar]:
        """The number of arguments and the part of the command before the fields."""
        if not optional:
            return [_scalar(b"*%d%s%s" % (arguments, CRLF, self._command))]
        counts: pa.Array | pa.Scalar = pa.scalar(arguments, pa.int64())
        for values in optional:
            counts = pc.add(counts, pc.multiply(pc.is_valid(values).cast(pa.int64()), 2))
        return [_scalar(b"*"), counts.cast(pa.string()).cast(pa.binary()), _scalar(CRLF + self._command)]


def chunks(commands: pa.Array, rows: int) -> Iterator[tuple[memoryview, int]]:
    """The wire in sends of at most ``rows`` commands: a view of the bytes, and how many commands it holds.

    Nothing is copied; the views stay valid while ``commands`` is alive.
    """
    _, offsets_buffer, data = commands.buffers()
    if data is None:
        return
    offsets = memoryview(offsets_buffer).cast("i")
    wire = memoryview(data)
    for start in range(0, len(commands), rows):
        end = min(start + rows, len(commands))
        first, last = commands.offset + start, commands.offset + end
        yield wire[offsets[first] : offsets[last]], end - start


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _join(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """The pieces of each row put together; null where any piece is null, never an invented text."""
    return pc.binary_join_element_wise(*pieces, b"", null_handling="emit_null")
