"""The older versions of an app's streams that the app does not name any more, and that are not retired (*dropped*).
Nobody leads them, and newer messages of their tickets wait. Never writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import NoPermissionError

from bridge.inspect.scans import MUCH_UNREAD, search_stream
from bridge.routing.keys import LaneKeys, follows_key
from bridge.routing.versions import dropped_versions, left_behind, undone_in

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane


class Dropped(NamedTuple):
    """``stream``, an older version of ``newer``, for the subscription ``group``."""

    stream: str
    group: str
    newer: str


def read_dropped(redis: Redis, lanes: Sequence[AppLane]) -> list[Dropped]:
    """The dropped versions of ``lanes``. One round trip where no stream has versions. Raises redis errors."""
    newest = [lane for lane in lanes if not lane.newer]
    streams = list(dict.fromkeys(lane.settings.stream for lane in newest))
    with redis.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.get(follows_key(stream))
        noted = pipe.execute(raise_on_error=False)
    for reply in noted:
        if isinstance(reply, Exception) and not isinstance(reply, NoPermissionError):
            raise reply
    following = {stream for stream, reply in zip(streams, noted, strict=True) if reply is not None}
    return [
        Dropped(stream, lane.name, lane.settings.stream)
        for lane in newest
        if lane.older or lane.settings.stream in following
        for stream in _of(redis, lane)
    ]


def dropped_problems(redis: Redis, found: Sequence[Dropped]) -> list[str]:
    """A sentence for each of ``found`` that has undone messages: what its leader logs, too. Raises redis errors."""
    return [
        f"{left_behind(redis, one.stream, one.newer, one.group)}; newer messages of their tickets wait"
        for one in found
        if undone_in(redis, one.stream, one.group)[0]
    ]


def waits_for_dropped(redis: Redis, lane: AppLane, ticket: str) -> str:
    """Says that ``ticket`` waits in ``lane`` for a dropped version, by what the script that dispatches compares. Empty:
    it does not. Raises redis errors.
    """
    for stream in _of(redis, lane):
        done_to = undone_in(redis, stream, lane.name)[1]
        later = search_stream(redis, LaneKeys(stream, lane.name), ticket.encode(), done_to)
        waits = f"it waits for {stream}, an older version that bridge_follows does not name"
        todo = "name it in bridge_follows until its messages are done"
        if later.count:
            return f"{waits}, and has a message there: {todo}"
        if later.looked_at >= MUCH_UNREAD:
            return f"{waits}, since many messages came there: {todo}"
    return ""


def _of(redis: Redis, lane: AppLane) -> list[str]:
    with suppress(NoPermissionError):
        older = [version.stream for version in lane.older]
        return dropped_versions(redis, lane.settings.stream, lane.name, older, lane.partition_streams)
    return []
