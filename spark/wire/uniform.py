r"""Pages whose entries all have the same fields in the same places, as producers write them.

Such a page is cut at its carriage returns, all of them found at once; no Python runs for an entry or a value. With
``|`` for CRLF, an entry of two fields, and where it is cut::

    |*2|$3|  5-0  |*4|$9|ticket_id|$2|  T1  |$7|payload|$2|  {}
    header   id   header                value  header        value

Headers and values alternate, each begins where the one before it ends, and together they are the whole page. The cuts
are verified: each header must be, byte for byte, the header of a value of this length in this field. Then a parser of
the protocol reads the same values: it skips as many bytes as a header announces, which is where the next header begins.
A page that fails the check is read in the general way of ``bridge.spark.wire.page``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from bridge.spark.wire.encoder import CRLF, announcements
from bridge.spark.wire.places import places

#: Line ends of an entry before its fields: after ``*2``, ``$<length>``, the id, ``*<fields and values>``.
_HEAD = 4
#: Line ends of a field: after ``$<length>``, the name, ``$<length>``, the value.
_PER_FIELD = 4
#: Bytes that are searched for line ends at once: the search keeps a number of 4 bytes for each place.
_SEARCHED = 1024 * 1024
#: Places in a page are 32-bit numbers. The values of a larger page are so large that the general way costs little.
_LARGEST = 2**31 - 1
_NUMBER = re.compile(rb"\*(\d{1,10})")
_CARRIAGE_RETURN = pa.scalar(CRLF[0], pa.uint8())


class UniformPage:
    """Every entry has the fields ``names``, in this order."""

    def __init__(self, ids: pa.Array, names: Sequence[bytes], values: Sequence[pa.Array]) -> None:
        self.ids = ids
        #: The last one of several fields with one name counts.
        self._values = dict(zip(names, values, strict=True))

    def values_of(self, name: bytes) -> pa.Array:
        found = self._values.get(name)
        return pa.nulls(len(self.ids), pa.binary()) if found is None else found

    def others(self, own: frozenset[bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        names = [name for name in self._values if name not in own]
        rows, width = len(self.ids), len(names)
        offsets = places(0, rows * width + width, width) if width else pa.repeat(0, rows + 1)
        if not width:
            return offsets, pa.array([], pa.binary()), pa.array([], pa.binary())
        at = places(0, rows * width)
        row = pc.divide(at, width)
        which = pc.subtract(at, pc.multiply(row, width))
        # Column after column: the value of field `which` of entry `row` is at which * rows + row.
        columns = pa.concat_arrays([self._values[name] for name in names])
        values = columns if width == 1 else columns.take(pc.add(pc.multiply(which, rows), row))
        return offsets, pa.array(names, pa.binary()).take(which), values


def read_uniform(data: pa.Buffer) -> UniformPage | None:
    """The page, when all its entries are like the first; else None.

    ``data`` ends with a line end. What is returned holds nothing of it.
    """
    if len(data) > _LARGEST:
        return None
    ends = _line_ends(data)
    count = _announced(data, 0, ends[0].as_py())
    if not count:
        return UniformPage(pa.array([], pa.binary()), [], []) if count == 0 and len(ends) == 1 else None
    if len(ends) < 1 + _HEAD + _PER_FIELD:
        return None
    fields, odd = divmod(_announced(data, ends[_HEAD - 1].as_py() + len(CRLF), ends[_HEAD].as_py()) or 0, 2)
    if not fields or odd or len(ends) != 1 + count * (_HEAD + _PER_FIELD * fields):
        return None
    cuts = _cuts(ends, count, fields)
    pieces = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, cuts.buffers()[1], data])
    if pc.min(pc.binary_length(pieces)).as_py() < 0:
        # Two carriage returns side by side: this is no uniform page, and its pieces are invalid.
        return None
    names = [_name(data, ends, field) for field in range(fields)]
    columns = []
    for at, ahead in enumerate(_headers(names)):
        values = _every(pieces, 2 * at + 1, 2 * (fields + 1))
        if not _every(pieces, 2 * at, 2 * (fields + 1)).equals(announcements(values, ahead)):
            return None
        columns.append(values)
    return UniformPage(columns[0], names, columns[1:])


def _line_ends(data: pa.Buffer) -> pa.Array:
    """Where the carriage returns are."""
    found = []
    for start in range(0, len(data), _SEARCHED):
        size = min(_SEARCHED, len(data) - start)
        there = pc.equal(pa.Array.from_buffers(pa.uint8(), size, [None, data], offset=start), _CARRIAGE_RETURN)
        found.append(pc.add(_places().slice(0, size).filter(there), pa.scalar(start, pa.int32())))
    return pa.concat_arrays(found)


@cache
def _places() -> pa.Array:
    return places(0, _SEARCHED).cast(pa.int32())


def _cuts(ends: pa.Array, count: int, fields: int) -> pa.Array:
    """Where each header and each value begins, in order, and where the last value ends."""
    which, behind = _cut_at(fields, 1 << (count - 1).bit_length())
    cuts = 2 * (fields + 1) * count + 1
    return pc.add(ends.take(which.slice(0, cuts)), behind.slice(0, cuts))


@lru_cache(maxsize=8)
def _cut_at(fields: int, entries: int) -> tuple[pa.Array, pa.Array]:
    """For any page of at most ``entries`` entries: the line end of each cut, and the bytes between the two."""
    # A header begins with the end of the value before it, and its last line is the length of its own value.
    firsts = [0, _HEAD - 1, *range(2 * _HEAD, _HEAD + _PER_FIELD * fields, _PER_FIELD)]
    lasts = [2, *range(_HEAD + 3, _HEAD + _PER_FIELD * fields, _PER_FIELD)]
    entry = [place for header in zip(firsts, lasts, strict=True) for place in header]
    starts = range(0, (entries + 1) * (_HEAD + _PER_FIELD * fields), _HEAD + _PER_FIELD * fields)
    which = pa.array([start + place for start in starts for place in entry], pa.int32())
    return which, pa.array([0, len(CRLF)] * (fields + 1) * (entries + 1), pa.int32())


def _every(pieces: pa.Array, first: int, step: int) -> pa.Array:
    return pieces.take(places(first, len(pieces), step))


def _headers(names: Sequence[bytes]) -> list[bytes]:
    """The bytes between a value and the length of the next one: before the id, and before each field's value."""
    ahead = [b"\r\n$%d\r\n%b\r\n$" % (len(name), name) for name in names]
    ahead[0] = b"\r\n*%d%b" % (2 * len(names), ahead[0])
    return [b"\r\n*2\r\n$", *ahead]


def _name(data: pa.Buffer, ends: pa.Array, field: int) -> bytes:
    """The name of a field, as the first entry has it."""
    length = _HEAD + _PER_FIELD * field + 1
    start, end = ends[length].as_py() + len(CRLF), ends[length + 1].as_py()
    return bytes(data[start:end].to_pybytes()) if start <= end else b""


def _announced(data: pa.Buffer, start: int, end: int) -> int | None:
    """The number of elements that a line announces; None when it does not."""
    line = _NUMBER.fullmatch(data[start : max(start, end)].to_pybytes())
    return int(line[1]) if line else None
