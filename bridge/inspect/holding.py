"""How many messages are not due and hold their tickets, and how many tickets wait for such a message now.

The sorted set `holding` has such a message until it is dispatched, also when it is due and waits behind another one,
and when its ticket is parked. So it is not enough to count the set's members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.inspect.scans import LIMIT, PAGE_MAX
from bridge.routing.ids import member_of, younger_than
from bridge.routing.records import is_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from bridge.inspect.roster import Pending
    from bridge.settings.lane import LaneSettings

#: Ticket records that are read, about, where messages hold their tickets: `RECORDS` in each of so many pages.
PAGES = 20
RECORDS = 10_000


@dataclass(frozen=True)
class Holding:
    """``messages``: those that are not due, without those of parked tickets. ``tickets``: those whose record says that
    the ticket waits for its oldest message until that is due. ``next_ms``: when the next message is due.
    """

    messages: int = 0
    tickets: int = 0
    next_ms: int | None = None


def read_holding(redis: Redis, lane: LaneSettings, pending: Pending, now_ms: int) -> Holding:
    """For a lane whose set `holding` is not empty. Of more than `LIMIT` messages of parked tickets, and of more than
    `PAGES` * `RECORDS` ticket records, only so many are looked at. Raises redis errors.
    """
    behind = (lane.keys.holding, f"({now_ms}", "+inf")
    with redis.pipeline(transaction=False) as pipe:
        pipe.zcount(*behind)
        pipe.execute_command("ZRANGEBYSCORE", *behind, "WITHSCORES", "LIMIT", 0, 1)
        messages, first = pipe.execute()
    if messages:
        messages -= sum(_shelved(redis, lane, pending, now_ms))
    # Member and score, in a list of their own with RESP 3.
    next_ms = int((first[0] if len(first) == 1 else first)[1]) if messages else None
    tickets, cursor = 0, 0
    for _ in range(PAGES):
        found: Any = redis.execute_command("HSCAN", lane.keys.tickets, cursor, "COUNT", RECORDS)
        cursor, flat = int(found[0]), found[1]
        tickets += sum(map(is_held, flat.values() if isinstance(flat, dict) else flat[1::2]))
        if not cursor:
            break
    return Holding(messages, tickets, next_ms)


def _shelved(redis: Redis, lane: LaneSettings, pending: Pending, now_ms: int) -> Iterator[int]:
    """How many of the messages of parked tickets are not due and hold their tickets, page by page."""
    keys, looked_at = lane.keys, 0
    for ticket in pending.of_parked:
        span = ("-", "+")
        while looked_at < LIMIT:
            name = keys.parked_consumer(lane.master, ticket)
            rows: Any = redis.execute_command("XPENDING", keys.stream, keys.group, *span, PAGE_MAX, name)
            looked_at += len(rows)
            with redis.pipeline(transaction=False) as pipe:
                for row in rows:
                    pipe.zscore(keys.holding, member_of(row[0].decode()))
                yield sum(due is not None and int(due) > now_ms for due in pipe.execute())
            if len(rows) < PAGE_MAX:
                break
            span = younger_than(rows[-1][0].decode())
