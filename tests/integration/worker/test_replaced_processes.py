"""Celery replaces a pool process after a number of tasks, of which each message is one, or when it is too large."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.worker.main.member import COUNTED_TASKS
from tests.integration.lanes import LaneUnderTest

MESSAGES = 60


def ran(lane: LaneUnderTest, option: str, messages: int = MESSAGES) -> Counter[int]:
    """Pool process -> the messages that it ran, of a backlog of short tasks, which would go out in bundles."""
    lane.master("m1")
    lane.worker("w1", "--concurrency=2", option)
    lane.wait_consumers(1)
    # At once: one that comes when the one before it is done goes alone.
    lane.push_many(20, messages // 20)
    lane.wait_done(messages)
    lane.assert_at_rest()
    lines = [json.loads(line) for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
    return Counter(pid for kind, *_, pid in lines if kind == "start")


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS="50")


@pytest.mark.parametrize(("most", "messages"), [(1, 20), pytest.param(3, MESSAGES, marks=pytest.mark.long)])
def test_a_pool_process_runs_no_more_messages_than_the_option_says(
    lane: LaneUnderTest, most: int, messages: int
) -> None:
    found = ran(lane, f"--max-tasks-per-child={most}", messages)
    assert found.total() == messages
    assert max(found.values()) <= most


def test_a_large_number_is_there_against_leaks_and_leaves_the_bundles(lane: LaneUnderTest) -> None:
    lane.master("m1")
    lane.worker("w1", f"--max-tasks-per-child={COUNTED_TASKS + 1}")
    lane.worker("w2", f"--max-tasks-per-child={COUNTED_TASKS}")
    lane.wait_consumers(2)
    traits = {name: json.loads(text)["traits"] for name, text in lane.redis.hgetall(lane.keys.consumers).items()}
    bundled = {
        str(name).partition("@")[0]: found.get("counter.append", {}).get("bundle") is not False
        for name, found in traits.items()
    }
    assert bundled == {"w1": True, "w2": False}


def test_a_pool_process_that_is_too_large_is_replaced_after_its_bundle(lane: LaneUnderTest) -> None:
    found = ran(lane, "--max-memory-per-child=1")
    assert found.total() == MESSAGES
    assert 2 < len(found) < MESSAGES
