"""The older versions of a stream that the app does not name any more, and that are not retired.

They are *dropped*: nobody may lead them, and nothing of them should be undone. A master checks that when it starts.
Then the script that dispatches compares it (``routing/lua/advance.lua``), as it does with older versions that this
master leads. So masters of before and after a deploy that drops a version can work side by side:

- While a master of before leads a dropped version, this one does not lead the lanes that come after it.
- A message that comes to a dropped version holds the newer messages of its ticket up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.batch import OlderLane
from bridge.routing.keys import LaneKeys
from bridge.routing.versions import left_behind, undone_in

if TYPE_CHECKING:
    from redis import Redis

logger = get_logger(__name__)

#: Seconds between two looks at the dropped versions, and between two warnings.
VERSIONS_S = 1.0
WARN_S = 60.0


class DroppedVersions:
    """The dropped versions of one lane, in one term."""

    def __init__(self, redis: Redis, keys: LaneKeys, streams: Sequence[str]) -> None:
        self._keys = keys
        self.streams = frozenset(streams)
        #: Stream -> id up to which nothing is undone.
        self._done_to: dict[str, str] = dict.fromkeys(streams, "0-0")
        self._look_at = self._warn_at = 0.0
        self.look(redis)

    @property
    def lanes(self) -> list[OlderLane]:
        """As the script compares them."""
        return [OlderLane(LaneKeys(name, self._keys.group), "", done_to) for name, done_to in self._done_to.items()]

    def look(self, redis: Redis) -> None:
        """The term begins, or a step was refused. Learns what has ended in the meantime, and warns of what has not."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + VERSIONS_S
        warns = now >= self._warn_at
        for stream in self._done_to:
            undone, self._done_to[stream] = undone_in(redis, stream, self._keys.group)
            if undone and warns:
                self._warn_at = now + WARN_S
                left = left_behind(redis, stream, self._keys.stream, self._keys.group)
                logger.warning("%s; newer messages of their tickets wait", left)
