"""The whole path on the oldest server that is supported: Redis 6.2."""

from __future__ import annotations

from pathlib import Path

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.yard import ProcessYard
from tests.integration.lanes import LaneUnderTest


def test_messages_flow_on_redis_6_2(redis6: EmbeddedServer, tmp_path: Path) -> None:
    yard = ProcessYard(tmp_path, redis6.url)
    try:
        lane = LaneUnderTest(yard, redis6, tmp_path)
        lane.push_many(10, 20)
        lane.push("F", {"n": 0, "until": 2}, "counter.flaky")
        lane.master("m1", wait=False)
        worker = lane.worker("w1")

        lane.wait_done(201)
        lane.assert_logs(10, 20)
        assert lane.log("F") == [0]
        lane.assert_no_overlap()
        lane.assert_at_rest()

        lane.push_many(10, 20, ms=5, first=20)
        worker.kill_main()
        worker.wait()
        worker.start()
        lane.wait_done(401)
        lane.assert_logs(10, 40)
    finally:
        yard.close()
