"""A worker alone in its container: whether its death is noticed depends on the container's first process."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest
from tests.nodes.pid_namespace import contained, first_process, why_not, worker_process

REFUSED = why_not()
pytestmark = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)

#: Long enough that no lease ends within these tests.
LONG_LEASE = "120"
INIT = (sys.executable, "-m", "bridge.worker.init")
#: An init that ends as soon as the worker ends, as tini does.
PLAIN_INIT = (sys.executable, "-c", "import os, subprocess, sys; os._exit(subprocess.call(sys.argv[1:]) & 127)")
KILLS = 5


class Containers:
    """Workers, each alone in its container."""

    def __init__(self, lane: LaneUnderTest) -> None:
        self.lane = lane

    def worker(self, name: str, *init: str) -> WorkerNode:
        node = self.lane.nodes.worker(
            name, app="tests.apps.counter", arguments=("--concurrency=2",), env=self.lane.env, start=False
        )
        contained(node, *init)
        node.start()
        node.wait_ready()
        wait_until(lambda: self.lane.redis.hexists(self.lane.keys.consumers, node.hostname()), description="registered")
        return node

    def lease_of(self, node: WorkerNode) -> str:
        found: Any = self.lane.redis.hget(self.lane.keys.consumers, node.hostname())
        return self.lane.keys.lease(json.loads(found)["incarnation"])

    def notices(self, kind: str) -> int:
        entries: Any = self.lane.redis.xrange(self.lane.keys.outcomes)
        return sum(kind in fields for _, fields in entries)

    def ms_to_the_end_of_the_lease(self, node: WorkerNode) -> float | None:
        """The time from kill -9 of the worker, in ms. None: the container ended and the lease did not."""
        lease = self.lease_of(node)
        worker = worker_process(node)
        before = time.monotonic()
        worker.kill()
        wait_until(
            lambda: not self.lane.redis.exists(lease) or not node.running,
            description="the end of the lease, or of the container",
            interval_s=0.0005,
        )
        took_ms = 1000 * (time.monotonic() - before)
        node.wait()
        return None if self.lane.redis.exists(lease) else took_ms


@pytest.fixture
def containers(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Containers:
    return Containers(LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=LONG_LEASE))


def test_with_our_init_as_first_process_a_death_is_noticed_at_once_and_then_the_container_ends(
    containers: Containers,
) -> None:
    worker = containers.worker("w1", *INIT)
    took_ms = containers.ms_to_the_end_of_the_lease(worker)
    assert took_ms is not None
    print(f"kill -9 to the end of the lease: {took_ms:.1f} ms")
    assert containers.notices("died") == 1
    assert worker.exit_code == 128 + signal.SIGKILL
    wait_until(lambda: not worker.survivors(), description="the end of the container")


def test_with_the_worker_as_first_process_its_death_is_not_noticed(containers: Containers) -> None:
    """Without our init, the kernel ends the watcher together with the first process, and the lease decides."""
    worker = containers.worker("w1")
    assert containers.ms_to_the_end_of_the_lease(worker) is None
    wait_until(lambda: not worker.survivors(), description="the end of the container")
    assert containers.notices("died") == 0


def test_our_init_passes_a_deployment_s_signal_on_and_ends_as_the_worker_does(containers: Containers) -> None:
    worker = containers.worker("w1", *INIT)
    first_process(worker).terminate()
    assert worker.wait() == 0
    assert (containers.notices("gone"), containers.notices("died")) == (1, 0)


@pytest.mark.long
def test_the_time_from_death_to_notice_with_each_first_process(containers: Containers) -> None:
    """With an init that ends with the worker, the watcher may lose a race. So this is measured, and not required."""
    ways: dict[str, tuple[str, ...]] = {"worker": (), "plain-init": PLAIN_INIT, "our-init": INIT}
    for called, init in ways.items():
        workers = (containers.worker(f"{called}{n}", *init) for n in range(KILLS))
        found = [containers.ms_to_the_end_of_the_lease(worker) for worker in workers]
        moved = sorted(took for took in found if took is not None)
        print(f"first process {called}: {len(moved)} of {KILLS} moved, ms: {[round(took, 1) for took in moved]}")
        if init is INIT:
            assert len(moved) == KILLS
