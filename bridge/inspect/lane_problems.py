"""The problems of each lane of an app, for a `bridge status` over several lanes.

The sentences are those of a status of one lane (`bridge.inspect.status`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bridge.inspect.status import read_status
from bridge.routing.leadership import read_token
from bridge.routing.numbers import count
from bridge.routing.text import one_line
from bridge.routing.versions import not_led

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.advice import Advice
    from bridge.inspect.subscription_status import SubscriptionStatus
    from bridge.settings.app import Settings
    from bridge.settings.lane import LaneSettings

#: Most lanes that are read, the lanes with the oldest messages first. Each costs some round trips.
LANES = 20
#: Most lanes that a sentence names.
NAMED = 3
#: Beginnings of sentences that `SubscriptionStatus.problems` has already, for all lanes at once.
_SAID = ("no master leads", "the consumer group does not exist", "the lane reads nothing new")


def lane_problems(
    redis: Redis,
    settings: Settings,
    lanes: Sequence[AppLane],
    found: Sequence[SubscriptionStatus],
    commands: Callable[[LaneSettings], Advice],
) -> list[str]:
    """A sentence for each problem of ``lanes``. ``found``: their subscriptions. Raises redis errors."""
    oldest = {(one.name, stream): age for one in found for stream, age in one.unfinished.items()}
    some = [lane for lane in lanes if (lane.name, lane.settings.stream) in oldest]
    some.sort(key=lambda lane: -oldest[lane.name, lane.settings.stream])
    said: dict[str, list[str]] = {}
    for lane in some[:LANES]:
        status = read_status(redis, settings.model_copy(update={"lane": lane.settings}), commands(lane.settings))
        problems = [problem for problem in status.problems if not problem.startswith(_SAID)]
        if status.leader is None and (holder := _leads_older(redis, lane)):
            problems.append(holder)
        for problem in problems:
            said.setdefault(problem, []).append(one_line(lane.title))
    sentences = [f"{_names(titles)}: {problem}" for problem, titles in said.items()]
    if len(some) > LANES:
        sentences.append(f"{count(len(some) - LANES, 'more lane')} with undone messages not looked at")
    return sentences


def _leads_older(redis: Redis, lane: AppLane) -> str:
    """Says that another master leads an older version, and no master leads this one."""
    for older in lane.older:
        token = redis.get(older.keys.leader)
        if token is not None:
            return not_led(read_token(token).holder, older.stream)
    return ""


def _names(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - NAMED:,} more" if len(titles) > NAMED else ""
    return ", ".join(titles[:NAMED]) + more
