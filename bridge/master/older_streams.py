"""Checks, when a master starts, that the older versions that its lanes follow are the right ones.

A lane waits for the messages of its own group on the older versions. So it waits for nothing when the name of an older
stream has a typo, or when the group has another name there. A warning says both. A master refuses to start when an
older version has undone messages of a group that the app does not have any more: newer messages of their tickets would
start before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError, ResponseError

from bridge.protocol.agreement import app_name
from bridge.routing.errors import ConfigurationError
from bridge.routing.groups import groups_in
from bridge.routing.keys import LaneKeys
from bridge.routing.return_codes import text_of
from bridge.routing.text import one_line
from bridge.routing.versions import undone_in

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane

logger = get_logger(__name__)

#: Groups that a warning names.
NAMED = 5


def look_at_older(redis: Redis, app: Celery, lanes: Sequence[AppLane]) -> None:
    """To be called before the groups of ``lanes`` are made. Raises `ConfigurationError`, one line, and redis errors."""
    own = {lane.name for lane in lanes}
    newest = [lane for lane in lanes if not lane.newer]
    # Older partitions have the groups that the stream had before it was repartitioned.
    streams = dict.fromkeys(
        older.stream for lane in newest for older in lane.older if older.stream not in lane.partition_streams
    )
    groups = {stream: _groups(redis, stream) for stream in streams}
    missing = [stream for stream, found in groups.items() if found is None]
    for stream in missing:
        if not any(_has_led(redis, stream, name) for name in own):
            logger.warning("bridge_follows names %r, and there is no such stream: is the name right?", stream)
    for stream, found in groups.items():
        others = sorted(set(found or ()) - own)
        new = sorted(name for name in own if found and name not in found and not _has_led(redis, stream, name))
        if new and others:
            _refuse_renamed(redis, app_name(app), stream, others, new)
            logger.warning(
                "bridge_follows names %r, which has the group %s, and not %s: the new group begins with the first "
                "entry of the stream",
                stream,
                _shown(others),
                _shown(new),
            )


def _groups(redis: Redis, stream: str) -> list[str] | None:
    """The groups of ``stream``; None: there is no such stream."""
    try:
        reply: Any = redis.execute_command("XINFO", "GROUPS", stream)
    except NoPermissionError:
        return []
    except ResponseError as exc:
        if "no such key" in str(exc):
            return None
        # The key is no stream. The leader says so.
        return []
    return [name.decode(errors="backslashreplace") for name in groups_in(reply)]


def _has_led(redis: Redis, stream: str, group: str) -> bool:
    """Whether the lane was led before: its stream or its group was deleted by hand, and is made again."""
    keys = LaneKeys(stream, group)
    return bool(redis.exists(keys.floor, keys.fence, keys.term))


def _refuse_renamed(redis: Redis, app: str, stream: str, others: Iterable[str], new: Sequence[str]) -> None:
    for name in others:
        try:
            owner: Any = redis.hget(LaneKeys(stream, name).about, "app")
            undone = owner is not None and text_of(owner) == app and undone_in(redis, stream, name)[0]
        except NoPermissionError:
            continue
        if undone:
            raise ConfigurationError(
                f"the group {name!r} of {stream!r}, an older version, has messages that are not done, and this app has "
                f"no such group any more: those of {_shown(new)} would not wait for them; keep the group's name "
                "(bridge_group, bridge_subscriptions), or let masters and workers of before finish them first"
            )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(one_line(name) for name in names[:NAMED]) + more
