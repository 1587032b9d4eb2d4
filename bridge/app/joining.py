"""The layout of the stream, before a master or a worker joins: it reads, checks, and only then stores.

What is refused changes nothing: neither the layout, which other processes would go by, nor a lane.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import NoPermissionError

from bridge.app.installed import bridge_of
from bridge.routing.errors import LayoutLost
from bridge.routing.layouts import check_layouts, claim_layout, find_layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from redis import Redis

    from bridge.routing.partitions import Layout

#: Seconds for which a process that starts waits for a layout that was lost: masters look for it each second.
LOST_S = 5.0

Found = TypeVar("Found")


def read_layouts(app: Celery, redis: Redis, *, lenient: bool = False) -> dict[str, Layout]:
    """Goes by the layout that is stored, or that `store_layout` would store. Returns it with those of the older
    versions. ``lenient``: passes over versions that this user may not look at. A lost layout is waited for: a master
    that runs stores it again.

    Raises `ConfigurationError` when an older version of the stream is split in another way, `LayoutLost`, and redis
    errors.
    """
    return _found_again(lambda: _read_layouts(app, redis, lenient=lenient))


def _found_again(join: Callable[[], Found]) -> Found:
    """What ``join`` returns, as soon as no layout is lost."""
    end = time.monotonic() + LOST_S
    while True:
        try:
            return join()
        except LayoutLost:
            if time.monotonic() >= end:
                raise
            time.sleep(LOST_S / 20)


def _read_layouts(app: Celery, redis: Redis, *, lenient: bool) -> dict[str, Layout]:
    bridge = bridge_of(app)
    stream = bridge.settings.lane.stream
    layout = bridge.take_layout(find_layout(redis, stream, bridge.settings.partitions, bridge.settings.older_streams))
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
    nobody has made yet. Waits and raises as `read_layouts` does.
    """
    return _found_again(lambda: _store_layout(app, redis))


def _store_layout(app: Celery, redis: Redis) -> Layout:
    bridge = bridge_of(app)
    settings = bridge.settings
    found = claim_layout(redis, settings.lane.stream, settings.partitions, settings.older_streams)
    for version in bridge.follows if found.is_split else ():
        with suppress(NoPermissionError):
            claim_layout(redis, version.stream, found.partitions, [settings.lane.stream])
    return bridge.take_layout(found)
