"""The history keeps at least as many results as it should, and at most twice as many, whatever the steps were like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from bridge.leader.step.steps import Steps
from bridge.link.connections import Wire
from bridge.routing.batch import Batch
from tests.scripts.world import World

pytestmark = pytest.mark.scripts

LIMIT = 2000
ROW = ["1-0", "T", "t", "w1@a", 1, 100, 5, 6, 0.5, "done"]


@contextmanager
def one_term(world: World, url: str) -> Iterator[Steps]:
    """The steps of one term, for which nothing is ever to be planned."""
    wire = Wire(url)
    settings = SimpleNamespace(history=LIMIT)
    term: Any = SimpleNamespace(
        settings=settings, leadership=world.lead, redis=world.client, wire=wire, keys=world.keys
    )
    lane: Any = SimpleNamespace(now_ms=lambda: 0, close=lambda *_: None, written=lambda *_: None)
    planner: Any = SimpleNamespace(plan=lambda *_: {})
    nothing: Any = None
    yield Steps(term, lane, planner, nothing, nothing)
    wire.close()


def write(steps: Steps, results: int) -> None:
    steps.advance(Batch(counts={"done": results}, history=[ROW] * results))


class Kept:
    """How many results the history has. Each entry is read once: the server deletes the oldest ones only."""

    def __init__(self, world: World) -> None:
        self._client, self._key = world.client, world.keys.history
        self._results: deque[tuple[bytes, int]] = deque()
        self._after = "-"

    def count(self) -> int:
        for id_, fields in self._client.xrange(self._key, self._after):
            self._results.append((id_, len(orjson.loads(fields[b"d"]))))
            self._after = f"({id_.decode()}"
        [(oldest, _)] = self._client.xrange(self._key, count=1)
        while self._results[0][0] != oldest:
            self._results.popleft()
        assert len(self._results) == self._client.xlen(self._key)
        return sum(results for _, results in self._results)


def follow(world: World, steps: Steps, sizes: Sequence[int], before: int = 0) -> int:
    """Writes steps of these sizes, and looks at the history after each tenth. Returns how many results were written."""
    written = before
    kept = Kept(world)
    for number, size in enumerate(sizes):
        write(steps, size)
        written += size
        if number % 10 == 9:
            assert min(LIMIT, written) <= kept.count() <= 2 * LIMIT
    return written


@pytest.mark.parametrize(
    "sizes",
    [[1] * 30 + [400] * 10 + [1] * 150 + [7] * 400, [LIMIT + 500] * 5 + [1] * 100],
    ids=["bursts", "steps larger than the history"],
)
def test_bursts_do_not_shorten_the_history(fresh: World, server: Any, sizes: list[int]) -> None:
    with one_term(fresh, server.url) as steps:
        follow(fresh, steps, sizes)


def test_many_changes_of_leader_do_not_lengthen_the_history(fresh: World, server: Any) -> None:
    written = 0
    for _ in range(8):
        with one_term(fresh, server.url) as steps:
            written = follow(fresh, steps, [90] * 20, written)


def test_a_new_leader_counts_what_it_found_also_single_results(fresh: World, server: Any) -> None:
    with one_term(fresh, server.url) as steps:
        written = follow(fresh, steps, [1] * 1900)
    # While these are counted, each step writes another entry.
    with one_term(fresh, server.url) as steps:
        written = follow(fresh, steps, [30] * 60, written)
        follow(fresh, steps, [1] * 50, written)
        # Not more than the newest entries are kept now, but for one group of entries and one node of the server.
        assert Kept(fresh).count() <= LIMIT + LIMIT // 16 + 200


def test_an_entry_that_no_leader_wrote_counts_as_one_result(fresh: World, server: Any) -> None:
    for text in ("no JSON", "7", ""):
        fresh.client.xadd(fresh.keys.history, {"d": text})
    with one_term(fresh, server.url) as steps:
        write(steps, 3)
        # 4 entries have 6 results.
        assert steps.history_cap.with_next() == 4 + 1 + LIMIT - 6
