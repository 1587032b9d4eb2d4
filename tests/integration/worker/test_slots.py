"""A worker gets as many messages at once as its pool has slots, also when the pool grows and shrinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import VERSION, Celery

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import LaneUnderTest

#: Pools that an operator may grow.
GROWING = [
    "prefork",
    pytest.param("gevent", marks=pytest.mark.skipif(VERSION < (5, 7), reason="Celery 5.6 does not grow a busy one")),
]


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


def slots(lane: LaneUnderTest, worker: WorkerNode) -> int:
    found: Any = lane.redis.hget(lane.keys.consumers, worker.hostname())
    return int(json.loads(found)["slots"])


def push_held(lane: LaneUnderTest, gate: str, tickets: int) -> None:
    for ticket in range(tickets):
        lane.push(f"{gate}{ticket}", {"n": 0, "gate": gate}, "counter.held")


def held(lane: LaneUnderTest, gate: str) -> int:
    return len(list(lane.ledger.glob(f"held-{gate}*")))


def open_gate(lane: LaneUnderTest, gate: str, done: int) -> None:
    (lane.ledger / gate).touch()
    lane.wait_done(done)


def tell(lane: LaneUnderTest, worker: WorkerNode, command: str, **arguments: int) -> None:
    """Sends a command of Celery's remote control. A worker is registered a moment before it listens to that."""
    control = Celery(broker=lane.server.url).control
    wait_until(lambda: control.ping([worker.hostname()], timeout=1), description="the worker to listen", timeout_s=90)
    to = {"destination": [worker.hostname()], "reply": True, "timeout": 10, "limit": 1}
    [reply] = control.broadcast(command, arguments=arguments, **to)
    assert "ok" in reply[worker.hostname()]


@pytest.mark.parametrize("pool", GROWING)
def test_slots_follow_the_pool_and_one_that_is_shrunk_to_nothing_delays_no_ticket(
    lane: LaneUnderTest, pool: str
) -> None:
    master = lane.master("m1")
    worker = lane.worker("w1", f"--pool={pool}", "--concurrency=1")
    lane.wait_consumers(1)
    lane.wait_known(master, worker)
    push_held(lane, "a", 3)
    wait_until(lambda: held(lane, "a") == 1, description="one to run")

    tell(lane, worker, "pool_grow", n=2)

    wait_until(lambda: slots(lane, worker) == 3, description="the worker to tell that its pool grew")
    wait_until(lambda: held(lane, "a") == 3, description="three to run at once")
    open_gate(lane, "a", 3)
    tell(lane, worker, "pool_shrink", n=2)
    wait_until(lambda: slots(lane, worker) == 1, description="the worker to tell that its pool shrank")
    push_held(lane, "b", 3)
    wait_until(lambda: held(lane, "b") >= 1, description="one to run")
    holds_for(lambda: held(lane, "b") == 1, description="one to run alone", duration_s=0.5)
    open_gate(lane, "b", 6)
    assert [lane.log(f"{gate}{ticket}") for gate in "ab" for ticket in range(3)] == [[0]] * 6

    tell(lane, worker, "pool_shrink", n=1)
    for n in range(3):
        lane.push("A", {"n": n})
    wait_until(lambda: slots(lane, worker) == 0, description="the worker to tell that its pool is empty")

    other = lane.worker("w2", "--concurrency=1")
    lane.wait_done(9)

    assert lane.log("A") == [0, 1, 2]
    assert lane.count("failed") == 0
    other.terminate()
    tell(lane, worker, "pool_grow", n=1)
    lane.push("A", {"n": 3})
    lane.wait_done(10)
    lane.assert_at_rest()
    # The incarnation is still the same
    assert worker.logs().count("registered as") == 1


def test_autoscale_gets_what_its_largest_pool_takes(lane: LaneUnderTest) -> None:
    master = lane.master("m1")
    worker = lane.worker("w1", "--autoscale=4,1")
    lane.wait_consumers(1)
    lane.wait_known(master, worker)
    assert slots(lane, worker) == 4
    push_held(lane, "a", 4)
    wait_until(lambda: held(lane, "a") == 4, description="the pool to grow to four")
    tell(lane, worker, "autoscale", max=6, min=1)
    wait_until(lambda: slots(lane, worker) == 6, description="the worker to tell that its pool may grow")
    # Celery grows the pool when a message arrives
    for ticket in range(2):
        lane.push(f"b{ticket}", {"n": 0, "gate": "a"}, "counter.held")
    wait_until(lambda: held(lane, "") == 6, description="the pool to grow to six")
    open_gate(lane, "a", 6)
    assert lane.count("failed") == 0


def pool_processes(worker: WorkerNode) -> list[psutil.Process]:
    """The processes of the worker's pool: the forks of its main process."""
    main = psutil.Process(worker.pid)
    return [child for child in main.children() if child.cmdline() == main.cmdline()]


def test_a_pool_whose_processes_hang_at_their_start_delays_no_ticket(lane: LaneUnderTest) -> None:
    # Of the processes that hang, Celery ends those that it started later, and starts the next ones.
    lane.env["COUNTER_CONF"] = json.dumps({"worker_proc_alive_timeout": 1})
    hang = lane.ledger / "hang"
    master = lane.master("m1")
    hang.touch()
    worker = lane.worker("w1", "--concurrency=2")
    lane.wait_consumers(1)
    lane.wait_known(master, worker)
    goes_on_elsewhere(lane, worker, "w2", 0)
    # The same with processes that replace others
    since = len(worker.logs())
    hang.touch()
    for process in pool_processes(worker):
        process.kill()
    goes_on_elsewhere(lane, worker, "w3", 4)
    assert "2 of 2 pool processes" in worker.logs()[since:]
    lane.assert_at_rest()


def goes_on_elsewhere(lane: LaneUnderTest, worker: WorkerNode, other_name: str, first: int) -> None:
    """A ticket goes on at another worker while the processes of this one hang, and here when they do not."""
    for n in range(first, first + 3):
        lane.push("A", {"n": n})
    wait_until(lambda: slots(lane, worker) == 0, description="the worker to tell that no process starts", timeout_s=90)
    other = lane.worker(other_name, "--concurrency=1", COUNTER_LEDGER=str(lane.ledger / ".."))
    lane.wait_done(first + 3)

    assert lane.log("A") == list(range(first + 3))
    assert lane.count("failed") == 0
    assert "2 of 2 pool processes" in worker.logs()
    other.terminate()
    (lane.ledger / "hang").unlink()
    wait_until(lambda: slots(lane, worker) == 2, description="the worker to tell that its pool started", timeout_s=90)
    lane.push("A", {"n": first + 3})
    lane.wait_done(first + 4)
