"""Bounds the history: it keeps at least ``bridge_history`` results, and little more.

Redis bounds a stream by its entries, and an entry of the history has the results of a whole step: one on an idle lane,
hundreds under a backlog. So the leader knows how many results each of the newest entries has. It notes what it writes.
What other terms wrote is counted in pages, one page with each write, and until that is done each entry counts as one
result. So after a change of leader the history may have up to twice as many results for some hundred steps.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import orjson

from bridge.routing.history import rows_in

if TYPE_CHECKING:
    from bridge.link.connections import Wire

#: The numbers of results are noted for groups of entries. A group has at most this part of ``bridge_history``.
PART = 16
#: Fewest entries in one page, and about how many bytes a page should have. More than one: the count must be faster than
#: the leader, which writes an entry with each page.
FEWEST = 4
PAGE_BYTES = 64 * 1024


class _Newest:
    """The newest entries of the history that together have ``limit`` results, as far as they are known."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.entries = 0
        self.results = 0
        #: (entries, results) of each group, oldest first.
        self._groups: deque[tuple[int, int]] = deque()

    def add(self, results: int) -> None:
        """Adds an entry after the newest one."""
        self.entries += 1
        self.results += results
        entries, of_last = self._groups[-1] if self._groups else (0, 0)
        if entries and of_last + results <= self._limit // PART:
            self._groups[-1] = (entries + 1, of_last + results)
        else:
            self._groups.append((1, results))
        while self.results - self._groups[0][1] >= self._limit:
            entries, results = self._groups.popleft()
            self.entries -= entries
            self.results -= results


class HistoryCap:
    """The bound of the history ``key`` in one term. ``limit``: fewest results that it keeps."""

    def __init__(self, limit: int, wire: Wire, key: str) -> None:
        self._limit = limit
        self._wire = wire
        self._key = key
        self._newest = _Newest(limit)
        #: All entries, while they are counted; None: `_newest` knows them.
        self._counted: _Newest | None = _Newest(limit)
        self._after = "-"
        self._page = FEWEST

    def with_next(self) -> int:
        """How many entries the history may have when the next one is written, that one included. Counts a page more."""
        if self._counted is not None:
            self._count(self._counted)
        return self._newest.entries + 1 + max(0, self._limit - self._newest.results)

    def wrote(self, results: int) -> None:
        """Notes that an entry was written. 0 results: none was."""
        if results:
            self._newest.add(results)

    def _count(self, counted: _Newest) -> None:
        page = self._wire.call("XRANGE", self._key, self._after, "+", "COUNT", self._page)
        used = 0
        for _, fields in page:
            rows = rows_in(fields)
            used += len(rows)
            counted.add(_results_in(rows))
        if len(page) < self._page:
            # This includes what this term has written so far.
            self._newest, self._counted = counted, None
            return
        self._after = f"({page[-1][0].decode()}"
        self._page = max(FEWEST, PAGE_BYTES * len(page) // max(1, used))


def _results_in(rows: bytes) -> int:
    try:
        found = orjson.loads(rows)
    except ValueError:
        # Not written by a leader.
        return 1
    return len(found) if isinstance(found, list) else 1
