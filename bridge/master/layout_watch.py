"""Looks after the layout of the stream while masters run.

- FLUSHALL, or a DEL by hand, deletes the layout. Then producers without the setting would not know of the partitions.
  So a lost layout is stored again.
- `bridge stream repartition` gives the stream another layout. Then the process takes part in other lanes.
- Messages in streams that are no partitions are named in a warning.

The thread of the leads does this, on its connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.link.connections import is_outage
from bridge.routing.errors import ConfigurationError, StreamRetired
from bridge.routing.layouts import layout_of, restore_layout, stored_text
from bridge.routing.unread_streams import advice_on, unread_streams

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.partitions import Layout

logger = get_logger(__name__)

#: Seconds between two looks at the layouts.
LAYOUTS_S = 1.0
#: Looks at the layouts for one look at streams that nobody reads.
UNREAD_EACH = 5


class LayoutWatch:
    """The layouts of ``stream`` and of those of its older versions that are split, as this master uses them.
    ``on_change`` is called when ``stream`` has another layout, with its text.
    """

    def __init__(
        self, redis: Redis, stream: str, layouts: Mapping[str, Layout], on_change: Callable[[str], None]
    ) -> None:
        self._redis = redis
        self._stream = stream
        self._layouts = {name: layout for name, layout in layouts.items() if layout.is_split or name == stream}
        self._on_change = on_change
        #: When the next look is due (monotonic seconds).
        self.look_at = 0.0
        self._looks = 0
        #: The layouts and the streams that a warning named. Each is named once, until its problem is over.
        self._bad: set[str] = set()
        self._unread: set[str] = set()

    def look(self) -> None:
        """Looks if a look is due. Raises redis errors only in an outage."""
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + LAYOUTS_S
        self._bad = _warned(self._bad, self._bad_layouts())
        if self._looks % UNREAD_EACH == 0:
            self._unread = _warned(self._unread, self._unread_streams())
        self._looks += 1

    def _bad_layouts(self) -> dict[str, str]:
        """Stores lost layouts again. Returns the streams whose stored layout is no layout, or cannot be stored."""
        found = {}
        for stream, layout in list(self._layouts.items()):
            try:
                text = stored_text(self._redis, stream)
                if text:
                    shape = layout_of(text, stream).shape
                    if stream == self._stream and shape != layout.shape:
                        self._on_change(text.decode() if isinstance(text, bytes) else text)
                    continue
                if not layout.is_split:
                    continue
                restore_layout(self._redis, stream, layout)
                logger.warning("the layout of stream %s was lost, and is stored again: %s", stream, layout.text)
            except StreamRetired:
                # An older version: nobody leads it any more.
                del self._layouts[stream]
            except (RedisError, ConfigurationError) as exc:
                if is_outage(exc):
                    raise
                found[stream] = f"stream {stream} has no layout that can be read: {exc}"
        return found

    def _unread_streams(self) -> dict[str, str]:
        """The streams that nobody reads."""
        return {
            unread.stream: advice_on(unread, stream, layout)
            for stream, layout in self._layouts.items()
            for unread in unread_streams(self._redis, stream, layout)
        }


def _warned(before: set[str], found: Mapping[str, str]) -> set[str]:
    """Logs the new problems in ``found``. Returns the names in it."""
    for name, text in found.items():
        if name not in before:
            logger.warning("%s", text)
    return set(found)
