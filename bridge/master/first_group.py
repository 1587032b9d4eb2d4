"""Where a subscription begins that was not added by `bridge subscription add`: with the first entry of the stream.

A leader removes entries that all groups of the stream are done with. So a master makes the groups of all lanes of its
app before it asks for any lead.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bridge.link.key_types import refuse_misplaced
from bridge.routing.subscribing import make_group

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.layouts import InLayout
    from bridge.settings.lane import LaneSettings


def begin_group(redis: Redis, lane: LaneSettings, layout: InLayout) -> None:
    """Makes the group of a lane that never had one.

    A lane with a floor or a fence had one. Its leader makes it again and repairs it (`bridge.leader.repair.group`).
    Raises `ConfigurationError` when a key of the lane has another type, and `LaneGone` when its stream was retired or
    left: ``layout`` is what the stream belongs to. Nothing was changed then.
    """
    keys = lane.keys
    # The leader gets the same refusal from the server, and says what to do.
    with suppress(RedisError):
        refuse_misplaced(redis, keys)
        if not redis.exists(keys.floor, keys.fence):
            make_group(redis, keys, "0", layout)
