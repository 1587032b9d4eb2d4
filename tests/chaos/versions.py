"""The versions of a chaos run's stream, drawn from the seed: a newer form of its messages, which follows the older one.

A run has one version, or two from its beginning, or it begins with the older one and makes the *deploy* itself: its
workers, then its masters, are stopped one by one, and come back with the app that follows the older version. Producers
push both forms. A message names its version in its payload, and so do the ledger and the effects.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tests.chaos.subscriptions import NEWER, OLDER, STREAMS, Subscription

if TYPE_CHECKING:
    from tests.chaos.seats import Seat

#: Environment variable of the app: what its stream follows, as `bridge_follows` has it. Such an app pushes to the newer
#: version.
FOLLOWS = "CHAOS_FOLLOWS"
#: The default task of the older version, in an app that follows it.
OLDER_TASK = "chaos.older"

#: What a run does with versions.
Versions = Literal["one", "both", "deploy"]
VERSIONS: tuple[Versions, ...] = ("one", "both", "deploy")


def draw_versions(seed: int) -> Versions:
    """What the run of this seed does."""
    return random.Random(f"versions {seed}").choice(VERSIONS)


def in_versions(lanes: Sequence[Subscription], versions: Versions, seed: int = 0) -> tuple[Subscription, ...]:
    """These lanes on each version. The first one is struck by the faults of a lane: an older one, if there is a deploy,
    which only older ones see whole.
    """
    if versions == "one":
        return tuple(lanes)
    order = [OLDER, NEWER]
    if versions == "both":
        random.Random(f"struck {seed}").shuffle(order)
    return tuple(replace(one, version=version) for one in lanes for version in order)


def chains(lanes: Sequence[Subscription]) -> list[tuple[Subscription, Subscription]]:
    """The older and the newer lane of each subscription and partition."""
    newer = {(one.name, one.partition): one for one in lanes if one.version == NEWER}
    return [(one, newer[one.name, one.partition]) for one in lanes if one.version == OLDER]


def follows(lanes: Sequence[Subscription]) -> dict[str, str]:
    """What makes `tests.chaos.app` follow the older version, when a lane is of the newer one."""
    if not any(one.version == NEWER for one in lanes):
        return {}
    older: dict[str, Any] = {"stream": STREAMS[OLDER]}
    if lanes[0].label:
        older["tasks"] = {one.name: OLDER_TASK for one in lanes}
    else:
        older["task"] = OLDER_TASK
    return {FOLLOWS: json.dumps([older])}


class Producers:
    """Who pushes which version: those of the older one all the time, those of the newer one when they are there."""

    def __init__(self, seed: int, versions: Versions) -> None:
        self._seed = seed
        self._versions = versions
        #: Whether producers push the newer version.
        self.newer = versions == "both"

    def version_of(self, ticket: str, n: int) -> str:
        """The version of a ticket's message that is pushed now."""
        if self._versions == "one":
            return ""
        drawn = random.Random(f"version {self._seed}/{ticket}/{n}").choice((OLDER, NEWER))
        return drawn if self.newer else OLDER


class Deploy:
    """Stops one node after the other. Each comes back with the newer app."""

    def __init__(self, change: Callable[[Seat], None], producers: Producers) -> None:
        """``change``: what makes the next life of a seat one with the newer app."""
        self._change = change
        self._producers = producers
        self._left: list[Seat] = []
        self._now: Seat | None = None
        self.began = False

    @property
    def over(self) -> bool:
        """Whether every node runs the newer app, or will when it comes back."""
        return self.began and not self._left and self._now is None

    def begin(self, workers: Sequence[Seat], masters: Sequence[Seat], *, producers_first: bool) -> None:
        """Workers before masters: a message of the newer version shall find a worker that can run it. Producers come
        last, as they should, or first.
        """
        self.began = True
        self._left = [*workers, *masters]
        self._producers.newer = producers_first

    def tick(self, may_stop: Callable[[Seat], bool]) -> None:
        """Goes on to the next node, when the one before is back."""
        if self.over:
            self._producers.newer = True
        if self._now is not None and (self._now.leaving or self._now.idle):
            self._now = None
        if self._now is not None or not self._left:
            return
        seat = self._left[0]
        if seat.held or (seat.idle and not may_stop(seat)):
            return
        self._left.pop(0)
        self._change(seat)
        if seat.idle:
            seat.stop(0)
            self._now = seat
