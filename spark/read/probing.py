"""Plans a read: which entries a stream has now, cut into ranges of about equally many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis
from pyspark.sql.datasource import InputPartition

from bridge.spark.read.splitting import SAMPLE, cuts
from bridge.spark.wire.address import RedisConnection, unavailable
from bridge.spark.wire.entry_ids import EntryId

#: A task for so many entries, where the user names no number: enough work to be worth its start.
ENTRIES_PER_TASK = 250_000
#: Tasks at most, where the user names no number.
MOST_TASKS = 64
#: Questions that are sent before their answers are read: they wait in the server's memory.
_UNANSWERED = 500


@dataclass
class Range(InputPartition):
    """What one task reads: the entries from ``first`` to ``last``, both included."""

    first: EntryId
    last: EntryId
    #: How many entries that is, when it was counted; a read that finds fewer has lost some.
    rows: int | None = None
    #: ``first`` was an entry when the read was planned.
    begins: bool = False


def ranges(
    connection: RedisConnection, url: str, stream: str, bounds: tuple[EntryId, EntryId], parts: int
) -> list[Range]:
    """The ids between ``bounds``, which are two entries, in at most ``parts`` ranges without a gap.

    Raises ``ServerUnavailable``.
    """

    def probe(ids: Sequence[EntryId]) -> list[list[EntryId]]:
        replies: list[object] = []
        try:
            for start in range(0, len(ids), _UNANSWERED):
                some = ids[start : start + _UNANSWERED]
                for id_ in some:
                    connection.send_command("XRANGE", stream, str(id_), "+", "COUNT", str(SAMPLE))
                replies += [connection.read_response(disable_decoding=True) for _ in some]
        except (redis.RedisError, OSError) as error:
            raise unavailable(url, error) from None
        return [[EntryId.of(entry[0]) for entry in cast(list[list[bytes]], reply)] for reply in replies]

    first, last = bounds
    begins = cuts(probe, first, last, parts)
    ends = [*(begin.before() for begin in begins[1:]), last]
    return [Range(begin, end, begins=True) for begin, end in zip(begins, ends, strict=True)]


def tasks_for(entries: int) -> int:
    """How many tasks read so many entries, where the user names no number."""
    return max(1, min(MOST_TASKS, -(-entries // ENTRIES_PER_TASK)))
