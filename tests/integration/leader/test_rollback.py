"""A task learns which of its attempts was cut off, and may undo that attempt before it starts again."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.testing.waiting import wait_until
from tests.integration.lanes import Kept, LaneUnderTest, kept_in_each_mode

kept = kept_in_each_mode(COUNTER_LEASE="6")


@pytest.fixture
def lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A lane with a master and a worker."""
    yield from kept.lend()


def undone(lane: LaneUnderTest, ticket: str) -> list[list[Any]]:
    """(attempt, fence, consumer, cause) of every call of the rollback."""
    found: Any = lane.redis.lrange(f"undone:{ticket}", 0, -1)
    return [json.loads(line) for line in found]


def starts(lane: LaneUnderTest) -> list[Any]:
    lines = [line for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted((line for line in map(json.loads, lines) if line[0] == "start"), key=lambda line: line[5])


def test_a_pool_process_that_died_is_undone_before_the_next_attempt(lane: LaneUnderTest) -> None:
    [worker] = lane.nodes.workers()
    lane.push("A", {"n": 9, "until": 1}, "counter.undoes")
    lane.push("A", {"n": 0, "until": 2}, "counter.undoes")
    lane.push("A", {"n": 1, "until": 1}, "counter.undoes")
    lane.wait_done(3)
    _, first, second, third = starts(lane)
    [(attempt, fence, consumer, cause)] = undone(lane, "A")
    assert (attempt, fence, consumer) == (1, first[3], worker.hostname())
    assert cause
    assert (second[4], third[4]) == (2, 1)
    # The effects of the rollback belong to the attempt, and the next message had nothing to undo
    assert lane.log("A") == [9, -1, 0, 1]
    # The rollback had the state before the attempt that was lost, and not what that one made of it
    assert lane.redis.lrange("state undone:A", 0, -1) == ['{"n": 9}']
    assert lane.redis.hgetall(lane.keys.state("A")) == {"n": "1"}
    lane.assert_at_rest()


def test_every_attempt_that_is_cut_off_is_undone(lane: LaneUnderTest) -> None:
    lane.push("A", {"n": 0, "until": 3}, "counter.undoes")
    lane.wait_done(1)
    assert [seen[0] for seen in undone(lane, "A")] == [1, 2]
    assert [seen[1] for seen in undone(lane, "A")] == [line[3] for line in starts(lane)[:2]]
    assert lane.log("A") == [-1, 0]


def test_a_rollback_that_fails_is_owed_until_it_succeeds(lane: LaneUnderTest) -> None:
    lane.push("A", {"n": 0, "until": 2, "undo_fails_until": 3}, "counter.undoes")
    lane.wait_done(1)
    # Attempt 1 was cut off; 2 and 3 failed in its rollback; 4 rolled it back and went on
    seen = undone(lane, "A")
    assert [line[0] for line in seen] == [1, 1, 1]
    assert len({line[1] for line in seen}) == 1
    assert [line[4] for line in starts(lane)] == [1, 4]
    assert lane.log("A") == [-1, 0]
    lane.assert_at_rest()


def test_a_time_limit_is_undone_like_a_crash(lane: LaneUnderTest) -> None:
    lane.push("A", {"n": 0, "until": 2}, "counter.undoes_late")
    lane.wait_done(1)
    [(attempt, _, _, cause)] = undone(lane, "A")
    assert attempt == 1
    assert "TimeLimit" in cause
    assert lane.log("A") == [-1, 0]


def test_a_worker_that_died_is_undone_elsewhere(lane: LaneUnderTest) -> None:
    [victim] = lane.nodes.workers()
    lane.push("A", {"n": 0, "until": 2, "ms": 60_000}, "counter.undoes")
    wait_until(lambda: starts(lane), description="the task to start")
    lane.worker("w2", "--concurrency=1")
    lane.wait_consumers(2)
    victim.send(signal.SIGKILL)
    lane.wait_done(1)
    [(attempt, fence, consumer, _)] = undone(lane, "A")
    assert (attempt, fence, consumer) == (1, starts(lane)[0][3], victim.hostname())
    assert lane.log("A") == [-1, 0]
    lane.assert_at_rest()


def test_an_attempt_that_only_failed_is_not_undone(lane: LaneUnderTest) -> None:
    lane.push("A", {"n": 0, "until": 2, "raises": True}, "counter.undoes")
    lane.wait_done(1)
    assert undone(lane, "A") == []
    assert lane.log("A") == [0]
