"""Looks whether another master leads an older version of a stream, and nobody the newer one.

A master of an app that does not name the newer version leads the older one for as long as it runs. The newer one's
messages wait then, and this master stands by. In a rolling deploy this is normal, and ends soon. It does not
end when two apps that name different versions started at the same moment. A warning tells of both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.leadership import read_token
from bridge.routing.versions import not_led

if TYPE_CHECKING:
    from redis import Redis

    from bridge.master.lane_master import LaneMaster

logger = get_logger(__name__)

#: Seconds between two looks at the leaders of older versions.
OLDER_LEADERS_S = 2.0
#: Seconds until the first warning about a lane, and between two warnings about it.
WARN_AFTER_S, WARN_S = 6.0, 60.0


class OlderLed:
    """What the thread of the leads looks at, for the lanes of this master that follow older versions."""

    def __init__(self, redis: Redis, lanes: Sequence[LaneMaster]) -> None:
        self._redis = redis
        self._lanes = [lane for lane in lanes if lane.older]
        self._look_at = 0.0
        #: Lane -> when the next warning about it is due.
        self._warn_at: dict[LaneMaster, float] = {}

    def look(self) -> None:
        """Looks, when it is time. Raises redis errors."""
        now = time.monotonic()
        standing = [lane for lane in self._lanes if not lane.leading]
        if now < self._look_at or not standing:
            return
        self._look_at = now + OLDER_LEADERS_S
        with self._redis.pipeline(transaction=False) as pipe:
            for lane in standing:
                pipe.mget([lane.keys.leader, *(older.keys.leader for older in lane.older)])
            tokens = pipe.execute()
        due = {}
        for lane, (own, *older) in zip(standing, tokens, strict=True):
            if own is not None:
                continue
            led = []
            for one, token in zip(lane.older, older, strict=True):
                # Another program may have written there. The master that asks for that lead logs it.
                with suppress(ValueError):
                    if token is not None and not one.leading:
                        led.append((one.keys.stream, read_token(token).holder))
            if led:
                due[lane] = self._warn_at.get(lane, now + WARN_AFTER_S)
                if now >= due[lane]:
                    due[lane] = now + WARN_S
                    stream, holder = led[0]
                    logger.warning("standing by for %s: %s", lane.title, not_led(holder, stream))
        self._warn_at = due
