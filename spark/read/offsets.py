"""How far a streaming read has come, and how what is missing is counted.

An offset is the id of the last entry, and a **position**, since ids alone do not show what is gone: a stream that was
trimmed beyond an offset looks like one to which less was added. The server counts every entry that was ever added
(``entries-added``, from 7.0 on). The position is that counter less the entries that are still to come, as of the moment
at which the offset was planned:

    position = added - present after the id

So at any later moment ``added - position`` entries should be present after the id, and what is not is lost. It does not
matter where anything was deleted: before the id, neither side changes; after it, and not read, only the right one does.
What was missing when an offset was planned is counted there and then, and not again.

How many are present after an id needs no look at them in these cases, which are nearly all:

- The first entry is behind the id: all of them are present after it. (Whatever was trimmed or deleted.)
- An entry before or at the id is there, so trimming, which begins at the oldest, has not reached the id; and no entry
  behind it was ever deleted singly (``max-deleted-entry-id``): as many as were added behind it.

Otherwise, an entry behind the id was deleted singly: they are counted, by reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.spark.read.standing import Standing
from bridge.spark.wire.entry_ids import EntryId


@dataclass(frozen=True)
class Offset:
    """The end of an epoch and the beginning of the next."""

    #: The last entry that belongs to what was planned so far; the next epoch begins behind it.
    id: EntryId
    #: See above. None: not known, since the server does not count, or not yet.
    position: int | None
    #: Entries planned since the query began. The difference of two offsets is what must be read between them.
    rows: int = 0
    #: Entries found missing since the query began.
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        """As it stands in the query's checkpoint."""
        return {"id": str(self.id), "position": self.position, "rows": self.rows, "lost": self.lost}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Offset:
        """The offset of a checkpoint."""
        return cls(EntryId.of(told["id"]), told["position"], told["rows"], told["lost"])


def present_after(standing: Standing, id_: EntryId, position: int | None) -> int | None:
    """How many entries are in the stream behind ``id_``, whose position this is; None when they must be counted."""
    if standing.added is None:
        return None
    if standing.first is None or standing.first > id_:
        return standing.length
    if position is not None and standing.deleted <= id_:
        return standing.added - position
    return None


def missing_after(standing: Standing, offset: Offset, present: int) -> int:
    """How many entries behind ``offset`` are gone, when ``present`` are there; 0 where nobody can know."""
    if standing.added is None or offset.position is None:
        return 0
    return standing.added - offset.position - present


def is_another_stream(standing: Standing, offset: Offset) -> bool:
    """Whether the stream was deleted, and perhaps made anew, since the offset was planned."""
    if standing.added is not None and offset.position is not None and standing.added < offset.position:
        return True
    # Ids only grow in one stream. A query that has not read anything may begin at an id that is still to come.
    return offset.rows > 0 and standing.last_generated < offset.id
