"""docker-compose.yml on a Docker engine: images, health checks, scaling, a death, a stop.

Skipped where no engine with Compose is. `tests/unit/project/test_compose.py` checks the file without one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from bridge.stack.ports import free_port
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until

#: What the image of Spark pushes: the default of `bridge.spark.generate`.
EVENTS = 20_000
TOKEN = "a-token-of-22-characters-or-more"
#: An engine that has no layer of the images yet builds them from the package index.
BUILD_S = 1800

# The first test builds one image, the second one builds the other.
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * BUILD_S)]


class Composed:
    """The project of the compose file, with ports and volumes of its own."""

    def __init__(self) -> None:
        self._env = {**os.environ, "COMPOSE_PROJECT_NAME": f"ticket-bridge-test-{os.getpid()}"}
        self.ports = {name: free_port() for name in ("VALKEY_PORT", "FLOWER_PORT", "HTTP_PORT")}
        self._env |= {name: str(port) for name, port in self.ports.items()}
        self._env["BRIDGE_HTTP_TOKENS"] = json.dumps(
            [{"name": "tests", "token": TOKEN, "verbs": ["read"], "subscriptions": ["*"]}]
        )

    def run(self, *arguments: str, timeout_s: float = 120) -> str:
        """The output of `docker compose`. Fails the test where that fails."""
        ran = subprocess.run(
            ["docker", "compose", "--ansi=never", *arguments],
            cwd=ROOT, env=self._env, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"docker compose {arguments}: {ran.stderr[-2000:]}"
        return ran.stdout

    def containers(self, service: str) -> list[dict[str, Any]]:
        """The containers of a service, ended ones too, in the order of their names."""
        lines = self.run("ps", "--all", "--format=json", service).splitlines()
        return sorted(map(json.loads, lines), key=lambda one: str(one["Name"]))

    def bridge(self, *arguments: str) -> str:
        """The output of a `bridge` command in the container of a master."""
        return self.run("exec", "-T", "master", "bridge", "-A", "tasks", *arguments)

    def get(self, port: str, path: str, token: str = "") -> tuple[int, bytes]:
        """The answer of a server of the stack, as this machine gets it."""
        connection = HTTPConnection("127.0.0.1", self.ports[port], timeout=10)
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def done(self) -> bool:
        return bool(self.status()["counters"].get("done") == EVENTS)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bridge("status", "--json"))
        return found


def engine_answers() -> bool:
    """Whether there is a Docker engine, with Compose."""
    try:
        for command in (["docker", "compose", "version"], ["docker", "info"]):
            subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@pytest.fixture(scope="module")
def composed() -> Iterator[Composed]:
    if not engine_answers():
        pytest.skip("needs a Docker engine with Compose")
    composed = Composed()
    try:
        composed.run("--profile=http", "up", "--build", "--detach", "--wait", timeout_s=BUILD_S)
        yield composed
    finally:
        composed.run("--profile=*", "down", "--volumes", "--timeout=5")


def test_flower_and_the_port_for_http_answer(composed: Composed) -> None:
    assert composed.get("FLOWER_PORT", "/healthcheck") == (200, b"OK")
    assert composed.get("HTTP_PORT", "/api/health")[0] == 200
    # Beyond this machine's loopback address, calls need a token.
    assert composed.get("HTTP_PORT", "/api/status")[0] == 401
    assert composed.get("HTTP_PORT", "/api/status", TOKEN)[0] == 200


@pytest.mark.spark
def test_the_stack_loses_nothing_over_the_death_of_a_worker_and_stops_in_order(composed: Composed) -> None:
    assert [len(composed.containers(name)) for name in ("valkey", "master", "worker", "flower")] == [1, 2, 3, 1]
    assert "pushed 20,000 messages" in composed.run("run", "--rm", "--build", "spark", timeout_s=BUILD_S)

    killed = composed.containers("worker")[0]["Name"]
    subprocess.run(["docker", "kill", killed], check=True, capture_output=True, timeout=60)
    composed.run("up", "--detach", "--no-recreate", "--scale=worker=4")
    wait_until(composed.done, description="all messages to be done", timeout_s=600)

    assert composed.status()["dead"] == 0
    # It ends with 1 where a message was lost, doubled or out of order.
    composed.bridge("audit")
    composed.run("stop", "worker", "master", "flower", timeout_s=180)
    ended = [*composed.containers("worker"), *composed.containers("master"), *composed.containers("flower")]
    assert {(one["Name"], one["ExitCode"]) for one in ended if one["ExitCode"] != 0} <= {(killed, 137)}
