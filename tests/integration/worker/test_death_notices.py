"""The death of a worker alone is noticed at once, and never before all its processes are gone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.fork_server import WATCHER_BY_EXEC
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import LaneUnderTest

#: Long enough that no lease ends within these tests.
LONG_LEASE = "120"
#: The watcher is a new interpreter, not a fork of the worker. What it inherits then differs; what it does is the same
#: (`test_preloaded.py`).
AS_DEPLOYED = {WATCHER_BY_EXEC: "1"}


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=LONG_LEASE, **AS_DEPLOYED)


@pytest.fixture
def forking(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    """A lane whose workers fork their watchers, which takes half a second less of a processor."""
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=LONG_LEASE)


def incarnation_of(lane: LaneUnderTest, worker: WorkerNode) -> str:
    found: Any = lane.redis.hget(lane.keys.consumers, worker.hostname())
    return str(json.loads(found)["incarnation"]) if found else ""


def entries(lane: LaneUnderTest, kind: str) -> list[dict[str, str]]:
    """The entries of one kind in the outcome stream. Without a master they are not trimmed."""
    found: Any = lane.redis.xrange(lane.keys.outcomes)
    return [fields for _, fields in found if kind in fields]


def started(lane: LaneUnderTest, count: int) -> list[Any]:
    """Waits for the first ``count`` starts in the ledger."""

    def starts() -> list[Any]:
        lines = [line for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
        return [line for line in map(json.loads, lines) if line[0] == "start"]

    wait_until(lambda: len(starts()) >= count, description=f"{count} tasks to start")
    return starts()


def busy_worker(lane: LaneUnderTest, *arguments: str, task: str | None = None) -> WorkerNode:
    """A worker that runs one message of each of two tickets, without a master."""
    master = lane.master("m1")
    worker = lane.worker("w1", *arguments)
    lane.wait_consumers(1)
    for ticket in "AB":
        lane.push(ticket, {"n": 0, "ms": 60_000}, task)
    started(lane, 2)
    master.kill_main()
    return worker


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_notice_names_exactly_what_ran(lane: LaneUnderTest, pool: str) -> None:
    worker = busy_worker(lane, "--concurrency=3", f"--pool={pool}")
    incarnation = incarnation_of(lane, worker)
    worker.kill_main()

    wait_until(lambda: entries(lane, "died"), description="a death notice")

    fences = sorted(line[3] for line in started(lane, 2))
    assert entries(lane, "died") == [
        {"i": incarnation, "died": worker.hostname(), "ran": json.dumps(fences, separators=(",", ":"))}
    ]
    assert not lane.redis.exists(lane.keys.lease(incarnation))
    wait_until(lambda: not worker.survivors(), description="the watcher to end")


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_notice_comes_within_milliseconds(lane: LaneUnderTest, kills: int) -> None:
    took_ms = []
    for n in range(1, kills + 1):
        worker = lane.worker(f"w{n}")
        incarnation = incarnation_of(lane, worker)
        lease = lane.keys.lease(incarnation)
        before = time.monotonic()
        worker.send(signal.SIGKILL)
        wait_until(lambda lease=lease: not lane.redis.exists(lease), description="the lease to end", interval_s=0.0005)  # type: ignore[misc]
        took_ms.append(1000 * (time.monotonic() - before))
    print(f"SIGKILL to notice, ms: {', '.join(f'{ms:.1f}' for ms in sorted(took_ms))}")
    assert len(entries(lane, "died")) == kills
    # The benchmark measures the exact time on an idle machine
    assert max(took_ms) < 1000 * float(LONG_LEASE) / 4


def test_a_worker_that_ends_in_order_is_not_reported_dead(forking: LaneUnderTest) -> None:
    lane = forking
    worker = lane.worker("w1")
    assert worker.terminate() == 0
    wait_until(lambda: not worker.survivors(), description="the watcher to end")
    assert len(entries(lane, "gone")) == 1
    assert not entries(lane, "died")


def test_a_worker_that_was_cut_short_while_it_ended_is_reported_dead(forking: LaneUnderTest) -> None:
    lane = forking
    worker = busy_worker(lane)
    worker.send(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    worker.kill_main()
    wait_until(lambda: entries(lane, "died"), description="a death notice")


def test_a_watcher_outlives_what_is_meant_for_the_worker(forking: LaneUnderTest) -> None:
    lane = forking
    worker = lane.worker("w1")
    watcher = worker.watcher_at_work()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        watcher.send_signal(number)
    # Also a signal to the whole process group
    assert worker.pid is not None
    os.killpg(worker.pid, signal.SIGKILL)
    wait_until(lambda: entries(lane, "died"), description="a death notice")


def test_without_a_watcher_only_the_lease_decides(forking: LaneUnderTest) -> None:
    lane = forking
    worker = lane.worker("w1")
    incarnation = incarnation_of(lane, worker)
    [watcher] = worker.watchers()
    watcher.kill()
    worker.kill_main()
    wait_until(lambda: not worker.survivors(), description="everything of the worker to end")
    assert not entries(lane, "died")
    assert lane.redis.exists(lane.keys.lease(incarnation))


def test_a_killed_watcher_is_followed_by_another_one(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # A renewal starts a new watcher, three times in a lease. A dead worker's lease must not end before that
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="8", **AS_DEPLOYED)
    worker = lane.worker("w1")
    [first] = worker.watchers()
    first.kill()
    wait_until(
        lambda: [w for w in worker.watchers() if w.pid != first.pid and w.status() != psutil.STATUS_ZOMBIE],
        description="another watcher",
    )
    worker.watcher_at_work()
    worker.kill_main()
    wait_until(lambda: entries(lane, "died"), description="a death notice")


@pytest.mark.parametrize("hides", [False, True], ids=["holds the pipe", "closed everything"])
def test_while_a_pool_process_still_runs_there_is_no_notice(lane: LaneUnderTest, hides: bool) -> None:
    # Given tasks that do not end with the main process, although Celery arranges that
    worker = busy_worker(lane, task="counter.survives_hidden" if hides else "counter.survives")
    children = [line[6] for line in started(lane, 2)]
    worker.kill_main()
    # Then there is no notice while one of them runs
    os.kill(children[0], signal.SIGKILL)
    holds_for(lambda: not entries(lane, "died"), description="no death notice", duration_s=1.0)
    assert psutil.pid_exists(children[1])
    # But a notice when the last one has ended
    os.kill(children[1], signal.SIGKILL)
    wait_until(lambda: entries(lane, "died"), description="a death notice")


def test_a_process_that_a_task_left_behind_delays_the_notice_until_the_lease_ends(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="2", **AS_DEPLOYED)
    worker = busy_worker(lane, task="counter.leaves_behind")
    incarnation = incarnation_of(lane, worker)
    worker.kill_main()
    wait_until(lambda: not lane.redis.exists(lane.keys.lease(incarnation)), description="the lease to end")
    wait_until(lambda: not worker.watchers(), description="the watcher to end")
    assert not entries(lane, "died")


def test_a_watcher_has_nothing_of_the_worker_but_the_pipe_and_the_page(lane: LaneUnderTest) -> None:
    worker = busy_worker(lane)
    watcher = worker.watcher_at_work()
    files = Path(f"/proc/{watcher.pid}/fd").iterdir()
    # By its own handle of the worker's main process it knows when that ends. A newer libffi keeps its own file open.
    names = [str(path.readlink()) for path in files if int(path.name) > 2]
    held = {name for name in names if "pidfd" not in name and "libffi" not in name}
    assert {name.partition(":")[0] for name in held} == {"pipe", "/memfd"}
    assert len(held) == 2
    assert os.getsid(watcher.pid) == watcher.pid
    # And no other user can read the password in the URL
    assert not any("redis://" in word for word in watcher.cmdline())


def test_a_killed_workers_tickets_go_on_long_before_its_lease_is_over(forking: LaneUnderTest) -> None:
    lane = forking
    lane.master("m1")
    victim = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "ms": 60_000, "attempts": 1})
    lane.push("A", {"n": 1})
    started(lane, 1)
    lane.worker("w2", "--concurrency=1")
    lane.wait_consumers(2)
    # The message that ran is charged, and awaits its retry for a few ms
    victim.kill_main()

    wait_until(lambda: lane.count("done") == 2, description="both to be done elsewhere")

    assert lane.log("A") == [0, 1]
    executions = sorted(started(lane, 3), key=lambda line: line[5])
    assert [(line[2], line[4]) for line in executions] == [(0, 1), (0, 2), (1, 1)]
    lane.assert_no_overlap()
    lane.assert_at_rest()
