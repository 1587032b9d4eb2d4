"""The next epoch of one stream: how many entries wait, and where the epoch ends when it takes some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.spark.read.offsets import Offset, missing_after, present_after
from bridge.spark.read.ranges import Range
from bridge.spark.read.stream_info import StreamInfo
from bridge.spark.read.streams import Source
from bridge.spark.read.survey import ONE_RANGE, Survey, survey


@dataclass(frozen=True)
class Taken:
    """The part of an epoch that one stream gives."""

    end: Offset
    #: The ranges of its entries, if planning has counted them.
    ranges: tuple[Range, ...] | None


class StreamEpoch:
    """What one stream has for the next epoch."""

    def __init__(
        self,
        url: str,
        source: Source,
        begin: Offset,
        info: StreamInfo,
        goal: Offset | None,
        lost: Callable[[str], None],
    ) -> None:
        """``begin``: where the epoch begins. ``goal``: where it ends at the latest; None: at the end of the stream.
        ``lost`` is called with a line about entries that are gone, and may raise.
        """
        self._url, self._info, self._lost = url, info, lost
        self.source, self.begin = source, begin
        end = goal if goal is not None and goal.id < info.last_generated else None
        self._last = info.last_generated if end is None else end.id
        #: Whether ids were given out after the offset. The entries may be gone.
        self.has_more = self._last > begin.id
        #: The entries that were counted by reading, and whether these are all that wait.
        self._counted: Survey | None = None
        self._counted_all = False
        if not self.has_more:
            return
        present = present_after(info, begin.id, begin.position)
        beyond = 0 if end is None else present_after(info, end.id, end.position)
        if info.added is not None and present is None:
            # Counted to the end of the stream: the missing entries follow from the number of all entries.
            present = survey(url, source, begin.id.after(), info.last_generated, each=ONE_RANGE).rows
        self._missing = 0 if present is None else missing_after(info, begin, present)
        if self._missing < 0:
            # More entries than were added after the offset: counter and ids are those of another stream.
            lost(f"stream {source.key!r} was deleted and created again since {begin.id} was read")
            self._missing = 0
        self._present = present
        #: Entries up to the last id; None where only reading can count them.
        self._all = None if present is None or beyond is None else present - beyond

    def waiting(self, most: int | None, each: int) -> int:
        """How many entries wait, at most ``most``. ``each``: entries of a range, where they are counted by reading."""
        if self._all is not None:
            return self._all if most is None else min(self._all, most)
        self._counted = self._survey(most, each)
        self._counted_all = self._counted.rows != most
        return self._counted.rows

    def take(self, rows: int, each: int) -> Taken:
        """The first ``rows`` of the entries that wait, in ranges of ``each`` entries, and what is missing after the
        beginning of the epoch.
        """
        last, found = self._last, self._counted
        if self._all is not None:
            is_all = rows == self._all
        else:
            is_all = self._counted_all and found is not None and found.rows == rows
        if not is_all:
            if found is None or found.rows != rows:
                found = self._survey(rows, each)
            if found.rows == rows:
                last = found.ranges[-1].last
            rows = found.rows
        if self._missing:
            gone = f"{self._missing:,} {'entry' if self._missing == 1 else 'entries'}"
            self._lost(f"{gone} after {self.begin.id} left stream {self.source.key!r} before they were read")
        position = None
        if self._present is not None and self._info.added is not None:
            position = self._info.added - (self._present - rows)
        end = Offset(last, position, self.begin.rows + rows, self.begin.lost + self._missing)
        return Taken(end, None if found is None else found.ranges)

    def _survey(self, most: int | None, each: int) -> Survey:
        return survey(self._url, self.source, self.begin.id.after(), self._last, each=each, most=most)
