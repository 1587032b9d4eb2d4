"""How far a streaming read has come, and how missing entries are counted.

An offset is the id of the last entry, and a **position**. Ids alone do not show what is gone: a stream that was trimmed
beyond an offset looks like one to which less was added. The server counts every entry that was ever added
(``entries-added``, from version 7.0 on). When an offset is planned, its position is that counter less the entries that
follow the id:

    position = added - present after the id

Later, ``added - position`` entries should be present after the id; those that are not are lost. A deletion before the
id changes neither side. A deletion after the id, of an entry that was not read, changes only the right side. An entry
that was missing when an offset was planned is counted then, and not again.

In nearly all cases the number of entries after an id is known without reading them:

- The first entry of the stream is after the id: then all entries are. Trimming and deletions do not matter.
- An entry before or at the id exists, and no entry after it was ever deleted singly (``max-deleted-entry-id``).
  Trimming begins at the oldest entry, so it has not reached the id: every entry that was added after the id exists.

Otherwise an entry after the id was deleted singly, and the entries are counted by reading them.

A query of a split stream has one offset for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.spark.read.stream_info import StreamInfo
from bridge.spark.wire.entry_ids import EntryId


@dataclass(frozen=True)
class Offset:
    """The end of an epoch and the beginning of the next."""

    #: The last entry that was planned so far. The next epoch begins after it.
    id: EntryId
    #: See above. None: not known, since the server does not count, or not known yet.
    position: int | None
    #: Entries planned since the query began. The difference of two offsets is what must be read between them.
    rows: int = 0
    #: Entries found missing since the query began.
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        """As the query's checkpoint keeps it."""
        return {"id": str(self.id), "position": self.position, "rows": self.rows, "lost": self.lost}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Offset:
        """The offset of a checkpoint."""
        return cls(EntryId.of(kept["id"]), kept["position"], kept["rows"], kept["lost"])


@dataclass(frozen=True)
class Offsets:
    """The offset of each stream that a query reads, by the name of the stream."""

    each: Mapping[str, Offset]

    @property
    def rows(self) -> int:
        """Entries of all streams planned since the query began."""
        return sum(offset.rows for offset in self.each.values())

    @property
    def lost(self) -> int:
        """Entries of all streams found missing since the query began."""
        return sum(offset.lost for offset in self.each.values())

    def to_json(self, stream: str) -> dict[str, Any]:
        """As the query's checkpoint keeps it: of ``stream`` alone, its offset, as before streams could be split."""
        if self.each.keys() == {stream}:
            return self.each[stream].to_json()
        return {"streams": {name: offset.to_json() for name, offset in self.each.items()}}

    @classmethod
    def of(cls, kept: Mapping[str, Any], stream: str) -> Offsets:
        """The offsets of the checkpoint of a query of ``stream``."""
        if "streams" not in kept:
            return cls({stream: Offset.of(kept)})
        return cls({name: Offset.of(offset) for name, offset in kept["streams"].items()})


def present_after(info: StreamInfo, id_: EntryId, position: int | None) -> int | None:
    """How many entries follow ``id_``, which has this position; None when they must be counted."""
    if info.added is None:
        return None
    if info.first is None or info.first > id_:
        return info.length
    if position is not None and info.deleted <= id_:
        return info.added - position
    return None


def missing_after(info: StreamInfo, offset: Offset, present: int) -> int:
    """How many entries after ``offset`` are gone, when ``present`` exist; 0 where that cannot be known."""
    if info.added is None or offset.position is None:
        return 0
    return info.added - offset.position - present


def is_another_stream(info: StreamInfo, offset: Offset) -> bool:
    """Whether the stream was deleted, and perhaps created again, since the offset was planned."""
    if info.added is not None and offset.position is not None and info.added < offset.position:
        return True
    # Ids only grow in one stream. A query that has not read anything may begin at an id in the future.
    return offset.rows > 0 and info.last_generated < offset.id
