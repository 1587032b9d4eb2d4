"""A pool process ends with a message that Celery has forgotten, since it lost its connection in between."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

CONNECTED = "Connected to redis://"


@pytest.mark.parametrize("bundle_ms", ["0", "50"], ids=["one by one", "bundles"])
def test_a_message_that_celery_has_forgotten_comes_again_when_its_process_ends(
    bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a message in the pipe of a pool process that has not accepted it
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms)
    lane.master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    [process] = worker.children()
    stopped = psutil.Process(process.pid)
    stopped.suspend()
    lane.push_many(2, 1, gate="gate")
    name = worker.hostname()
    queue = lane.keys.queue(name)
    wait_until(lambda: lane.in_flight(name) and not lane.redis.llen(queue), description="the worker to have it")
    # When Celery loses its connection, the process begins the message, and ends with it
    connections = worker.logs().count(CONNECTED)
    lane.redis.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: worker.logs().count(CONNECTED) > connections, description="a new connection")
    stopped.resume()
    wait_until(lane.held, description="the task to wait at its gate")
    stopped.kill()
    # Then the message comes again, and the attempt was counted
    lane.open("gate")
    lane.wait_done(2)
    lane.assert_logs(2, 1)
    lane.assert_at_rest()
    assert lane.count("failed") == 1
