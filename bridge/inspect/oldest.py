"""The time of a lane's oldest undone message that is not delayed. One that was delayed counts from when it was due."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.inspect.scans import LIMIT, PAGE_MAX
from bridge.routing.ids import id_key, member_of, younger_than

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.roster import Pending
    from bridge.settings.lane import LaneSettings

#: Names in the group that are asked for their oldest messages, and how many messages of each. More would be behind
#: older ones, unless many of the oldest ones were delayed: then the time is approximate.
NAMES = 64
OLDEST = 20


def oldest_ms(redis: Redis, lane: LaneSettings, pending: Pending, holding: int, now_ms: int) -> int | None:
    """Unix ms; None: every pending message is delayed, or there is none. ``holding``: messages that hold their tickets.
    Costs nothing where none is or was delayed. Raises redis errors.
    """
    if pending.first_ms is None or not (pending.of_delayed or pending.of_late or holding):
        return pending.first_ms
    keys = lane.keys
    aside = (keys.parked_consumer(lane.master, ticket) for ticket in pending.of_parked)
    names = list(islice((lane.master, *pending.of_consumers, *aside), NAMES))
    with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("ZRANGEBYSCORE", keys.delayed, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, 1)
        for name in names:
            pipe.execute_command("XPENDING", keys.stream, keys.group, "-", "+", OLDEST, name)
        overdue, *pages = pipe.execute()
    # Member and score, in a list of their own with RESP 3.
    times = [int((first[0] if len(first) == 1 else first)[1]) for first in (overdue,) if first]
    times += _times(redis, lane, [row[0].decode() for rows in pages for row in rows], now_ms)
    rows, size, looked_at = pages[0], OLDEST, 0
    # All that the master has may hold their tickets, so others may be behind them.
    while not times and len(rows) == size and looked_at < LIMIT:
        looked_at, size = looked_at + size, PAGE_MAX
        span = younger_than(rows[-1][0].decode())
        rows = redis.execute_command("XPENDING", keys.stream, keys.group, *span, size, lane.master)
        times += _times(redis, lane, [row[0].decode() for row in rows], now_ms)
    return min(times, default=None)


def _times(redis: Redis, lane: LaneSettings, ids: list[str], now_ms: int) -> list[int]:
    """From when each of these messages counts, without those that are not due."""
    with redis.pipeline(transaction=False) as pipe:
        for id_ in ids:
            pipe.zscore(lane.keys.late, member_of(id_))
            pipe.zscore(lane.keys.holding, member_of(id_))
        replies: list[Any] = pipe.execute()
    found = []
    for id_, late, held in zip(ids, replies[::2], replies[1::2], strict=True):
        due = late if late is not None else held
        if due is None or int(due) <= now_ms:
            found.append(id_key(id_)[0] if due is None else int(due))
    return found
