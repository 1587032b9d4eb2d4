"""`bridge.consumer.HttpConsumer` as processes that are killed, frozen and stopped, with masters that are killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import Node, NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import SHORT_LEASE, HttpLane, handler_command


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> HttpLane:
    lane = HttpLane(nodes, own_server, tmp_path, **SHORT_LEASE)
    lane.master("m1")
    return lane


def start(lane: HttpLane, name: str, concurrency: int = 2) -> Node:
    urls = [f"http://{HOST}:{port}" for port in lane.ports.values()]
    env = {**lane.env, "CELERY_BROKER_URL": lane.server.url}
    return lane.nodes.process(name, handler_command(name, concurrency, *urls), env=env, cwd=ROOT, ready_text="ready")


def test_consumers_and_masters_that_are_killed_lose_and_repeat_nothing_out_of_order(lane: HttpLane) -> None:
    lane.master("m2")
    consumers = [start(lane, f"h{n}", 4) for n in range(3)]
    lane.wait_consumers(3)
    lane.push_many(12, 20, ms=10)
    wait_until(lambda: lane.count("done") > 30, description="some to be done")
    consumers[0].kill()
    wait_until(lambda: lane.count("done") > 60, description="more to be done")
    lane.nodes.masters()[0].kill_main()
    lane.wait_done(240)
    lane.assert_logs(12, 20)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    # One that is stopped leaves, and its name is gone at once
    consumers[1].kill("SIGTERM")
    consumers[1].wait()
    assert "left" in consumers[1].logs()
    wait_until(lambda: lane.redis.hkeys(lane.keys.consumers) == ["h2"], description="h2 alone")


def test_a_consumer_that_is_frozen_past_its_lease_ends_itself_and_its_late_work_is_refused(lane: HttpLane) -> None:
    frozen = start(lane, "h1", 1)
    lane.wait_consumers(1)
    lane.push("T0", {"n": 0, "ms": 1500})
    wait_until(lambda: lane.executions() == 1, description="the message to be handled")
    frozen.pause()
    began = time.monotonic()
    other = start(lane, "h2", 1)
    wait_until(lambda: lane.count("done") == 1, description="the other one to handle it")
    assert time.monotonic() - began > 1
    frozen.resume()
    wait_until(lambda: not frozen.running, description="the frozen one to end itself")
    lane.push("T0", {"n": 1})
    lane.wait_done(2)
    lane.assert_logs(1, 2)
    assert other.running
    assert lane.count("done") == 2


def test_it_fails_refuses_and_goes_on(lane: HttpLane) -> None:
    start(lane, "h1", 2)
    lane.push("T0", {"n": 0, "fail": True})
    lane.push("T0", {"n": 1, "refuse": True})
    lane.push("T0", {"n": 2})
    lane.wait_done(3)
    lane.assert_logs(1, 3)
    assert (lane.count("failed"), lane.count("nacked")) == (1, 1)
