"""Tickets that are moved on purpose: by drain, transfer, rebalancing, and a rolling restart."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.operate.orders import give
from bridge.protocol.orders import ORDERS
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param, COUNTER_LEASE="6")


def order(lane: LaneUnderTest, do: str, **fields: Any) -> dict[str, Any]:
    return give(lane.server.client(), lane.keys, ORDERS[do](**fields))


def starts(lane: LaneUnderTest) -> list[tuple[str, int]]:
    """(ticket, number) of every execution that began."""
    found = []
    for path in lane.ledger.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            kind, ticket, n, *_ = json.loads(line)
            if kind == "start":
                found.append((ticket, n))
    return found


def ran_at(worker: Any, lane: LaneUnderTest) -> int:
    """How many executions began in the pool of a worker."""
    pool = {child.pid for child in worker.children()}
    return sum(path.read_text().count('["start"') for path in lane.ledger.glob("*.jsonl") if int(path.stem) in pool)


def pending_at(lane: LaneUnderTest, consumer: str) -> int:
    found: Any = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    return sum(entry["pending"] for entry in found if entry["name"] == consumer)


def two_workers(lane: LaneUnderTest) -> tuple[Any, Any]:
    one, two = lane.worker("w1", "--concurrency=2", wait=False), lane.worker("w2", "--concurrency=2", wait=False)
    one.wait_ready()
    two.wait_ready()
    lane.wait_consumers(2)
    return one, two


def test_a_drained_worker_empties_under_load_and_takes_tickets_again(lane: LaneUnderTest) -> None:
    lane.master("m1")
    one, two = two_workers(lane)
    lane.push_many(20, 10, ms=40)
    wait_until(lambda: pending_at(lane, one.hostname()) > 0, description="the worker to be busy")

    order(lane, "drain", consumer=one.hostname())

    wait_until(lambda: pending_at(lane, one.hostname()) == 0, description="the drained worker to be empty")
    # There is more, if a slow machine is late and all before that is done.
    before = lane.count("done")
    lane.push_many(20, 5, ms=40, first=10)
    holds_for(lambda: pending_at(lane, one.hostname()) == 0, description="nothing new to come there", duration_s=0.5)
    wait_until(lambda: lane.count("done") > before, description="the other one to go on")
    assert one.running
    before = ran_at(one, lane)
    order(lane, "resume", consumer=one.hostname())
    lane.push_many(20, 5, ms=40, first=15)
    wait_until(lambda: ran_at(one, lane) > before, description="the worker to be used again")
    # A transfer of all tickets to the other worker by name, and of one ticket to any worker
    order(lane, "transfer", consumer=one.hostname(), to=two.hostname())
    order(lane, "transfer", consumer=two.hostname(), tickets=["T0", "T1"])
    lane.wait_done(20 * 20)
    lane.assert_logs(20, 20)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert len(starts(lane)) == 20 * 20


@pytest.mark.parametrize("lane", ["10"], indirect=True, ids=["bundles"])
def test_a_drain_lasts_through_a_lost_lease_and_ends_with_the_process(lane: LaneUnderTest) -> None:
    lane.env["COUNTER_LEASE"] = "2"
    master = lane.master("m1")
    one, _ = two_workers(lane)
    lane.wait_known(master, one)
    order(lane, "drain", consumer=one.hostname())
    before = lane.redis.hget(lane.keys.consumers, one.hostname())
    # Given a worker that loses its lease, and comes back as a new incarnation
    one.pause()
    wait_until(lambda: lane.redis.hget(lane.keys.consumers, one.hostname()) is None, description="it to be gone")
    one.resume()
    wait_until(
        lambda: lane.redis.hget(lane.keys.consumers, one.hostname()) not in (None, before), description="it to be back"
    )
    lane.push_many(10, 5, ms=20)
    lane.wait_done(50)
    assert lane.redis.hexists(lane.keys.drains, one.hostname())
    assert starts(lane)
    pids = {int(path.stem) for path in lane.ledger.glob("*.jsonl")}
    assert pids.isdisjoint(child.pid for child in one.children()), "the drained worker ran something"
    # When it is restarted, it is open
    one.terminate()
    one.start()
    one.wait_ready()
    # The other one has no room for all tickets while they wait at the gate.
    lane.push_many(10, 10, ms=40, first=5, gate="used")
    wait_until(lambda: ran_at(one, lane) > 0, description="the restarted worker to be used")
    lane.open("used")
    wait_until(
        lambda: not lane.redis.hexists(lane.keys.drains, one.hostname()), description="the order to be forgotten"
    )
    lane.wait_done(150)
    lane.assert_logs(10, 15)


@pytest.mark.parametrize("lane", ["10"], indirect=True, ids=["bundles"])
# With rendezvous, a worker that joins is also in `test_who_can_run.py`.
@pytest.mark.parametrize("policy", ["least_loaded", pytest.param("rendezvous", marks=pytest.mark.long)])
def test_workers_that_join_take_their_share(lane: LaneUnderTest, policy: str) -> None:
    lane.env["COUNTER_POLICY"] = policy
    lane.master("m1")
    lane.worker("w1", "--concurrency=2")
    # Half of the load waits for the new one: it may take longer to start than the first one for all of it.
    lane.push_many(20, 10, ms=80, gate="joined")
    wait_until(lambda: lane.count("done") > 25, description="the first worker to work")
    joined = lane.worker("w2", "--concurrency=2")
    wait_until(lambda: pending_at(lane, joined.hostname()) > 0, description="the new one to be used")
    lane.open("joined")
    lane.wait_done(20 * 10)
    lane.assert_logs(20, 10)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert len(starts(lane)) == 20 * 10


class Pauses:
    """Measures for how long no message was done."""

    def __init__(self, lane: LaneUnderTest) -> None:
        self.longest_s = 0.0
        self._lane = lane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._redis = lane.server.client(decode_responses=True)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last, at = -1, time.monotonic()
        while not self._stop.wait(0.02):
            counted: Any = self._redis.hget(self._lane.keys.counts, "done")
            done = int(counted or 0)
            now = time.monotonic()
            if done != last:
                last, at = done, now
            self.longest_s = max(self.longest_s, now - at)


def test_a_rolling_restart_of_everything_repeats_nothing_and_hardly_pauses(lane: LaneUnderTest) -> None:
    # No lease ends within this test: one that was waited for would be a pause of a minute.
    lane.env |= {"COUNTER_LEASE": "60", "COUNTER_LEADER_LEASE": "60"}
    masters = [lane.master("m1"), lane.master("m2")]
    workers = two_workers(lane)
    tickets, each = 20, 2
    lane.push_many(tickets, each, ms=300)
    wait_until(lambda: lane.count("done") > 0, description="the load to run")

    with Pauses(lane) as pauses:
        for node in (*workers, *masters):
            # So there is a load at each restart
            lane.push_many(tickets, 2, ms=300, first=each)
            each += 2
            assert node.terminate() == 0
            node.start()
            node.wait_ready()

    print(f"longest pause: {pauses.longest_s:.2f} s")
    lane.wait_done(tickets * each)
    lane.assert_logs(tickets, each)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert sorted(starts(lane)) == sorted((f"T{t}", n) for t in range(tickets) for n in range(each))
    assert pauses.longest_s < 30
