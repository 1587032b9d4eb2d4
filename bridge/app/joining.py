"""The layout of the stream, before a master or a worker joins: it reads, checks, and only then stores.

What is refused changes nothing: neither the layout, which other processes would go by, nor a lane.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError

from bridge.app.installed import bridge_of
from bridge.routing.layouts import check_layouts, claim_layout, find_layout

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.routing.partitions import Layout


def read_layouts(app: Celery, redis: Redis, *, lenient: bool = False) -> dict[str, Layout]:
    """Goes by the layout that is stored, or that `store_layout` would store. Returns it with those of the older
    versions. ``lenient``: passes over versions that this user may not look at.

    Raises `ConfigurationError` when an older version of the stream is split in another way, and redis errors.
    """
    bridge = bridge_of(app)
    stream = bridge.settings.lane.stream
    layout = bridge.take_layout(find_layout(redis, stream, bridge.settings.partitions))
    bridge.learn_retired(redis)
    found = {stream: layout}
    for version in bridge.follows:
        try:
            found[version.stream] = check_layouts(redis, stream, layout, version.stream)
        except NoPermissionError:
            if not lenient:
                raise
    return found


def store_layout(app: Celery, redis: Redis) -> Layout:
    """Stores the layout of the app when there is none, and goes by the stored one. The same for the older versions that
    nobody has made yet. Raises as `read_layouts` does.
    """
    bridge = bridge_of(app)
    settings = bridge.settings
    found = claim_layout(redis, settings.lane.stream, settings.partitions, settings.older_streams)
    for version in bridge.follows if found.is_split and not found.generation else ():
        with suppress(NoPermissionError):
            claim_layout(redis, version.stream, found.partitions)
    return bridge.take_layout(found)
