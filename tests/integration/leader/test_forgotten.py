"""A worker that takes a message and forgets it, and tasks that set what a dead message does to its ticket."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest

APP = "tests.apps.forgetful"


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="4")


def begin(lane: LaneUnderTest) -> None:
    lane.nodes.master("m1", app=APP, env=lane.env, ready_text="standing by")
    lane.nodes.worker("w1", app=APP, arguments=("--concurrency=2", *QUICK), env=lane.env)
    lane.wait_consumers(1)


def test_a_message_that_a_worker_forgot_is_sent_again(lane: LaneUnderTest) -> None:
    begin(lane)
    for n in range(3):
        lane.push("F", {"n": n})
        lane.push("other", {"n": n})

    lane.wait_done(6)

    assert lane.log("F") == [0, 1, 2]
    assert lane.log("other") == [0, 1, 2]
    assert lane.count("lost") == 1
    # By the same incarnation: no lease was ended
    assert lane.count("rerouted") == 0
    lane.assert_no_overlap()
    lane.assert_at_rest()


@pytest.mark.parametrize("default", ["skip", "park"])
def test_a_tasks_own_on_dead_goes_before_the_setting(lane: LaneUnderTest, default: str) -> None:
    lane.env["COUNTER_ON_DEAD"] = default
    begin(lane)
    for task in ("parks", "skips"):
        lane.push(task, {"good": False}, f"forgetful.{task}")
        lane.push(task, {"good": True}, f"forgetful.{task}")

    wait_until(lambda: lane.count("dead") == 2, description="both bad messages to be dead")
    wait_until(lambda: lane.count("done") == 1, description="the ticket that skips to go on")

    assert list(lane.redis.hgetall(lane.keys.tickets)) == ["parks"]
    assert {letter["ticket_id"] for letter in lane.dead_letters()} == {"parks", "skips"}
