"""The repartitions of a chaos run: the stream gets another number of partitions while everything else goes on.

The product's own command does it. It is killed at drawn moments, and run again, until the old partitions are gone. The
old partitions keep their done entries (`bridge_retention`) until the run has looked: when they are left, what there is
of them is noted, and only then the command may delete them (``--drop-kept``). Dead letters hold old partitions. So the
run drops them, as an operator does, and keeps them as evidence.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from redis import Redis

from bridge.routing.errors import ConfigurationError
from bridge.routing.layouts import find_layout
from bridge.routing.partitions import Layout
from tests.chaos import evidence
from tests.chaos.facts import Letter, Rest
from tests.chaos.feeder import UNAVAILABLE
from tests.chaos.subscriptions import STREAM, Subscription

#: What the stream is split into. Several subscriptions take the smaller numbers: each partition has a lane of each.
COUNTS = (1, 2, 3, 4, 6)
MOST_LANES = 9
#: Most times that the command is killed in one repartition, and seconds that each of its lives may take then.
MOST_KILLS, LIFE_S = 3, (0.3, 5.0)
#: Seconds between two looks at the layout, and until a command that ended is run again.
LOOK_S, AGAIN_S = 0.2, 0.3

#: Starts the command with these words.
Command = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


class Producer(Protocol):
    """As much of the feeder as is needed: `settle` says whether nothing is in doubt any more."""

    def settle(self) -> bool: ...


@dataclass
class Left:
    """What there was of a lane of an old partition when it was left."""

    rest: Rest
    counts: dict[str, str]


@dataclass
class Lanes:
    """The lanes of a run, of all layouts that its stream had."""

    #: Those of the newest layout.
    newest: list[Subscription]
    older: list[Subscription] = field(default_factory=list)
    #: Those of `older` that the run has looked at for the last time.
    left: dict[Subscription, Left] = field(default_factory=dict)
    #: Dead letters of older lanes that the run dropped.
    letters: dict[Subscription, dict[str, Letter]] = field(default_factory=dict)

    @property
    def every(self) -> list[Subscription]:
        """All of them, the oldest first."""
        return [*self.older, *self.newest]

    @property
    def there(self) -> list[Subscription]:
        """Those that are still there."""
        return [one for one in self.every if one not in self.left]

    def split(self, layout: Layout) -> None:
        """The stream has this layout now."""
        names = {one.name: one for one in self.newest}
        self.older += self.newest
        self.newest = [
            replace(one, partition=number, partitions=layout.partitions, generation=layout.generation)
            for one in names.values()
            for number in range(layout.partitions)
        ]


def repartitioned_into(lanes: Sequence[Subscription], count: int) -> tuple[Subscription, ...]:
    """These lanes, and those of the next layout, which has ``count`` partitions."""
    found = Lanes(list(lanes))
    found.split(Layout(count, lanes[0].generation + 1))
    return tuple(found.every)


def layouts(lanes: Sequence[Subscription]) -> list[tuple[list[Subscription], list[Subscription]]]:
    """The lanes of each subscription in one layout, with those in each later one."""
    by_layout: dict[tuple[str, int], list[Subscription]] = {}
    for one in lanes:
        by_layout.setdefault((f"{one.name} {one.version}", one.generation), []).append(one)
    return [
        (before, after)
        for (name, generation), before in by_layout.items()
        for (other, later), after in by_layout.items()
        if name == other and generation < later
    ]


class Repartitions:
    """Carries out one repartition after the other. `tick` does what is due, and waits for nothing."""

    def __init__(
        self,
        redis: Redis,
        lanes: Lanes,
        command: Command,
        producer: Producer,
        switched: Callable[[], object],
        closed: Callable[[Sequence[Subscription]], object],
    ) -> None:
        """``switched`` is called when the stream has another layout, and ``closed`` with the lanes that are gone."""
        self._redis = redis
        self._lanes = lanes
        self._command = command
        self._producer = producer
        self._switched = switched
        self._closed = closed
        self._count = 0
        self._kills: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at = self._start_at = self._look_at = 0.0
        #: Whether the run has looked at what is left of the old partitions.
        self._may_drop = False
        #: How many were carried out.
        self.done = 0
        self.killed = 0

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._count > 0

    @property
    def progress(self) -> tuple[int, ...]:
        """Grows with each step of the one that is under way."""
        return (self.done, len(self._lanes.every), len(self._lanes.left), self.killed)

    def begin(self, which: float, kills: float, early: float) -> bool:
        """Begins one. Numbers in [0, 1) draw the number of partitions, and when the command is killed."""
        if self.busy:
            return False
        newest = self._lanes.newest
        most = MOST_LANES // len({one.name for one in newest})
        counts = [count for count in COUNTS if count != newest[0].partitions and count <= most]
        self._count = counts[int(which * len(counts))]
        first, last = LIFE_S
        self._kills = [
            first + (early + n / MOST_KILLS) % 1 * (last - first) for n in range(int(kills * (MOST_KILLS + 1)))
        ]
        self._start_at = 0.0
        self._may_drop = False
        return True

    def tick(self) -> None:
        """Goes on with what is under way."""
        if not self.busy:
            return
        now = time.monotonic()
        self._look_after_command(now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            self._look()
        except (*UNAVAILABLE, ConfigurationError):
            # The server is away, or the layout is lost for the moment.
            return

    def stop(self) -> None:
        """Ends the command. The run is over."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _look_after_command(self, now: float) -> None:
        if self._process is not None:
            if self._process.poll() is None and self._kills and now >= self._kill_at:
                self._process.kill()
                self._process.wait()
                self._kills.pop()
                self.killed += 1
            if self._process.poll() is not None:
                self._process = None
                self._start_at = now + AGAIN_S
        elif now >= self._start_at:
            self._process = self._command([str(self._count), *(["--drop-kept"] if self._may_drop else [])])
            self._kill_at = now + self._kills[-1] if self._kills else 0.0

    def _look(self) -> None:
        newest = self._lanes.newest[0]
        layout = find_layout(self._redis, STREAM, newest.partitions)
        if layout.generation > newest.generation:
            self._lanes.split(layout)
            self._switched()
        elif layout.generation < newest.generation or not layout.text:
            return
        before = [one for one in self._lanes.older if one not in self._lanes.left]
        if layout.older is not None:
            for one in before:
                self._drop_letters(one)
        elif before and self._producer.settle():
            # What was pushed is known, and nothing can be pushed to the old partitions any more.
            live = [one.keys for one in self._lanes.every]
            found = {}
            for one in before:
                counts: Any = self._redis.hgetall(one.keys.counts)
                # Outcomes that came twice: nobody reads them any more.
                rest = replace(evidence.rest(self._redis, one.keys, live), outcomes=0, ownerless=())
                found[one] = Left(rest, counts)
            self._lanes.left.update(found)
            self._closed(before)
            self._may_drop = True
            self.stop()
        elif self._may_drop and layout.leaving is None:
            self.stop()
            self._count = 0
            self.done += 1

    def _drop_letters(self, lane: Subscription) -> None:
        noted = self._lanes.letters.setdefault(lane, {})
        for letter_id, letter in evidence.lettered(self._redis, lane.keys):
            # Before it is deleted: the answer may be lost.
            noted[letter_id] = letter
            if not self._redis.xdel(lane.keys.dead, letter_id):
                # Somebody replayed it.
                del noted[letter_id]
