"""The guard of a write: how far each partition is. It is kept in Redis beside the stream, and moves in the step that
appends.

A **mark** is the number of rows of a partition that are in the stream, and a digest of their bytes in order. An attempt
that finds a mark compares its own first rows with it and goes on after them. An attempt whose rows differ is refused.
The guard and the rows are written in one step, so a server that loses one of them loses both.
"""

from __future__ import annotations

import json
import re
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import cast

import redis
from redis import Redis

from bridge.routing.connection import client
from bridge.routing.errors import RunChanged
from bridge.routing.keys import push_waiting
from bridge.routing.pushes import Partition, guard_of
from bridge.spark.wire.address import ANSWER_TIMEOUT_S, RedisConnection
from bridge.spark.write.options import WriteOptions

#: The field of a guard that says when the batch began.
_BEGAN = "began"
_MARK = re.compile(r"(\d+) (\d+)( end)?", re.ASCII)
#: A note older than this, in milliseconds, is left over from a wait that has ended.
_NOTE_FRESH_MS = 10_000


@dataclass(frozen=True)
class Mark:
    """How far a partition is."""

    rows: int = 0
    #: CRC-32 of the rows' bytes: it shows another order of rows, but is no protection against malice.
    digest: int = 0
    #: Whether the partition is complete.
    over: bool = False

    def after(self, wire: memoryview, rows: int, names: bytes) -> Mark:
        """The mark when ``rows`` more rows with these bytes are written; ``names`` are the names of their fields."""
        before = self.digest if self.rows else zlib.crc32(names)
        return Mark(self.rows + rows, zlib.crc32(wire, before))

    @property
    def text(self) -> str:
        """As the guard keeps it."""
        return f"{self.rows} {self.digest}{' end' if self.over else ''}"

    @classmethod
    def of(cls, text: str) -> Mark:
        """The mark that a guard keeps as this text. Raises ``RunChanged`` for any other text."""
        found = _MARK.fullmatch(text)
        if found is None:
            raise RunChanged(f"the guard holds {text[:40]!r}, which is not a mark: something else writes to its key")
        return cls(int(found[1]), int(found[2]), found[3] is not None)


@dataclass(frozen=True)
class Summary:
    """What a committed write has done."""

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


def summary_of(connection: RedisConnection, options: WriteOptions, run: str) -> Summary | None:
    """What the last commit of a write has done; None when there is none, or its guard has expired."""
    connection.send_command("HGET", guard_of(options.stream, run, options.guard_key), "told")
    text = cast("bytes | None", connection.read_response(disable_decoding=True))
    return None if text is None else Summary(**json.loads(text))


def waiting(connection: RedisConnection, stream: str) -> list[Waiting]:
    """The partitions that wait for room in the stream now, the longest wait first."""
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


def began_ms(options: WriteOptions, run: str) -> int:
    """When the first attempt of a batch began, if it was noted; else the time now. In ms since 1970, by the server.

    What depends on the time must be the same in each attempt.
    """
    with client(options.url, timeout_s=ANSWER_TIMEOUT_S) as connected:
        noted = cast("bytes | None", connected.hget(guard_of(options.stream, run, options.guard_key), _BEGAN))
        seconds, us = cast("tuple[int, int]", connected.time())
    return seconds * 1000 + us // 1000 if noted is None else int(noted)


def note_began(options: WriteOptions, run: str, at_ms: int) -> None:
    """Notes when a batch began. It is kept as long as the guard."""
    guard = guard_of(options.stream, run, options.guard_key)
    # A full server takes no note, and the writer waits for it. Without the note, other rows are noticed later on.
    with suppress(redis.exceptions.OutOfMemoryError), client(options.url, timeout_s=ANSWER_TIMEOUT_S) as connected:
        connected.hset(guard, _BEGAN, str(at_ms))
        connected.expire(guard, options.guard_ttl)


def mark_of(connected: Redis, at: Partition) -> tuple[Mark, int | None]:
    """The mark of a partition (the empty mark if there is none), and the number of partitions its epoch began with."""
    mark, count = cast("list[bytes | None]", connected.hmget(at.guard, [at.field, f"{at.epoch}/of"]))
    return Mark() if mark is None else Mark.of(mark.decode(errors="replace")), None if count is None else int(count)
