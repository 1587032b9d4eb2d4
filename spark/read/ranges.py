"""The ranges of ids that the tasks of a read fetch, each with about the same number of entries.

A range is of one stream. Where there are more streams than tasks, a task fetches several ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis
from pyspark.sql.datasource import InputPartition

from bridge.spark.read.splitting import SAMPLE, cuts
from bridge.spark.read.stream_info import UNANSWERED
from bridge.spark.read.streams import Source
from bridge.spark.wire.address import RedisConnection, unavailable
from bridge.spark.wire.entry_ids import EntryId

#: Entries of one task, where the user gives no number of tasks: enough work to be worth its start.
ENTRIES_PER_TASK = 250_000
#: Most tasks, where the user gives no number.
MOST_TASKS = 64


@dataclass(frozen=True)
class Range:
    """Entries of one stream, from ``first`` to ``last``, both included."""

    source: Source
    first: EntryId
    last: EntryId
    #: How many entries that is, if it was counted. A read that finds fewer has lost some.
    rows: int | None = None
    #: Whether ``first`` was an entry when the read was planned.
    begins: bool = False


@dataclass
class TaskRanges(InputPartition):
    """What one task reads, range by range."""

    ranges: tuple[Range, ...]


def ranges(
    connection: RedisConnection, url: str, source: Source, bounds: tuple[EntryId, EntryId], parts: int
) -> list[Range]:
    """The ids from one entry to another (``bounds``), in at most ``parts`` ranges without a gap.

    Raises ``ServerUnavailable``.
    """

    def probe(ids: Sequence[EntryId]) -> list[list[EntryId]]:
        replies: list[object] = []
        try:
            for start in range(0, len(ids), UNANSWERED):
                some = ids[start : start + UNANSWERED]
                for id_ in some:
                    connection.send_command("XRANGE", source.key, str(id_), "+", "COUNT", str(SAMPLE))
                replies += [connection.read_response(disable_decoding=True) for _ in some]
        except (redis.RedisError, OSError) as error:
            raise unavailable(url, error) from None
        return [[EntryId.of(entry[0]) for entry in cast(list[list[bytes]], reply)] for reply in replies]

    first, last = bounds
    begins = cuts(probe, first, last, parts)
    ends = [*(begin.before() for begin in begins[1:]), last]
    return [Range(source, begin, end, begins=True) for begin, end in zip(begins, ends, strict=True)]


def tasks_for(entries: int, streams: int = 1) -> int:
    """How many tasks read these entries of so many streams, where the user gives no number of tasks."""
    return max(1, min(MOST_TASKS, max(-(-entries // ENTRIES_PER_TASK), streams)))
