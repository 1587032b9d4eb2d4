"""The health checks of the compose file on real processes: they detect a loop that hangs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from celery import Celery

from bridge.link.health import EVERY_S
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT, ProcessNode
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import LaneUnderTest

FILE = "/tmp/bridge-health"
LONG_AGO = 1_000_000_000


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "health"


@pytest.fixture
def healthy(file: Path) -> Callable[[str], bool]:
    """The health check of a service, for a process with another file."""
    services: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

    def check(service: str) -> bool:
        assert services[service]["environment"]["BRIDGE_HEALTH_FILE"] == FILE
        shell, line = services[service]["healthcheck"]["test"]
        assert shell == "CMD-SHELL"
        assert FILE in line
        return subprocess.run(["/bin/sh", "-c", line.replace(FILE, str(file))], check=False).returncode == 0

    return check


def conf(file: Path) -> str:
    """The app's settings."""
    return json.dumps({"bridge_health_file": str(file)})


def is_seen_to_hang(node: ProcessNode, file: Path, healthy: Callable[[], bool]) -> None:
    """Sets the file's age instead of waiting as long as the check allows.

    Only while the node is frozen: one that runs touches its file each second, also between the setting and the check.
    """
    process = psutil.Process(node.pid)
    wait_until(healthy, description=f"{node.name()} to be healthy")
    node.pause()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, description=f"{node.name()} to stand still")
    os.utime(file, (LONG_AGO, LONG_AGO))
    assert not healthy()
    node.resume()
    wait_until(healthy, description=f"{node.name()} to touch its file again", timeout_s=90)


@pytest.mark.parametrize("role", ["leader", "standby"])
def test_a_master_that_hangs_is_not_healthy(
    lane: LaneUnderTest, file: Path, healthy: Callable[[str], bool], role: str
) -> None:
    if role == "standby":
        lane.master("leader")
        lane.wait_leader()
    master = lane.master("m1", COUNTER_CONF=conf(file))
    lane.wait_leader()
    is_seen_to_hang(master, file, lambda: healthy("master"))


@pytest.mark.parametrize(
    "pool", ["prefork", pytest.param("threads", marks=pytest.mark.long), pytest.param("gevent", marks=pytest.mark.long)]
)
def test_a_worker_that_hangs_is_not_healthy(
    lane: LaneUnderTest, file: Path, healthy: Callable[[str], bool], pool: str
) -> None:
    worker = lane.worker("w1", "--concurrency=1", f"--pool={pool}", COUNTER_CONF=conf(file))
    is_seen_to_hang(worker, file, lambda: healthy("worker"))


def test_a_worker_whose_loop_alone_hangs_is_not_healthy(
    lane: LaneUnderTest, file: Path, healthy: Callable[[str], bool], tmp_path: Path
) -> None:
    """Its other threads go on and renew the lease."""
    lane.worker("w1", "--concurrency=1", COUNTER_CONF=conf(file))
    wait_until(lambda: healthy("worker"), description="the worker to be healthy")
    gate, held = tmp_path / "gate", tmp_path / "gate.held"
    Celery(broker=lane.server.url).control.broadcast("hang", arguments={"gate": str(gate)})
    wait_until(held.exists, description="the loop to hang")
    os.utime(file, (LONG_AGO, LONG_AGO))
    holds_for(lambda: not healthy("worker"), description="no sign of life", duration_s=3 * EVERY_S)
    gate.touch()
    wait_until(lambda: healthy("worker"), description="the loop to turn on", timeout_s=90)


def test_a_worker_whose_connection_was_cut_is_healthy_again(
    lane: LaneUnderTest, file: Path, healthy: Callable[[str], bool]
) -> None:
    worker = lane.worker("w1", "--concurrency=1", COUNTER_CONF=conf(file))
    wait_until(lambda: healthy("worker"), description="the worker to be healthy")
    lane.redis.client_kill_filter(_type="normal", skipme=True)
    worker.wait_for_log("Connection to broker lost", timeout=30)
    os.utime(file, (LONG_AGO, LONG_AGO))
    wait_until(lambda: healthy("worker"), description="the worker to touch its file again", timeout_s=90)
