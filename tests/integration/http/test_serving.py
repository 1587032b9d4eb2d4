"""The port of a master: where it listens, how it ends, and what it does while Redis is away."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP
from tests.integration.servers import run_command

Start = Callable[..., MasterNode]


@pytest.fixture
def start(nodes: NodeYard) -> Start:
    """Starts a master with a port."""

    def started(name: str, address: str, *arguments: str, **env: str) -> MasterNode:
        return nodes.master(name, app=APP, arguments=("--http", address, *arguments), env=env, ready_text="standing by")

    return started


def answer(port: int, path: str, method: str = "GET", host: str = HOST) -> tuple[int, dict[str, str], object]:
    connection = HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(response.read())
    finally:
        connection.close()


def test_two_masters_of_one_machine_answer_each_on_a_port_of_its_own(start: Start) -> None:
    ports = [free_port(), free_port()]
    start("m1", f"{HOST}:{ports[0]}")
    start("m2", str(ports[1]))
    for port in ports:
        status, _, found = answer(port, "/api/health")
        assert (status, found["status"]) == (200, "ok")  # type: ignore[index]


def test_it_listens_on_ipv6(start: Start) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = free_port()
    start("m1", f"[::1]:{port}")
    assert answer(port, "/api/health", host="::1")[0] == 200


def test_redis_goes_and_comes_back_and_the_port_with_it(start: Start, own_server: EmbeddedServer) -> None:
    port = free_port()
    start("m1", f"{HOST}:{port}")
    own_server.stop()
    status, headers, problem = answer(port, "/api/health")
    assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/problem+json", "1")
    assert "Redis is away" in problem["detail"]  # type: ignore[index]
    own_server.start()
    wait_until(lambda: answer(port, "/api/health")[0] == 200, description="the port to answer again")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/api/health", 405)])
def test_an_error_of_the_framework_is_a_problem_too(start: Start, method: str, path: str, status: int) -> None:
    port = free_port()
    start("m1", f"{HOST}:{port}")
    found, headers, problem = answer(port, path, method)
    assert (found, headers["content-type"]) == (status, "application/problem+json")
    assert problem["status"] == status  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--http", "0.0.0.0:0"], 2, "needs tokens"),
        (["--http", "[::]:0"], 2, "needs tokens"),
        (["--http", "nowhere.invalid:1"], 2, "there is no address for the host"),
        (["--http", "::1:80"], 2, "in brackets"),
        (["--http", "127.0.0.1:99999"], 2, "must be HOST:PORT"),
        (["--http", "192.0.2.1:8080", "--http-tokens", "TOKENS"], 1, "cannot listen on 192.0.2.1:8080"),
        (["--http", "127.0.0.1:0", "--http-tokens", "/nowhere/tokens"], 2, "cannot read /nowhere/tokens"),
        (["--http", "127.0.0.1:0", "--http-cert", "/nowhere/cert"], 2, "/nowhere/cert"),
        (["--http-tokens", "TOKENS"], 2, "need --http"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_an_address_that_cannot_be_used_is_refused_in_one_line(
    own_server: EmbeddedServer, tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        json.dumps([{"name": "a", "token": "t" * 30, "verbs": ["*"], "subscriptions": ["*"]}]), encoding="utf-8"
    )
    tokens.chmod(0o600)
    arguments = [str(tokens) if option == "TOKENS" else option for option in options]
    done = run_command({"CELERY_BROKER_URL": own_server.url}, "run", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.startswith(("Error: ", "Usage: "))
    assert len(done.stderr.splitlines()) == (1 if done.stderr.startswith("Error") else 4)


def test_a_port_that_is_taken_is_one_line(own_server: EmbeddedServer) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command({"CELERY_BROKER_URL": own_server.url}, "run", "--http", f"{HOST}:{port}")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: --http: cannot listen on {HOST}:{port}: Address already in use; choose another address\n"
    )
