"""Counts entries of a stream by reading them: the exact way, where the server's counters do not suffice."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.spark.read.fetch import Fetcher
from bridge.spark.read.ranges import Range
from bridge.spark.read.streams import Source
from bridge.spark.wire.entry_ids import EntryId

#: Larger than any number of entries: as ``each`` it puts all entries into one range.
ONE_RANGE = 2**63


@dataclass(frozen=True)
class Survey:
    """The entries that were found in a range of ids."""

    #: Ranges of at most as many entries as were asked for, in order, without a gap between them.
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        """All entries in the range."""
        return sum(part.rows or 0 for part in self.ranges)


def survey(url: str, source: Source, first: EntryId, last: EntryId, *, each: int, most: int | None = None) -> Survey:
    """The entries from ``first`` to ``last``, in ranges of ``each`` entries. ``most``: at most this many entries.

    Raises ``ServerUnavailable`` and ``RefusedByServer``.
    """
    ranges: list[Range] = []
    begin, held, counted = first, 0, 0
    end = first
    with Fetcher(url, source.key) as fetcher:
        for page in fetcher.pages(first, last):
            taken, rows = 0, len(page.ids)
            if most is not None:
                rows = min(rows, most - counted)
            while taken < rows:
                step = min(each - held, rows - taken)
                taken, held, counted = taken + step, held + step, counted + step
                end = EntryId.of(page.ids[taken - 1].as_py())
                if held == each:
                    ranges.append(Range(source, begin, end, rows=held))
                    begin, held = end.after(), 0
            if counted == most:
                break
    if held:
        ranges.append(Range(source, begin, end, rows=held))
    return Survey(tuple(ranges))
