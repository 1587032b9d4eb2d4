"""Faults of all kinds, drawn by a seed, one after another under load: a first taste of the chaos programme.

``MIXED_FAULTS_SEED`` replays a draw, ``MIXED_FAULTS`` sets how many faults there are.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.embedded import EmbeddedServer
from tests.integration.lanes import LaneUnderTest
from tests.nodes.process import ProcessNode
from tests.nodes.yard import NodeYard
from tests.waiting import wait_until

FAULTS = int(os.environ.get("MIXED_FAULTS", "8"))
TICKETS = 40


@pytest.mark.timeout(120 + 30 * FAULTS)
def test_faults_of_all_kinds_lose_reorder_and_overlap_nothing(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MIXED_FAULTS_SEED", time.time_ns() % 1_000_000))
    print(f"MIXED_FAULTS_SEED={seed}")
    draw = random.Random(seed)
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="1.5", COUNTER_LEADER_LEASE="1.5")
    masters: list[ProcessNode] = [lane.master(f"m{i}", wait=False) for i in (1, 2)]
    workers: list[ProcessNode] = [lane.worker(f"w{i}", wait=False) for i in (1, 2, 3)]
    lane.wait_consumers(3)

    def again(node: ProcessNode) -> None:
        # After a lost connection Celery's pool processes may wait up to 30 s for results that nobody reads any more.
        node.wait(timeout_s=45)
        node.start()

    def kill_worker() -> None:
        victim = draw.choice(workers)
        victim.kill()
        again(victim)

    def vanish_worker() -> None:
        victim = draw.choice(workers)
        victim.vanish()
        again(victim)

    def stop_worker() -> None:
        victim = draw.choice(workers)
        victim.send(signal.SIGTERM)
        again(victim)

    def kill_pool_process() -> None:
        children = draw.choice(workers).children()
        if children:
            os.kill(draw.choice(children).pid, signal.SIGKILL)

    def freeze_worker() -> None:
        victim = draw.choice(workers)
        if victim.running:
            victim.pause()
            time.sleep(draw.uniform(0.1, 1.0))  # the fault itself: shorter than the lease, so nothing may overlap
            victim.resume()

    def kill_master() -> None:
        victim = draw.choice(masters)
        victim.kill()
        again(victim)

    def stop_master() -> None:
        victim = draw.choice(masters)
        victim.send(signal.SIGTERM)
        again(victim)

    def kill_server() -> None:
        lane.server.kill()
        lane.server.start()

    def lose_queue() -> None:
        victim = draw.choice(workers)
        lane.redis.delete(lane.keys.queue(f"{victim.name}@{os.uname().nodename}"))

    actions: list[Callable[[], None]] = [
        *(kill_worker, vanish_worker, stop_worker, kill_pool_process, freeze_worker),
        *(kill_master, stop_master, kill_server, lose_queue),
    ]
    each = 0
    for number in range(FAULTS):
        lane.push_many(TICKETS, 10, ms=5, first=each)
        each += 10
        action = draw.choice(actions)
        target = min(lane.count("done") + draw.randrange(1, 300), each * TICKETS)
        print(f"fault {number}: {action.__name__}, when {target} are done")
        wait_until(
            lambda target=target: lane.count("done") >= target,  # type: ignore[misc]
            description=f"the lane to move on before fault {number} ({action.__name__})",
            timeout_s=30,
        )
        action()
    lane.wait_done(each * TICKETS)
    lane.assert_logs(TICKETS, each)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert lane.dead_letters() == []
