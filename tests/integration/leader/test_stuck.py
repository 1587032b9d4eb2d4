"""A lane in which nothing can start reads at intervals."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.leader.picture.read_pause import STREAK, WITH_ROOM_S, WITHOUT_ROOM_S
from bridge.operate.orders import give
from bridge.protocol.orders import Park
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: Messages that are pushed one by one when the lane is stuck.
COUNT = 20


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


def push_one_by_one(lane: LaneUnderTest, count: int, first: int) -> None:
    """Pushes each message when the leader has read the one before it."""
    for n in range(first, first + count):
        lane.push("T", {"n": n})
        wait_until(
            lambda n=n: lane.redis.xpending(lane.keys.stream, lane.keys.group)["pending"] == n + 1,  # type: ignore[misc]
            description=f"message {n} to be read",
            interval_s=0.001,
        )


@pytest.mark.parametrize(("parked", "interval_s"), [(False, WITHOUT_ROOM_S), (True, WITH_ROOM_S)])
def test_it_reads_at_intervals_and_goes_on_when_something_can_start(
    lane: LaneUnderTest, parked: bool, interval_s: float
) -> None:
    lane.master("m1")
    if parked:
        lane.worker("w1", "--concurrency=1")
        lane.wait_consumers(1)
        give(lane.server.client(), lane.keys, Park("T", "a test"))
    push_one_by_one(lane, STREAK, 0)
    began = time.monotonic()
    push_one_by_one(lane, COUNT, STREAK)
    # A slow machine takes longer, and never less.
    assert time.monotonic() - began > COUNT * interval_s / 2
    lane.push("free", {"n": 0})
    if not parked:
        lane.worker("w1", "--concurrency=1")
        lane.wait_done(STREAK + COUNT + 1)
    wait_until(lambda: lane.log("free") == [0], description="the message of a free ticket to be done")
