"""A worker that cannot renew its lease ends its tasks before another worker may run them, also if a part of it is
frozen.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import LaneUnderTest

LEASE_S = 4.0
#: The same where a test looks when a task is ended. A worker does that a twentieth of its lease early, so that the
#: machine may pause for half a second.
WATCHED_LEASE_S = 10.0


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=str(LEASE_S))


@pytest.fixture
def watched(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=str(WATCHED_LEASE_S))


def incarnation_of(lane: LaneUnderTest, worker: WorkerNode) -> str:
    found: Any = lane.redis.hget(lane.keys.consumers, worker.hostname())
    return str(json.loads(found)["incarnation"]) if found else ""


def starts(lane: LaneUnderTest) -> list[Any]:
    lines = [line for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [line for line in map(json.loads, lines) if line[0] == "start"]


def running(lane: LaneUnderTest, task: str | None = None) -> tuple[WorkerNode, psutil.Process]:
    """A worker that runs one task, which waits at a gate unless it is another ``task``, and its pool process."""
    lane.master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "gate": "gate", "ms": 60_000}, task or "counter.held")
    wait_until(lambda: starts(lane), description="the task to start")
    return worker, psutil.Process(starts(lane)[0][6])


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_ended_before_its_lease(lane: LaneUnderTest, process: psutil.Process, incarnation: str) -> None:
    lease = lane.keys.lease(incarnation)
    seen = 0

    def over() -> bool:
        nonlocal seen
        there = lane.redis.exists(lease)
        if not ended(process):
            # In this order, the check shows that it ran after the lease was gone
            assert there, "it ran on when the lease was over"
            seen += 1
            return False
        return True

    wait_until(over, description="the pool process to end", timeout_s=3 * WATCHED_LEASE_S, interval_s=0.005)
    assert seen, "it had ended before anybody looked"


def test_a_pool_process_whose_parent_is_frozen_is_ended_in_time(watched: LaneUnderTest) -> None:
    lane = watched
    worker, child = running(lane)
    worker.send(signal.SIGSTOP)
    assert_ended_before_its_lease(lane, child, incarnation_of(lane, worker))
    # And the worker comes back when it thaws, with everything in order
    before = incarnation_of(lane, worker)
    wait_until(lambda: not lane.redis.exists(lane.keys.lease(before)), description="the lease to end")
    worker.send(signal.SIGCONT)
    wait_until(lambda: incarnation_of(lane, worker) not in ("", before), description="a new incarnation")
    (lane.ledger / "gate").touch()
    lane.push("B", {"n": 0})
    lane.wait_done(2)


def test_the_pool_process_ends_itself_while_worker_and_watchers_cannot(watched: LaneUnderTest) -> None:
    lane = watched
    worker, child = running(lane)
    watcher = worker.watcher_at_work()
    worker.send(signal.SIGSTOP)
    watcher.kill()
    assert_ended_before_its_lease(lane, child, incarnation_of(lane, worker))


def test_the_watcher_ends_a_worker_that_cannot_end_itself(watched: LaneUnderTest) -> None:
    lane = watched
    # Given a task that keeps every other thread of its process from running
    worker, child = running(lane, "counter.holds_the_lock")
    worker.send(signal.SIGSTOP)
    assert_ended_before_its_lease(lane, child, incarnation_of(lane, worker))


def test_a_lost_lease_ends_what_runs_and_makes_a_new_incarnation(lane: LaneUnderTest) -> None:
    worker, child = running(lane)
    before = incarnation_of(lane, worker)
    # As after a server lost its last second, or an operator deleted the key
    lane.redis.delete(lane.keys.lease(before))
    wait_until(lambda: ended(child), description="the pool process to end")
    wait_until(lambda: incarnation_of(lane, worker) not in ("", before), description="a new incarnation")
    (lane.ledger / "gate").touch()
    lane.push("B", {"n": 0})
    lane.wait_done(2)
    lane.assert_no_overlap()
    assert worker.running


def test_a_stopping_worker_does_not_come_back_when_its_lease_is_lost(lane: LaneUnderTest) -> None:
    # Given a worker that was asked to stop, and still runs a task
    worker, child = running(lane)
    before = incarnation_of(lane, worker)
    worker.send(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    lane.redis.delete(lane.keys.lease(before))
    wait_until(lambda: ended(child), description="the pool process to end")
    # Then it ends without a new incarnation, which would get tickets that it does not take
    worker.wait()
    assert worker.logs().count("registered as") == 1


def test_an_idle_worker_that_lost_its_lease_keeps_its_pool(lane: LaneUnderTest) -> None:
    lane.master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    before = incarnation_of(lane, worker)
    pool = [child.pid for child in worker.children()]
    lane.redis.delete(lane.keys.lease(before))
    wait_until(lambda: incarnation_of(lane, worker) not in ("", before), description="a new incarnation")
    assert [child.pid for child in worker.children()] == pool
    lane.push("B", {"n": 0})
    lane.wait_done(1)


@pytest.mark.parametrize("how", ["field", "hash", "damaged", "replaced"])
def test_a_worker_whose_registration_was_deleted_or_damaged_registers_again(lane: LaneUnderTest, how: str) -> None:
    # Given a worker that runs a task, and no registration of it, as after a command by hand
    worker, child = running(lane)
    name, before = worker.hostname(), incarnation_of(lane, worker)
    if how == "field":
        lane.redis.hdel(lane.keys.consumers, name)
    elif how == "hash":
        lane.redis.delete(lane.keys.consumers)
    elif how == "damaged":
        lane.redis.hset(lane.keys.consumers, name, json.dumps({"incarnation": "other"}))
    else:
        # Another worker took the name, and holds its lease until the first one has given up
        other = {"incarnation": "other", "queue": lane.keys.queue(name), "slots": 1}
        lane.redis.set(lane.keys.lease("other"), name, ex=600)
        lane.redis.hset(lane.keys.consumers, name, json.dumps(other))
        wait_until(lambda: ended(child), description="the pool process to end")
        lane.redis.delete(lane.keys.lease("other"))
    # Then it comes back as another incarnation, and what ran comes again
    wait_until(lambda: incarnation_of(lane, worker) not in ("", before, "other"), description="a new incarnation")
    wait_until(lambda: ended(child), description="the pool process to end")
    (lane.ledger / "gate").touch()
    lane.push("B", {"n": 0})
    lane.wait_done(2)
    lane.assert_no_overlap()


def test_a_worker_that_waits_for_its_name_stops_when_it_is_asked_to(lane: LaneUnderTest) -> None:
    name = f"w1@{socket.gethostname()}"
    older = {"incarnation": "older", "queue": lane.keys.queue(name), "slots": 1}
    lane.redis.hset(lane.keys.consumers, name, json.dumps(older))
    lane.redis.set(lane.keys.lease("older"), "1", ex=60)
    worker = lane.worker("w1", wait=False)
    worker.wait_for_log(f"the lease of another {name} holds for")

    assert worker.terminate() == 0
    assert incarnation_of(lane, worker) == "older"


def test_a_worker_that_starts_waits_for_an_older_lease_as_long_as_that_one_is(lane: LaneUnderTest) -> None:
    # Given the lease of a worker that is gone. It was longer, and the server's clock was set back
    name = f"w1@{socket.gethostname()}"
    length_ms = int(2.5 * LEASE_S * 1000)
    older = {"incarnation": "older", "queue": lane.keys.queue(name), "slots": 1, "lease_ms": length_ms}
    lane.redis.hset(lane.keys.consumers, name, json.dumps(older))
    lane.redis.set(lane.keys.lease("older"), "1", ex=3600)
    worker = lane.worker("w1", wait=False)
    wait_until(lambda: incarnation_of(lane, worker) not in ("", "older"), description="the new worker to be registered")


def test_a_full_server_takes_no_lease_away(lane: LaneUnderTest) -> None:
    worker, child = running(lane)
    before = incarnation_of(lane, worker)
    lane.redis.config_set("maxmemory", 1)
    try:
        holds_for(
            lambda: lane.redis.exists(lane.keys.lease(before)) and not ended(child),
            description="the lease, and what runs under it",
            duration_s=1.5 * LEASE_S,
        )
    finally:
        lane.redis.config_set("maxmemory", 0)
    assert incarnation_of(lane, worker) == before


def test_a_killed_pool_process_of_a_frozen_worker_is_charged_once(lane: LaneUnderTest) -> None:
    # Frozen as a whole, it cannot act. Its tasks are ended when it goes on
    worker, child = running(lane)
    worker.pause()
    wait_until(lambda: ended(child), description="the watcher to end it")
    lane.worker("w2", "--concurrency=1")
    wait_until(lambda: len(starts(lane)) == 2, description="the task to start elsewhere")
    first, second = sorted(starts(lane), key=lambda line: line[5])
    assert second[3] > first[3]
    worker.resume()
    os.kill(second[6], 0)


def test_a_hard_time_limit_is_reported_when_the_pool_process_is_gone(lane: LaneUnderTest) -> None:
    # Given a task that ignores Celery's first SIGTERM, and a retry that is due at once
    lane.master("m1")
    lane.worker("w1", "--concurrency=2")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "until": 2}, "counter.undoes_late")
    lane.wait_done(1)
    first, second = sorted(starts(lane), key=lambda line: line[5])
    assert first[6] != second[6]
    beats = [int(line) for line in (lane.ledger / "beat-1").read_text().splitlines(keepends=True) if line[-1] == "\n"]
    assert first[5] < beats[-1] < second[5]
    assert lane.log("A")[-1] == 0
    lane.assert_at_rest()


def test_a_worker_whose_name_was_taken_while_it_was_frozen_ends(lane: LaneUnderTest) -> None:
    lane.master("m1")
    first = lane.worker("w1")
    lane.wait_consumers(1)
    before = incarnation_of(lane, first)
    first.pause()
    wait_until(lambda: not lane.redis.exists(lane.keys.lease(before)), description="the end of its lease")
    second = lane.worker("w1")
    lane.push_many(4, 2)
    lane.wait_done(8)
    first.resume()
    lane.push_many(4, 2, first=2)
    assert first.wait(timeout_s=60) == 1
    line = f"another worker named {second.hostname()} is running and renews its lease"
    # Both write one file
    assert second.logs().count(line) == 1
    lane.push_many(4, 2, first=4)
    lane.wait_done(24)
    assert second.running
    assert lane.dead_letters() == []
    lane.assert_logs(4, 6)
    lane.assert_at_rest()
