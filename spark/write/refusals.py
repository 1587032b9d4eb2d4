"""The checks of a batch, before anything of it is written.

The checks look at whole Arrow columns. The row is searched only when a batch fails a check. Each refusal is one
line that names the ticket, or the row where it is missing, and the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bridge.routing.errors import PayloadError
from bridge.spark.wire.encoder import as_bytes, byte_lengths, is_bytes, is_text
from bridge.spark.write.limits import MAX_SEQUENCE, MAX_TICKET_BYTES
from bridge.spark.write.message_options import NOT_PAYLOAD

#: The first day of the year 1 and the last one of the year 9999, in days since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
PAYLOAD = "payload"
TASK = "task"
#: How the refusal of an empty task ends.
EMPTY_TASK = "is empty: null means the lane's default task"


def check_tickets(tickets: pa.Array) -> None:
    """Refuses a null or empty ticket, one over 512 bytes of UTF-8, and bytes that are not UTF-8."""
    if tickets.null_count:
        raise PayloadError(f"a row has no ticket (null), the first is row {_first(pc.is_null(tickets))} of its batch")
    if is_bytes(tickets.type) or is_text(tickets.type):
        try:
            # Also of a column of text, whose bytes Spark has not checked.
            tickets = tickets.cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            raise PayloadError("a ticket is not valid UTF-8") from None
    lengths = byte_lengths(tickets)
    extremes = pc.min_max(lengths)
    if not len(tickets):
        return
    if extremes["min"].as_py() == 0:
        row = _first(pc.equal(lengths, 0))
        raise PayloadError(f"a row has an empty ticket, the first is row {row} of its batch")
    longest = extremes["max"].as_py()
    if longest > MAX_TICKET_BYTES:
        start = as_bytes(tickets)[_first(pc.equal(lengths, longest))].as_py()[:40].decode(errors="ignore")
        raise PayloadError(f"a ticket has {longest} bytes, at most {MAX_TICKET_BYTES} are allowed: {start!r}…")


def check_tasks(batch: pa.RecordBatch, tickets: pa.Array, fields: Sequence[str]) -> None:
    """Refuses an empty task, of which masters make a dead letter."""
    if TASK not in fields:
        return
    empty = pc.fill_null(pc.equal(byte_lengths(batch.column(TASK)), 0), fill_value=False)
    if pc.any(empty).as_py():
        raise PayloadError(f"task of ticket {tickets[_first(empty)].as_py()!r} {EMPTY_TASK}")


def check_payloads(batch: pa.RecordBatch, tickets: pa.Array, fields: list[str], limit: int) -> None:
    """Refuses a payload over ``limit`` bytes.

    The payload of a row without ``payload`` is its other fields, as the bridge reads it. They are counted together.
    """
    rest = [name for name in fields if name not in (PAYLOAD, TASK, *NOT_PAYLOAD)]
    sizes: pa.Array | None = byte_lengths(batch.column(PAYLOAD)) if PAYLOAD in fields else None
    if rest and (sizes is None or sizes.null_count):
        together = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        for name in rest:
            named = pc.add(byte_lengths(batch.column(name)).cast(pa.int64()), len(name.encode()))
            together = pc.add(together, pc.fill_null(named, 0))
        sizes = together if sizes is None else pc.coalesce(sizes.cast(pa.int64()), together)
    largest = pc.max(sizes).as_py() if sizes is not None else None
    if largest is not None and largest > limit:
        ticket = tickets[_first(pc.equal(sizes, largest))].as_py()
        raise PayloadError(f"the payload of ticket {ticket!r} has {largest} bytes; maxPayload allows {limit}")


def check_dates(batch: pa.RecordBatch, tickets: pa.Array, names: list[str]) -> None:
    """Refuses a date outside the years 1 to 9999, which has no ISO text."""
    for name in names:
        column = batch.column(name)
        if not pa.types.is_date32(column.type):
            continue
        days = column.cast(pa.int32())
        odd = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
        if pc.any(odd).as_py():
            ticket = tickets[_first(odd)].as_py()
            raise PayloadError(f"{name} of ticket {ticket!r} is not a date of the years 1 to 9999")


def check_range(tickets: pa.Array, sequence: pa.Array, name: str) -> None:
    """Refuses a number that the server cannot compare: its scripts have 53 bits for a number."""
    for number in pc.min_max(sequence.cast(pa.int64())).as_py().values():
        if number is not None and abs(number) > MAX_SEQUENCE:
            ticket = tickets[_first(pc.equal(sequence, number))].as_py()
            raise PayloadError(f"{name} of ticket {ticket!r} is {number}; idempotence=ticket allows {MAX_SEQUENCE}")


class SequenceCheck:
    """Checks over one partition that the sequence rises within each ticket.

    Keeps the last number of each ticket of the partition: about 150 bytes per ticket while the partition is written.
    All rows of a ticket are in one partition if the DataFrame was partitioned by ticket.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._last: dict[object, int] = {}

    def check(self, tickets: pa.Array, sequence: pa.Array) -> None:
        """Refuses a null, and a number that is not larger than the one before it in the same ticket."""
        if not len(tickets):
            return
        if sequence.null_count:
            ticket = tickets[_first(pc.is_null(sequence))].as_py()
            raise PayloadError(f"ticket {ticket!r} has a row whose {self._column} is not a whole number")
        coded = tickets.dictionary_encode()
        # The sort is stable: the rows of a ticket become neighbours and keep their order.
        order = pc.array_sort_indices(coded.indices)
        codes, numbers = coded.indices.take(order), sequence.take(order)
        same = pc.equal(codes[1:], codes[:-1])
        falls = pc.and_(same, pc.less_equal(numbers[1:], numbers[:-1]))
        if len(falls) and pc.any(falls).as_py():
            at = _first(falls)
            self._refuse(coded.dictionary[codes[at].as_py()].as_py(), numbers[at].as_py(), numbers[at + 1].as_py())
        ends = pc.invert(same)
        first_of_ticket = numbers.filter(_concat([True], ends)).to_pylist()
        last_of_ticket = numbers.filter(_concat(ends, [True])).to_pylist()
        # Codes are given in order of appearance, so the dictionary has the order of the sorted groups.
        for ticket, first, last in zip(coded.dictionary.to_pylist(), first_of_ticket, last_of_ticket, strict=True):
            before = self._last.get(ticket)
            if before is not None and first <= before:
                self._refuse(ticket, before, first)
            self._last[ticket] = last

    def _refuse(self, ticket: object, before: int, after: int) -> None:
        raise PayloadError(f"{self._column} does not rise within ticket {ticket!r}: {after} comes after {before}")


def _concat(*pieces: pa.Array | list[bool]) -> pa.Array:
    return pa.concat_arrays([pa.array(piece, pa.bool_()) if isinstance(piece, list) else piece for piece in pieces])


def _first(mask: pa.Array) -> int:
    """Index of the first true element, which must exist."""
    found = pc.index(mask, value=True).as_py()
    return int(found)
