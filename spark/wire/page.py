r"""A page of entries, from the bytes of the reply to columns.

The reply to XRANGE, with line ends shown as ``|`` (each is CRLF)::

    *2|  *2|$3|5-0|*4|$9|ticket_id|$2|T1|$7|payload|$2|{}|  *2|$3|6-0|*2|$9|ticket_id|$2|T2|

There are two ways to read it. ``bridge.spark.wire.uniform`` reads the usual page, whose entries all have the same
fields in the same places and no carriage return in a value; it makes no Python object for a value. All other pages are
read with a Python object for each value: by hiredis, or more slowly where an executor's Python lacks hiredis.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.spark.wire.encoder import CRLF
from bridge.spark.wire.places import places
from bridge.spark.wire.uniform import read_uniform

#: Whether this Python has hiredis.
HIREDIS = find_spec("hiredis") is not None

if TYPE_CHECKING:
    from collections.abc import Sequence


class MalformedReply(ValueError):
    """The bytes are no reply to XRANGE. This cannot happen with a server that speaks the protocol."""


class Page(Protocol):
    """The entries of one reply, in their order. Arrays are of type binary and have an element per entry."""

    #: The ids.
    ids: pa.Array

    def values_of(self, name: bytes) -> pa.Array:
        """This field's value in each entry; null where it has none, the last where it has several."""

    def others(self, own: frozenset[bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The fields that are not in ``own``: offsets (where the fields of each entry begin), names, and values.

        An entry has each name once, with the last of its values.
        """


class VariedPage:
    """Entries that differ in their fields."""

    def __init__(self, ids: pa.Array, counts: Sequence[int], names: pa.Array, values: pa.Array) -> None:
        """``counts`` says how many fields each entry has; ``names`` and ``values`` hold those of all, in order."""
        self.ids = ids
        self._values = values
        self._owners = pa.array([row for row, count in enumerate(counts) for _ in range(count)], pa.int64())
        encoded = names.dictionary_encode()
        self._names: list[bytes] = encoded.dictionary.to_pylist()
        self._codes = encoded.indices

    def values_of(self, name: bytes) -> pa.Array:
        if name not in self._names:
            return pa.nulls(len(self.ids), pa.binary())
        which = pc.equal(self._codes, self._names.index(name))
        # Backwards, since index_in finds the first, and the last one counts.
        owners, values = (array.filter(which) for array in (self._owners, self._values))
        # A slice with a step needs NumPy, before pyarrow 21.
        backwards = places(len(owners) - 1, -1, -1)
        owners, values = owners.take(backwards), values.take(backwards)
        return values.take(pc.index_in(places(0, len(self.ids)), value_set=owners))

    def others(self, own: frozenset[bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        foreign = [name not in own for name in self._names]
        fields = zip(self._owners.to_pylist(), self._codes.to_pylist(), strict=True)
        last = {field: at for at, field in enumerate(fields) if foreign[field[1]]}
        # A dictionary keeps the place of the first of a name, so entries stay together.
        offsets = [0] * (len(self.ids) + 1)
        for owner, _ in last:
            offsets[owner + 1] += 1
        for row in range(len(self.ids)):
            offsets[row + 1] += offsets[row]
        names = pa.array([self._names[code] for _, code in last], pa.binary())
        return pa.array(offsets, pa.int64()), names, self._values.take(pa.array(list(last.values()), pa.int64()))


def read_page(data: pa.Buffer) -> Page:
    """The entries in one reply to XRANGE. ``data`` is the whole reply and nothing else.

    The result holds no reference to ``data``. Raises ``MalformedReply`` when it is no such reply.
    """
    if len(data) < len(b"*0\r\n") or data[-2:].to_pybytes() != CRLF:
        raise MalformedReply("the reply does not end with a line end")
    return read_uniform(data) or _parsed(data)


def _parsed(data: pa.Buffer) -> VariedPage:
    """The page, read in the general way."""
    try:
        entries = _entries(data)
        ids, counts, names, values = [], [], [], []
        for id_, flat in entries:
            ids.append(id_)
            counts.append(len(flat) // 2)
            names += flat[::2]
            values += flat[1::2]
        columns = [pa.array(column, pa.binary()) for column in (ids, names, values)]
    except (TypeError, ValueError) as error:
        raise MalformedReply(f"the reply is no list of entries: {error}") from None
    if len(names) != len(values) or any(column.null_count for column in columns):
        raise MalformedReply("an entry has a field without a value")
    return VariedPage(columns[0], counts, *columns[1:])


def _entries(data: pa.Buffer) -> Any:
    """The value of a reply: lists and bytes, if it is valid. Raises ``ValueError``."""
    if not HIREDIS:
        return Reply(data.to_pybytes()).whole()
    import hiredis

    reader = hiredis.Reader(protocolError=ValueError)
    reader.feed(data)
    found = reader.gets()
    if reader.has_data():
        raise ValueError("something follows the reply")
    return found


class Reply:
    """A reply of lists and bulk strings, read without hiredis."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Any:
        """The reply's value. Nothing may follow it. Raises ``ValueError``."""
        found = self._value()
        if self._at != len(self._text):
            raise ValueError("something follows the reply")
        return found

    def _value(self) -> Any:
        end = self._text.index(CRLF, self._at)
        kind, digits = self._text[self._at : self._at + 1], self._text[self._at + 1 : end]
        # Python takes more texts for numbers than the protocol does.
        if not digits.isdigit() or (digits != b"0" and digits.startswith(b"0")):
            raise ValueError(f"{digits[:20]!r} is not a length")
        number, self._at = int(digits), end + len(CRLF)
        if kind == b"*":
            return [self._value() for _ in range(number)]
        value = self._text[self._at : self._at + number]
        self._at += number + len(CRLF)
        if kind != b"$" or self._text[self._at - len(CRLF) : self._at] != CRLF:
            raise ValueError(f"a value of kind {kind!r}, or of another length")
        return value
