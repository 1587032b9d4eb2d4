"""Every pool keeps the promises: order, one at a time, retries, and a lost lease that makes a new incarnation."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

TICKETS = 12
EACH = 10
CANNOT_KILL = "pool cannot end a running task"


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


def worker_of(lane: LaneUnderTest, name: str, pool: str) -> WorkerNode:
    return lane.worker(name, "--concurrency=3", f"--pool={pool}")


def incarnation_of(lane: LaneUnderTest, worker: WorkerNode) -> str:
    found: Any = lane.redis.hget(lane.keys.consumers, worker.hostname())
    return str(json.loads(found)["incarnation"]) if found else ""


# Prefork: its order and retries are in nearly every test, a kill in `test_death_notices.py`, and a lost lease in
# `test_self_fencing.py`.
@pytest.mark.parametrize("pool", [pytest.param("prefork", marks=pytest.mark.long), "solo", "threads", "gevent"])
def test_order_and_retries_stay_over_a_killed_worker_and_a_lost_lease(lane: LaneUnderTest, pool: str) -> None:
    lane.master("m1")
    victim = worker_of(lane, "w1", pool)
    lane.wait_consumers(1)
    lane.push_many(TICKETS, EACH, ms=2)
    for n in range(5):
        lane.push("flaky", {"n": n, "until": 2 if n % 2 else 1}, "counter.flaky")
    done = TICKETS * EACH + 5
    lane.wait_done(done)
    lane.assert_logs(TICKETS, EACH)
    assert lane.log("flaky") == [0, 1, 2, 3, 4]
    assert lane.count("failed") == 2
    lane.assert_no_overlap()
    lane.assert_at_rest()
    # And a worker whose pool cannot kill tasks says so once
    assert victim.logs().count(CANNOT_KILL) == (0 if pool == "prefork" else 1)

    # Killed, its tickets go on elsewhere in order
    worker = worker_of(lane, "w2", pool)
    lane.wait_consumers(2)
    lane.push_many(TICKETS, EACH, ms=15, first=EACH)
    wait_until(lambda: lane.count("done") > done + 40, description="the workers to work")
    victim.kill_main()
    done += TICKETS * EACH
    lane.wait_done(done)
    lane.assert_logs(TICKETS, 2 * EACH)
    lane.assert_no_overlap()
    lane.assert_at_rest()

    # A lost lease makes a new incarnation, and the work goes on
    before = incarnation_of(lane, worker)
    lane.push_many(TICKETS, EACH, ms=15, first=2 * EACH)
    wait_until(lambda: lane.count("done") > done + 20, description="the worker to work")
    lane.redis.delete(lane.keys.lease(before))
    wait_until(lambda: incarnation_of(lane, worker) not in ("", before), description="a new incarnation")
    lane.wait_done(done + TICKETS * EACH)
    # The message that ran when the lease was lost may have run on. Its effects were applied first, or not at all
    lane.assert_logs(TICKETS, 3 * EACH)
    lane.assert_at_rest()


# The other pools, asked in the same way, are cells of `test_going_down.py` in each run.
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.long) for pool in ("solo", "threads", "gevent"))]
)
def test_a_worker_that_is_asked_to_stop_gives_back_what_it_has_not_begun(lane: LaneUnderTest, pool: str) -> None:
    lane.master("m1")
    going = worker_of(lane, "w1", pool)
    lane.wait_consumers(1)
    for ticket in range(6):
        lane.push(f"long{ticket}", {"n": 0, "ms": 1500})
    wait_until(lambda: any(lane.ledger.iterdir()), description="a task to start")
    other = worker_of(lane, "w2", pool)
    going.send(signal.SIGTERM)

    lane.wait_done(6)

    assert going.wait(timeout_s=90) == 0
    assert [lane.log(f"long{ticket}") for ticket in range(6)] == [[0]] * 6
    assert lane.count("failed") == 0
    lane.assert_no_overlap()
    lane.assert_at_rest()
    wait_until(
        lambda: lane.redis.hkeys(lane.keys.consumers) == [other.hostname()],
        description="the one that went to be forgotten",
    )


def test_a_crash_in_a_bundle_is_charged_also_in_a_pool_that_derives_from_celerys(lane: LaneUnderTest) -> None:
    """Else it would come again for ever, and each time its bundle mates with it."""
    lane.master("m1")
    # The task is known as a short one by the time that it crashes, so that it does so in a bundle
    for n in range(20):
        for ticket in range(30):
            lane.push(f"T{ticket}", {"n": n}, "counter.killed")
        if n == 10:
            for ticket in range(6):
                lane.push(f"K{ticket}", {"n": 0, "until": 2 if ticket else 99}, "counter.killed")
    worker = lane.worker("w1", COUNTER_CONF=json.dumps({"worker_pool": "tests.apps.pools:MoreProcesses"}))
    lane.wait_done(30 * 20 + 6)
    notes = [json.loads(line) for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
    attempts = sorted(
        (ticket, attempt) for kind, ticket, _, _, attempt, *_ in notes if kind == "start" and ticket[0] == "K"
    )
    assert attempts == [("K0", 1), ("K0", 2), ("K0", 3), *((f"K{ticket}", n) for ticket in range(1, 6) for n in (1, 2))]
    assert [letter["ticket_id"] for letter in lane.dead_letters()] == ["K0"]
    lane.assert_logs(30, 20)
    lane.assert_at_rest()
    assert CANNOT_KILL not in worker.logs()
