"""Wakes long polls: one connection of a server listens on the lanes' channels, which name consumers with new messages.

It is opened with the first long poll, and closed when there has been none for a while. Without it, the polls
look again by themselves (`Wakes.look_again_s`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from bridge.http.site import Site
    from bridge.routing.keys import LaneKeys

logger = get_logger(__name__)

#: Seconds after which a poll that heard nothing looks again: with the connection, and without it.
LOOK_AGAIN_S = 1.0
DEAF_S = 0.1
#: Most looks per second of all polls together, without those that a message on a channel caused. Each takes about a
#: millisecond of the port's process. Such looks are seldom needed: a new connection wakes all polls.
LOOKS = 20
#: Seconds without a poll after which the connection is closed.
IDLE_S = 60.0
RETRY_S = 0.5
#: Seconds to wait for the first subscription.
SUBSCRIBING_S = 0.5


class Wakes:
    """The waiting long polls of a server. For its event loop."""

    def __init__(self, site: Site) -> None:
        self._site = site
        #: (channel, consumer) -> what its polls wait for.
        self._waiting: dict[tuple[bytes, str], set[asyncio.Event]] = {}
        self._polls = 0
        self._channels: set[str] = set()
        self._subscribed: set[bytes] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle_since = 0.0
        site.on_stop.append(self._wake_all)

    @asynccontextmanager
    async def waiting(self, lanes: Sequence[LaneKeys], consumer: str) -> AsyncIterator[asyncio.Event]:
        """Within the block, the event is set when ``consumer`` was sent something in one of ``lanes``."""
        event = asyncio.Event()
        places = [(lane.dispatched().encode(), consumer) for lane in lanes]
        for place in places:
            self._waiting.setdefault(place, set()).add(event)
        self._polls += 1
        try:
            await self._listen([lane.dispatched() for lane in lanes])
            yield event
        finally:
            self._polls -= 1
            self._idle_since = time.monotonic()
            for place in places:
                events = self._waiting[place]
                events.discard(event)
                if not events:
                    del self._waiting[place]

    def look_again_s(self, lanes: Sequence[LaneKeys]) -> float:
        """Seconds until a poll that heard nothing looks again. Random, so that polls do not look all at once."""
        heard = all(lane.dispatched().encode() in self._subscribed for lane in lanes)
        return max(LOOK_AGAIN_S if heard else DEAF_S, self._polls / LOOKS) * random.uniform(0.8, 1.2)

    async def _listen(self, channels: Sequence[str]) -> None:
        if self._channels.issuperset(channels) and self._task is not None and not self._task.done():
            return
        self._channels.update(channels)
        if self._task is not None:
            self._task.cancel()
        self._subscribed = set()
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), SUBSCRIBING_S)

    async def _run(self) -> None:
        while self._polls or time.monotonic() - self._idle_since < IDLE_S:
            try:
                await self._hear()
            except (RedisError, OSError) as exc:
                logger.debug("cannot hear which HTTP consumers were sent something: %s", exc)
                self._subscribed = set()
                await asyncio.sleep(RETRY_S)
        self._channels = set()

    async def _hear(self) -> None:
        self._changed.clear()
        redis = await self._site.redis()
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe(*self._channels)
            while self._polls or time.monotonic() - self._idle_since < IDLE_S:
                heard: Any = await pubsub.get_message(timeout=IDLE_S / 4)
                if heard is None:
                    continue
                if heard["type"] == "subscribe":
                    self._subscribed.add(heard["channel"])
                    if len(self._subscribed) == len(self._channels):
                        self._changed.set()
                        # The connection did not hear what was sent before.
                        self._wake_all()
                elif heard["type"] == "message":
                    self._wake(heard["channel"], heard["data"])
        self._subscribed = set()

    def _wake(self, channel: bytes, names: bytes) -> None:
        with suppress(ValueError, TypeError):
            for name in orjson.loads(names):
                for event in self._waiting.get((channel, name), ()):
                    event.set()

    def _wake_all(self) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()
