"""A message that ends its whole worker, again and again, dies. No other message is charged, and the lane goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.routing.partitions import partition_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

ATTEMPTS = 3
INNOCENTS = 6


def ended(lane: LaneUnderTest) -> list[tuple[str, int, int]]:
    """(ticket, number, attempt) of every execution that ended."""
    found = []
    for path in lane.ledger.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            kind, ticket, n, _fence, attempt, *_ = json.loads(line)
            if kind == "end":
                found.append((ticket, n, attempt))
    return found


def keep_alive(lane: LaneUnderTest, workers: list[WorkerNode]) -> int:
    """Restarts each worker that ends, until the culprit is dead. Returns how many workers it ended."""
    lives = 0

    def dead_or_ended() -> bool:
        return bool(lane.dead_letters()) or any(not worker.running for worker in workers)

    while not lane.dead_letters():
        assert lives < 10, "the culprit goes on and on"
        wait_until(dead_or_ended, description="the culprit to end another worker, or to be dead")
        for worker in workers:
            if not worker.running:
                lives += 1
                worker.start()
    return lives


@pytest.mark.parametrize(
    ("unnoticed", "count", "bundle_ms"),
    [
        pytest.param(False, 1, "10", id="noticed-one-worker-bundles", marks=pytest.mark.long),
        # The next test has deaths that are noticed, too.
        pytest.param(False, 2, "0", id="noticed-two-workers-plain", marks=pytest.mark.long),
        pytest.param(True, 1, "0", id="unnoticed-one-worker-plain", marks=pytest.mark.long),
        pytest.param(True, 2, "10", id="unnoticed-two-workers-bundles"),
    ],
)
def test_a_message_that_kills_its_worker_dies_and_no_other_is_charged(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, unnoticed: bool, count: int, bundle_ms: str
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms)
    lane.master("m1")
    workers = [lane.worker(f"w{i}", "--concurrency=2", wait=False) for i in range(count)]
    for worker in workers:
        worker.wait_ready()
    lane.wait_consumers(count)
    began = time.monotonic()
    # Given other messages that run long enough to be in flight whenever the culprit ends a worker
    for n in range(3):
        for i in range(INNOCENTS):
            lane.push(f"I{i}", {"n": n, "ms": 300})
    lane.push("K", {"n": 0, "unnoticed": unnoticed}, task="counter.kills_worker")
    lane.push("K", {"n": 1})

    lives = keep_alive(lane, workers)
    lane.wait_done(INNOCENTS * 3 + 2)

    print(f"{lives} lives, all done after {time.monotonic() - began:.1f} s")
    [letter] = lane.dead_letters()
    assert (letter["ticket_id"], letter["attempts"]) == ("K", str(ATTEMPTS))
    assert lane.log("K") == [1]
    # Two workers may end before it is a suspect. Then it runs alone, once for each attempt
    assert ATTEMPTS <= lives <= ATTEMPTS + 2
    for i in range(INNOCENTS):
        assert lane.log(f"I{i}") == [0, 1, 2]
    charged = [one for one in ended(lane) if one[2] != 1]
    assert charged == []
    lane.assert_no_overlap()
    lane.assert_at_rest()


@pytest.mark.parametrize(
    "unnoticed", [pytest.param(False, id="noticed"), pytest.param(True, id="unnoticed", marks=pytest.mark.long)]
)
def test_a_message_that_kills_workers_makes_no_message_of_another_lane_dead(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, unnoticed: bool
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_CONF='{"bridge_partitions": 2}')
    names = {n: [f"I{i}" for i in range(60) if partition_of(f"I{i}", 2) == n] for n in (0, 1)}
    keys = [LaneKeys(f"ticket_stream:p{n}", lane.keys.group) for n in (0, 1)]
    lane.master("m1")
    workers = [lane.worker(f"w{i}", "--concurrency=2") for i in range(2)]
    # Given another lane with messages that run whenever the culprit ends a worker, as long as there are some
    for ticket in names[1][:8]:
        for n in range(2):
            lane.redis.xadd(keys[1].stream, {"ticket_id": ticket, "payload": json.dumps({"n": n, "ms": 300})})
    body = json.dumps({"n": 0, "unnoticed": unnoticed})
    lane.redis.xadd(keys[0].stream, {"ticket_id": names[0][0], "task": "counter.kills_worker", "payload": body})

    def over() -> bool:
        for worker in workers:
            if not worker.running:
                worker.start()
        done: Any = lane.redis.hget(keys[1].counts, "done")
        return bool(lane.redis.xlen(keys[0].dead)) and int(done or 0) == 16

    wait_until(over, description="the culprit to be dead, and the others to be done", timeout_s=300)
    charged = [(ticket, attempt) for ticket, _, attempt in ended(lane) if attempt != 1]
    assert charged == []
    assert lane.redis.xlen(keys[1].dead) == 0
    assert lane.redis.xlen(keys[0].dead) == 1
    for ticket in names[1][:8]:
        assert lane.log(ticket) == [0, 1]
