"""HTTP consumers receive messages: long polls, without a thread each.

What a receive returns:

1. First the messages that the incarnation was given and has not acknowledged, except those that it says it ``has``. So
   a receive whose answer was lost is repeated, and returns the same messages.
2. Then new messages from its queues, until ``max`` are returned or ``concurrency`` are unacknowledged.
3. When there is none, it waits up to ``wait`` seconds for one.

An incarnation has one receive at a time: a later one ends an earlier one that waits on the same master.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bridge.http.cloud_events import events_of
from bridge.http.given_messages import given_message, read_given
from bridge.http.incarnations import lease_over
from bridge.routing.http_consumers import Taken, take

if TYPE_CHECKING:
    from bridge.http.incarnations import Incarnation
    from bridge.http.site import Site
    from bridge.http.wakes import Wakes

#: Bytes after which an answer gets no more messages.
MOST_BYTES = 4 * 1024 * 1024


class Receiving:
    """The receives of a server. For its event loop."""

    def __init__(self, site: Site, wakes: Wakes) -> None:
        self._site = site
        self._wakes = wakes
        #: Incarnation -> its newest receive that waits.
        self._newest: dict[str, object] = {}
        self._events: dict[str, asyncio.Event] = {}

    async def receive(
        self, incarnation: Incarnation, most: int, wait_s: float, has: Sequence[int], *, events: bool = False
    ) -> bytes:
        """The answer: JSON, or a batch of CloudEvents. Raises `Problem`, and redis errors."""
        taken = await self._take(incarnation, most, has)
        if not taken.messages and wait_s > 0:
            with self._site.long_poll():
                taken = await self._wait(incarnation, most, time.monotonic() + wait_s, has)
        deadline_ms = taken.now_ms + taken.left_ms
        if events:
            given = [read_given(message.text) for message in taken.messages]
            return events_of(given, self._site.settings.lane.stream, deadline_ms)
        messages = b",".join(given_message(message.text, deadline_ms) for message in taken.messages)
        return b'{"messages":[%b],"lease_ms":%d}' % (messages, taken.left_ms)

    async def _wait(self, incarnation: Incarnation, most: int, until: float, has: Sequence[int]) -> Taken:
        mine = object()
        earlier = self._events.get(incarnation.id)
        self._newest[incarnation.id] = mine
        if earlier is not None:
            earlier.set()
        try:
            async with self._wakes.waiting(incarnation.lanes, incarnation.name) as event:
                self._events[incarnation.id] = event
                while True:
                    event.clear()
                    taken = await self._take(incarnation, most, has)
                    left_s = until - time.monotonic()
                    if taken.messages or left_s <= 0 or self._site.stopping.is_set():
                        return taken
                    again_s = self._wakes.look_again_s(incarnation.lanes)
                    await self._woken(event, min(left_s, again_s))
                    if self._newest.get(incarnation.id) is not mine:
                        # The messages are for the later one. What this one says of the lease must be of now.
                        return await self._take(incarnation, 0, has)
        finally:
            if self._newest.get(incarnation.id) is mine:
                del self._newest[incarnation.id]
                self._events.pop(incarnation.id, None)

    async def _woken(self, event: asyncio.Event, seconds: float) -> None:
        """Returns when the event is set, the server stops, or the time is over."""
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self._site.stopping)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _take(self, incarnation: Incarnation, most: int, has: Sequence[int]) -> Taken:
        redis = await self._site.redis()
        lanes = incarnation.lanes
        taken = await take(
            redis,
            lanes,
            incarnation.name,
            incarnation.id,
            most=most,
            slots=incarnation.slots,
            most_bytes=MOST_BYTES,
            first=random.randrange(len(lanes)),
            has=has,
        )
        if taken is None:
            raise lease_over()
        return taken
