"""The guard of a write: how far each partition is, kept in Redis beside the stream and moved on in the step that
appends.

A **mark** says how many rows of a partition are in the stream, and a digest of their bytes in order. An attempt that
finds a mark compares its own first rows with it, and goes on behind them; one whose rows are others is refused. The
guard and the rows are written in one step, so whatever a server loses, it loses both.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import cast

from redis import Redis

from bridge.routing.errors import RunChanged
from bridge.routing.keys import push_waiting
from bridge.routing.pushes import Partition, guard_of
from bridge.spark.wire.address import RedisConnection
from bridge.spark.write.options import WriteOptions

_MARK = re.compile(r"(\d+) (\d+)( end)?", re.ASCII)
#: A note older than this is of somebody who does not wait any more, in milliseconds.
_NOTE_FRESH_MS = 10_000


@dataclass(frozen=True)
class Mark:
    """How far a partition is."""

    rows: int = 0
    #: CRC-32 of the rows' bytes: not proof against malice, but against another order of rows.
    digest: int = 0
    #: Whether that is all of the partition.
    over: bool = False

    def behind(self, wire: memoryview, rows: int, names: bytes) -> Mark:
        """The mark when ``rows`` more rows, which are these bytes, are written; ``names`` are those of their fields."""
        before = self.digest if self.rows else zlib.crc32(names)
        return Mark(self.rows + rows, zlib.crc32(wire, before))

    @property
    def text(self) -> str:
        """As the guard keeps it."""
        return f"{self.rows} {self.digest}{' end' if self.over else ''}"

    @classmethod
    def of(cls, text: str) -> Mark:
        """The mark in such a text. Raises ``RunChanged`` for one that nobody here has written."""
        found = _MARK.fullmatch(text)
        if found is None:
            raise RunChanged(f"the guard holds {text[:40]!r}, which is no mark: something else writes to its key")
        return cls(int(found[1]), int(found[2]), found[3] is not None)


@dataclass(frozen=True)
class Told:
    """What a committed write came to."""

    #: Rows of the write, and how many of them the last attempts found in the stream already.
    rows: int
    there_already: int
    partitions: int
    #: Longest that a partition waited for room, in seconds, and for what.
    waited_s: float = 0.0
    waited_for: str = ""

    @property
    def text(self) -> str:
        """As the guard keeps it."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Waiting:
    """A partition that waits now."""

    who: str
    why: str
    for_s: float


def told(connection: RedisConnection, options: WriteOptions, run: str) -> Told | None:
    """What the last commit of a write came to; None when there is none, or its guard has expired."""
    connection.send_command("HGET", guard_of(options.stream, run, options.guard_key), "told")
    text = cast("bytes | None", connection.read_response(disable_decoding=True))
    return None if text is None else Told(**json.loads(text))


def waiting(connection: RedisConnection, stream: str) -> list[Waiting]:
    """Who waits for room in the stream now, the longest first. For whoever shows a write's progress."""
    connection.send_command("HGETALL", push_waiting(stream))
    answer = cast("list[bytes]", connection.read_response(disable_decoding=True))
    connection.send_command("TIME")
    seconds, _ = cast("list[bytes]", connection.read_response(disable_decoding=True))
    found = []
    for who, note in zip(answer[::2], answer[1::2], strict=True):
        noted_ms, for_ms, why = note.decode(errors="replace").split(" ", 2)
        age_ms = int(seconds) * 1000 - int(noted_ms)
        if age_ms <= _NOTE_FRESH_MS:
            found.append(Waiting(who.decode(errors="replace"), why, (int(for_ms) + max(0, age_ms)) / 1000))
    return sorted(found, key=lambda note: -note.for_s)


def mark_of(client: Redis, at: Partition) -> tuple[Mark, int | None]:
    """The mark of a partition (of none yet, that of an empty one), and how many partitions its epoch was begun with."""
    mark, count = cast("list[bytes | None]", client.hmget(at.guard, [at.field, f"{at.epoch}/of"]))
    return Mark() if mark is None else Mark.of(mark.decode(errors="replace")), None if count is None else int(count)
