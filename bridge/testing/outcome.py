"""What became of the messages that a test pushed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery import Celery
from redis import Redis

from bridge.app.installed import bridge_of
from bridge.app.lanes import AppLane, lanes_of
from bridge.routing.groups import group_in, unless_missing
from bridge.routing.ids import id_key
from bridge.routing.layouts import find_layout
from bridge.settings.lane import LaneSettings

#: Seconds between two looks at the lane.
LANE_CHECK_S = 0.02


def lanes_here(app: Celery, redis: Redis) -> list[LaneSettings]:
    """The lanes of ``app``, on the partitions of the stream as it is."""
    return [lane.settings for lane in app_lanes_here(app, redis)]


def app_lanes_here(app: Celery, redis: Redis) -> Sequence[AppLane]:
    """The same, with what the app says of them."""
    found = bridge_of(app)
    settings = found.settings
    found.take_layout(find_layout(redis, settings.lane.stream, settings.partitions, settings.older_streams))
    return lanes_of(app)


def wait_until_done(redis: Redis, lanes: Sequence[LaneSettings], timeout_s: float) -> None:
    """Waits until every message that was pushed is done or dead. Raises `TimeoutError`, which says what is not."""
    end = time.monotonic() + timeout_s
    while (left := _first_undone(redis, lanes)) is not None:
        if time.monotonic() > end:
            raise TimeoutError(f"after {timeout_s:g} s the lane has {left}")
        time.sleep(LANE_CHECK_S)


def dead_letters(redis: Redis, lanes: Sequence[LaneSettings]) -> list[dict[str, str]]:
    """The messages that were given up, oldest first in each lane, with the fields of their letters."""
    found: list[Any] = [redis.xrange(lane.keys.dead) for lane in lanes]
    return [
        {name.decode(): value.decode(errors="backslashreplace") for name, value in fields.items()}
        for some in found
        for _, fields in some
    ]


def _first_undone(redis: Redis, lanes: Sequence[LaneSettings]) -> str | None:
    """What is undone in the first lane that has something.

    All lanes are read at one moment. A task may push a message, here or to another lane, just before it ends: two
    looks could see this lane before the push, and the task's own message after its end.
    """
    with redis.pipeline(transaction=True) as moment:
        for lane in lanes:
            moment.xinfo_stream(lane.stream)
            moment.xinfo_groups(lane.stream)
            moment.zcard(lane.keys.delayed)
        replies = moment.execute(raise_on_error=False)
    looks = zip(lanes, replies[::3], replies[1::3], replies[2::3], strict=True)
    return next(filter(None, (_undone(*look) for look in looks)), None)


def _undone(lane: LaneSettings, stream: Any, groups: Any, delayed: Any) -> str | None:
    stream = unless_missing(stream)
    if stream is None:
        return None
    group = group_in(groups, lane.group)
    if group is None:
        return "no group yet"
    newest = stream["last-entry"]
    if newest is not None and id_key(newest[0].decode()) > id_key(group.read_to):
        return "messages that were not read"
    if not group.pending:
        return None
    pending = f"{group.pending} pending message{'' if group.pending == 1 else 's'}"
    return f"{pending}{f', {delayed} of them delayed' if delayed else ''}"
