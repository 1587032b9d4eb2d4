"""Makes delayed messages due in a test, which need not wait for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from redis import Redis

from bridge.app.lanes import AppLane
from bridge.inspect.delayed import Selection, now_ms_of, soonest_first
from bridge.operate.delayed import change
from bridge.protocol.orders import DelayedAct
from bridge.routing.groups import group_in
from bridge.testing.outcome import LANE_CHECK_S

#: The first message becomes due so many ms from now, so that the orders for all others come before that.
AHEAD_MS = 50


def make_due(redis: Redis, lanes: Sequence[AppLane], timeout_s: float) -> int:
    """Makes the delayed messages of ``lanes`` due now, one after the other: they keep their order. Returns how many.

    Raises `TimeoutError` and `OrderFailed`.
    """
    end = time.monotonic() + timeout_s
    found = 0
    for lane in lanes:
        while not _is_read(redis, lane):
            if time.monotonic() > end:
                raise TimeoutError(f"after {timeout_s:g} s the lane has messages that were not read")
            time.sleep(LANE_CHECK_S)
        # A list, because a message that is changed moves within the pages.
        messages = list(soonest_first(redis, [lane], Selection()))
        first_ms = now_ms_of(redis) + AHEAD_MS
        for at, (_, some) in enumerate(groupby(messages, key=lambda message: message.due_ms)):
            changes = change(redis, lane, DelayedAct.RESCHEDULE, some, first_ms + at)
            found += sum(result.why is None for result in changes)
    return found


def _is_read(redis: Redis, lane: AppLane) -> bool:
    keys = lane.settings.keys
    if not redis.exists(keys.stream):
        return True
    stream: Any = redis.xinfo_stream(keys.stream)
    group = group_in(redis.execute_command("XINFO", "GROUPS", keys.stream), keys.group)
    return group is not None and group.read_to == stream["last-generated-id"].decode()
