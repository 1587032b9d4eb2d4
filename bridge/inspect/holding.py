"""How many messages are not due and hold their tickets, and how many tickets wait for such a message now.

The sorted set `holding` has such a message until it is done or dead, also when it is due or in flight, and when its
ticket is parked. So it is not enough to count the set's members.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.inspect.scans import LIMIT, PAGE_MAX
from bridge.routing.ids import member_of, younger_than
from bridge.routing.records import is_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from bridge.inspect.roster import Pending
    from bridge.settings.lane import LaneSettings

#: Pages of tickets that await something, and how many are in a page.
PAGES = 20
PAGE = 10_000


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
    `PAGES` * `PAGE` tickets that await something, only so many are looked at. Raises redis errors.
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
    return Holding(messages, sum(_held(redis, lane)), next_ms)


def _held(redis: Redis, lane: LaneSettings) -> Iterator[int]:
    """How many tickets wait for a message that is not due, page by page: each is in the set of the retries."""
    keys = lane.keys
    for page in range(PAGES):
        span = ("-inf", "+inf", "LIMIT", page * PAGE, PAGE)
        tickets: Any = redis.execute_command("ZRANGEBYSCORE", keys.retries, *span)
        if tickets:
            records: Any = redis.hmget(keys.tickets, tickets)
            yield sum(record is not None and is_held(record) for record in records)
        if len(tickets) < PAGE:
            return


def _shelved(redis: Redis, lane: LaneSettings, pending: Pending, now_ms: int) -> Iterator[int]:
    """How many of the messages of parked tickets are not due and hold their tickets, some tickets at a time."""
    keys, looked_at = lane.keys, 0
    spans = dict.fromkeys(pending.of_parked, ("-", "+"))
    while spans and looked_at < LIMIT:
        some = list(islice(spans.items(), PAGE_MAX))
        size = max(1, PAGE_MAX // len(some))
        with redis.pipeline(transaction=False) as pipe:
            for ticket, span in some:
                name = keys.parked_consumer(lane.master, ticket)
                pipe.execute_command("XPENDING", keys.stream, keys.group, *span, size, name)
            pages = pipe.execute()
        with redis.pipeline(transaction=False) as pipe:
            for rows in pages:
                for row in rows:
                    pipe.zscore(keys.holding, member_of(row[0].decode()))
            yield sum(due is not None and int(due) > now_ms for due in pipe.execute())
        for (ticket, _), rows in zip(some, pages, strict=True):
            looked_at += len(rows)
            if len(rows) < size:
                del spans[ticket]
            else:
                spans[ticket] = younger_than(rows[-1][0].decode())
