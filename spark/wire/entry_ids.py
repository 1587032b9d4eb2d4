"""Ids of stream entries: two whole numbers, compared as numbers. Compared as text, 9-0 would come after 10-0."""

from __future__ import annotations

import re
from typing import NamedTuple

#: The latest time of Spark's timestamps, in Unix ms: the end of the year 9999. An id need not be a time.
LAST_TIME_MS = 253_402_300_799_999
#: Both parts are unsigned 64-bit numbers.
_MOST = 2**64 - 1
_TEXT = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


class EntryId(NamedTuple):
    """One id. Tuples compare as the server compares ids."""

    #: Unix time in ms, unless the producer chose ids of its own.
    ms: int
    #: Its number within that ms.
    seq: int

    @classmethod
    def of(cls, text: str | bytes) -> EntryId:
        """The id in ``<ms>-<seq>``, or in ``<ms>``, which is the first of that ms. Raises ``ValueError``."""
        found = _TEXT.fullmatch(text.decode(errors="replace") if isinstance(text, bytes) else text)
        if found is None or int(found[1]) > _MOST or int(found[2] or 0) > _MOST:
            raise ValueError(f"{text!r} is no stream id")
        return cls(int(found[1]), int(found[2] or 0))

    def before(self) -> EntryId:
        """The id just before this one. Before 0-0, which no entry can have, it is 0-0."""
        if self.seq:
            return EntryId(self.ms, self.seq - 1)
        return EntryId(self.ms - 1, _MOST) if self.ms else self

    def after(self) -> EntryId:
        """The id just after this one."""
        return EntryId(self.ms, self.seq + 1) if self.seq < _MOST else EntryId(self.ms + 1, 0)

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"


#: Before every entry: no entry can have it.
ZERO = EntryId(0, 0)
#: At or after every entry.
LAST = EntryId(_MOST, _MOST)
