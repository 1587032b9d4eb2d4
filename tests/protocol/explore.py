"""Goes through all states that a setup can reach, by the number of faults, and through all ends that each may come to.

States are found in the order of the faults that they take: all that no fault leads to, then all that one leads to. So a
state is found with the fewest faults, a trace has the fewest faults, and a state need not know how many it took.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tests.protocol import faults, masters, workers
from tests.protocol.checks import check, good_end
from tests.protocol.guards import Guard
from tests.protocol.world import Broken, Setup, World


@dataclass
class Found:
    """What an exploration found. ``by_faults``: states that take so many faults; ``broken``: what does not hold;
    ``trace``: the steps to it, a line each. ``stuck``: states from which no good end can be reached.
    """

    by_faults: list[int] = field(default_factory=list)
    steps: int = 0
    broken: str = ""
    trace: list[str] = field(default_factory=list)
    stuck: int = 0
    ends: int = 0
    complete: bool = True
    seconds: float = 0.0

    @property
    def states(self) -> int:
        return sum(self.by_faults)


class Exploration:
    """One exploration of one setup, without the guards in ``dropped``. ``most``: states after which it gives up."""

    def __init__(
        self, setup: Setup, dropped: AbstractSet[Guard] = frozenset(), *, most: int = 100_000_000, ends: bool = True
    ) -> None:
        self._setup = setup
        self._dropped = frozenset(dropped)
        self._most = most
        self._ends = ends
        self._index: dict[World, int] = {}
        self._parents = array("q")
        self._labels: list[str] = []
        self._worlds: list[World] = []
        #: Steps that are no faults: from, to.
        self._from = array("q")
        self._to = array("q")
        self.found = Found()

    def run(self) -> Found:
        """Explores; what was found."""
        began = time.monotonic()
        gc.disable()  # millions of tuples, and no cycles
        try:
            self._explore()
            if self._ends and self.found.complete and not self.found.broken:
                self._look_for_ends()
        finally:
            gc.enable()
            self.found.seconds = time.monotonic() - began
        return self.found

    def _explore(self) -> None:
        setup, found = self._setup, self.found
        frontier = [self._note(setup.first(), -1, "")]
        after_fault: list[tuple[World, int, str]] = []
        for count in range(setup.faults + 1):
            before = len(self._worlds)
            for world, parent, label in after_fault:
                if world not in self._index:
                    frontier.append(self._note(world, parent, label))
            after_fault = []
            fresh = len(self._worlds) - before if count else 1
            while frontier:
                coming: list[int] = []
                for at in frontier:
                    try:
                        check(self._worlds[at], effects=setup.effects)
                        fresh += self._follow(at, coming, after_fault, count < setup.faults)
                    except Broken as exc:
                        found.broken = str(exc)
                        found.trace = self._trace(at)
                        found.by_faults.append(fresh)
                        return
                    if len(self._worlds) > self._most:
                        found.complete = False
                        found.by_faults.append(fresh)
                        return
                frontier = coming
            found.by_faults.append(fresh)

    def _follow(self, at: int, coming: list[int], after_fault: list[tuple[World, int, str]], faulty: bool) -> int:
        world = self._worlds[at]
        index, ends = self._index, self._ends
        fresh = 0
        for side in (masters, workers):
            for label, after in side.steps(world, self._setup, self._dropped):
                self.found.steps += 1
                known = index.get(after)
                if known is None:
                    known = self._note(after, at, label)
                    coming.append(known)
                    fresh += 1
                if ends:
                    self._from.append(at)
                    self._to.append(known)
        if faulty:
            for label, after in faults.steps(world, self._setup, self._dropped):
                self.found.steps += 1
                if after not in index:
                    after_fault.append((after, at, label))
        return fresh

    def _note(self, world: World, parent: int, label: str) -> int:
        at = self._index[world] = len(self._worlds)
        self._worlds.append(world)
        self._parents.append(parent)
        self._labels.append(label)
        return at

    def _trace(self, at: int) -> list[str]:
        lines = [f"then: {self.found.broken}"]
        while at > 0:
            lines.append(self._labels[at])
            at = self._parents[at]
        return lines[::-1]

    def _look_for_ends(self) -> None:
        """From every state a good end must be within reach when no more faults happen."""
        count = len(self._worlds)
        into: list[list[int]] = [[] for _ in range(count)]
        for a, b in zip(self._from, self._to, strict=True):
            into[b].append(a)
        reached = bytearray(count)
        todo = [at for at, world in enumerate(self._worlds) if good_end(world)]
        self.found.ends = len(todo)
        for at in todo:
            reached[at] = 1
        while todo:
            for before in into[todo.pop()]:
                if not reached[before]:
                    reached[before] = 1
                    todo.append(before)
        self.found.stuck = count - sum(reached)
        if self.found.stuck:
            at = reached.index(0)
            self.found.broken = f"no good end can be reached from here: {self._worlds[at]}"
            self.found.trace = self._trace(at)
