"""kill -9 and SIGTERM of everything, under load: nothing is lost, reordered or overlapped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

TICKETS = 20
EACH = 6
#: Sleep of each task in ms: long enough that a task is running whenever a process is killed.
TASK_MS = 30


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


def under_load(lane: LaneUnderTest, fault: Callable[[], object]) -> None:
    """Pushes a load, causes the fault in the middle of it, and checks everything when all is done.

    Half of the load waits for the fault: it strikes a busy lane, however late it comes.
    """
    lane.push_many(TICKETS, EACH, ms=TASK_MS, gate="struck")
    total = TICKETS * EACH
    wait_until(lambda: lane.count("done") > total // 4, description="a quarter of the load to be done", timeout_s=90)
    fault()
    lane.open("struck")
    lane.wait_done(total)
    lane.assert_logs(TICKETS, EACH)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert lane.dead_letters() == []


def test_a_killed_workers_tickets_go_on_elsewhere_in_order(lane: LaneUnderTest) -> None:
    lane.master("m1")
    workers = [lane.worker("w1", wait=False), lane.worker("w2", wait=False)]
    for worker in workers:
        worker.wait_ready()
    lane.wait_consumers(2)

    def kill_a_busy_one() -> None:
        [(_, pid), *_] = wait_until(lane.held, description="a task to wait at the gate")
        [victim] = [worker for worker in workers if pid in {child.pid for child in worker.children()}]
        victim.kill_main()
        workers.remove(victim)

    under_load(lane, kill_a_busy_one)

    assert lane.count("rerouted") > 0
    wait_until(
        lambda: lane.redis.hkeys(lane.keys.consumers) == [workers[0].hostname()],
        description="the killed one to be forgotten",
    )


def test_a_killed_worker_that_returns_under_its_name_waits_its_lease_out(lane: LaneUnderTest) -> None:
    lane.master("m1")
    victim = lane.worker("w1")

    def kill_and_return() -> None:
        victim.kill_main()
        victim.wait()
        victim.start()

    under_load(lane, kill_and_return)


# `test_failures.py` kills pool processes, too, and says which messages that costs an attempt.
@pytest.mark.long
def test_a_killed_pool_process_costs_nothing_but_an_attempt(lane: LaneUnderTest) -> None:
    lane.master("m1")
    worker = lane.worker("w1")

    def kill_child() -> None:
        child = random.choice(worker.children())
        os.kill(child.pid, signal.SIGKILL)

    under_load(lane, kill_child)


def test_a_killed_leaders_standby_takes_over(lane: LaneUnderTest) -> None:
    masters = [lane.master("m1"), lane.master("m2")]
    lane.worker("w1")

    def kill_leader() -> None:
        holder = lane.wait_leader()
        [leader] = [m for m in masters if f":{m.pid}:" in holder]
        leader.kill_main()

    under_load(lane, kill_leader)

    assert int(lane.wait_leader().split()[0]) >= 2


def test_a_killed_master_that_returns_goes_on_where_it_was(lane: LaneUnderTest) -> None:
    master = lane.master("m1")
    lane.worker("w1")

    def kill_and_return() -> None:
        master.kill_main()
        master.wait()
        master.start()

    under_load(lane, kill_and_return)


def test_a_worker_that_is_asked_to_stop_hands_over_at_once(lane: LaneUnderTest) -> None:
    # No lease ends within this test.
    lane.env["COUNTER_LEASE"] = "60"
    lane.master("m1")
    going = lane.worker("w1", wait=False)
    lane.worker("w2")
    going.wait_ready()
    lane.wait_consumers(2)

    under_load(lane, lambda: going.send(signal.SIGTERM))

    assert going.wait() == 0
    # The leader may read the worker's good-bye a moment after its end
    wait_until(
        lambda: going.hostname() not in lane.redis.hkeys(lane.keys.consumers),
        description="the worker that is gone to be forgotten",
    )


def test_a_worker_that_finishes_a_long_task_gets_nothing_more_and_delays_no_ticket(lane: LaneUnderTest) -> None:
    lane.master("m1")
    going = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    lane.push("long", {"n": 0, "gate": "open"}, "counter.held")
    lane.push("behind", {"n": 0})
    wait_until(lambda: any(lane.ledger.iterdir()), description="the long task to start")
    lane.push("later", {"n": 0})
    going.send(signal.SIGTERM)
    going.wait_for_log("Warm shutdown")
    lane.worker("w2", "--concurrency=1")

    for n in range(20):
        lane.push(f"T{n}", {"n": 0})
    wait_until(lambda: lane.count("done") >= 22, description="all but the long one to be done")

    assert going.running, "the long task was cut short"
    (lane.ledger / "open").touch()
    lane.wait_done(23)
    assert lane.log("long") == lane.log("behind") == lane.log("later") == [0]
    assert going.wait() == 0


def test_a_leader_that_is_asked_to_stop_resigns_at_once(lane: LaneUnderTest) -> None:
    # No lease ends within this test.
    lane.env |= {"COUNTER_LEADER_LEASE": "60", "COUNTER_LEASE": "60"}
    masters = [lane.master("m1"), lane.master("m2")]
    lane.worker("w1")

    def stop_leader() -> None:
        holder = lane.wait_leader()
        [leader] = [m for m in masters if f":{m.pid}:" in holder]
        assert leader.terminate() == 0
        wait_until(lambda: lane.redis.get(lane.keys.leader) not in (None, holder), description="the standby to lead")

    under_load(lane, stop_leader)


def test_a_killed_server_that_returns_has_lost_nothing(lane: LaneUnderTest) -> None:
    lane.master("m1")
    lane.worker("w1")

    def kill_server() -> None:
        lane.server.kill()
        lane.server.start()

    under_load(lane, kill_server)


def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_wakes_up(lane: LaneUnderTest) -> None:
    lane.master("m1")
    frozen = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "gate": "frozen"}, "counter.held")
    wait_until(lane.held, description="the task to start")
    before = lane.redis.hget(lane.keys.consumers, frozen.hostname())

    frozen.pause()
    lane.open("frozen")
    lane.worker("w2", "--concurrency=1")
    lane.push("A", {"n": 1})
    lane.wait_done(2)
    assert lane.log("A") == [0, 1]
    frozen.resume()

    # It ran on for a moment, perhaps to the end of its task. Its lease had ended, so its fence was not current.
    wait_until(
        lambda: lane.redis.hget(lane.keys.consumers, frozen.hostname()) not in (None, before),
        description="the frozen worker to come back as a new incarnation",
    )
    lane.push("B", {"n": 0})
    lane.wait_done(3)
    assert lane.log("A") == [0, 1]
    lane.assert_at_rest()


# `test_workers_that_join_take_their_share` says the same of a load that goes on.
@pytest.mark.long
def test_a_worker_that_joins_is_used_at_once(lane: LaneUnderTest) -> None:
    lane.master("m1")
    lane.worker("w1", "--concurrency=1")
    # One ticket more, whose task ends when the second worker was used.
    lane.push("long", {"n": 0, "gate": "open"}, "counter.held")
    wait_until(lambda: any(lane.ledger.glob("held-*")), description="the first worker to be busy")
    lane.push_many(TICKETS, EACH)

    joined = lane.worker("w2", "--concurrency=1")

    pool = {child.pid for child in joined.children()}
    wait_until(
        lambda: pool.intersection(int(path.stem) for path in lane.ledger.glob("*.jsonl")),
        description="the second worker to run something",
    )
    (lane.ledger / "open").touch()
    lane.wait_done(TICKETS * EACH + 1)
    lane.assert_logs(TICKETS, EACH)
