"""A new leader reads a backlog and works at the same time. No message is lost, doubled or out of order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: Entries in one page of what a leader reads.
PAGE = 500


def test_a_backlog_of_several_pages_is_taken_in_between_the_turns_of_a_new_leader(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a leader that has read everything and no worker: tickets before, between and behind a backlog of one ticket
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    master = lane.master("m1")
    first = lane.worker("w0")
    lane.push("warm", {"n": 0, "ms": 0})
    lane.wait_done(1)
    first.terminate()
    first.wait()
    wait_until(lambda: lane.redis.exists(lane.keys.floor), description="it to be noted how far all is done")
    ids: dict[int, list[str]] = {}
    for n in range(2):
        ids[n] = [lane.push(f"T{ticket}", {"n": n, "ms": 0}) for ticket in range(3)]
        with lane.redis.pipeline(transaction=False) as pipe:
            for m in range(PAGE):
                payload = json.dumps({"n": PAGE * n + m, "ms": 0})
                pipe.xadd(lane.keys.stream, {"ticket_id": "backlog", "payload": payload})
            pipe.execute()
    every = 6 + 2 * PAGE

    def pending() -> int:
        summary: Any = lane.redis.xpending(lane.keys.stream, lane.keys.group)
        return int(summary.get("pending", 0))

    wait_until(lambda: pending() == every, description="all to be read")
    # When it dies, and a message of a later page is acknowledged by hand
    master.kill_main()
    master.wait()
    lane.redis.xack(lane.keys.stream, lane.keys.group, ids[1][1])
    lane.worker("w1", wait=False)
    lane.master("m2")
    for ticket in range(3):
        lane.push(f"T{ticket}", {"n": 2, "ms": 0})
    # Then all is done, once, each ticket in order
    lane.wait_done(1 + every + 3)
    for ticket in range(3):
        assert lane.log(f"T{ticket}") == [0, 1, 2]
    assert lane.log("backlog") == list(range(2 * PAGE))
    lane.assert_at_rest()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("tickets", "window"), [(600, 150), pytest.param(50_000, 1_000, marks=pytest.mark.long)])
def test_far_more_tickets_in_backoff_than_the_window_holds_cost_others_nothing(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, tickets: int, window: int
) -> None:
    conf = {"COUNTER_CONF": json.dumps({"bridge_breaker": {"share": 0}})}
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_WINDOW=str(window), **conf)
    master = lane.master("m1")
    worker = lane.worker("w1", "--concurrency=2", "--loglevel=CRITICAL", wait=False)
    lane.wait_consumers(1)
    # Given as many tickets that await a retry
    with lane.redis.pipeline(transaction=False) as pipe:
        for ticket in range(tickets):
            payload = json.dumps({"countdown": 3600, "n": 0})
            pipe.xadd(lane.keys.stream, {"ticket_id": f"B{ticket}", "task": "counter.asks_again", "payload": payload})
        pipe.execute()

    def waits() -> bool:
        return int(lane.redis.zcard(lane.keys.retries)) == tickets

    wait_until(waits, description="all to wait for a retry", timeout_s=700)
    # Then other tickets flow, also under the next leader
    lane.push_many(20, 5)
    lane.wait_done(100)
    master.kill_main()
    lane.master("m2")
    lane.push_many(20, 5, first=5)
    lane.wait_done(200)
    lane.assert_logs(20, 10)
    assert waits()
    # And new messages of the resting tickets wait behind the retry
    lane.push("B0", {"n": 1, "ms": 0})
    lane.push("last", {"n": 0, "ms": 0})
    lane.wait_done(201)
    assert (lane.log("B0"), lane.log("last")) == ([], [0])
    assert worker.running
