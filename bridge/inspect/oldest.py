"""The time of a lane's oldest undone message that is not delayed. One that was delayed counts from when it was due."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bridge.routing.ids import id_key, member_of

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.roster import Pending
    from bridge.settings.lane import LaneSettings

#: Names in the group that are asked for their oldest messages, and how many messages of each. More would be behind
#: older ones, unless many of the oldest ones were delayed: then the time is approximate.
NAMES = 64
OLDEST = 20


def oldest_ms(redis: Redis, lane: LaneSettings, pending: Pending) -> int | None:
    """Unix ms; None: every pending message is delayed, or there is none. Costs nothing where none is or was delayed.

    Raises redis errors.
    """
    if not (pending.of_delayed or pending.of_late):
        return pending.first_ms
    keys = lane.keys
    aside = (keys.parked_consumer(lane.master, ticket) for ticket in pending.of_parked)
    names = [lane.master, *pending.of_consumers, *aside]
    with redis.pipeline(transaction=False) as pipe:
        for name in islice(names, NAMES):
            pipe.execute_command("XPENDING", keys.stream, keys.group, "-", "+", OLDEST, name)
        ids = [row[0].decode() for rows in pipe.execute() for row in rows]
    with redis.pipeline(transaction=False) as pipe:
        for id_ in ids:
            pipe.zscore(keys.late, member_of(id_))
        dues = pipe.execute()
    return min((id_key(id_)[0] if due is None else int(due) for id_, due in zip(ids, dues, strict=True)), default=None)
