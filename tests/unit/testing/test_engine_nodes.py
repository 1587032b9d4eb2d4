"""Nodes as containers, over a client of an engine that only notes what it is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryTestBackend, RedisContainer, RedisTestBroker

from bridge.testing.nodes.engine import EngineYard
from bridge.testing.nodes.node import Node, WorkerNode
from bridge.testing.nodes.setup import BridgeSetup

ID = "0123456789abcdef"


class RawContainer:
    """A container as docker-py has it."""

    def __init__(self, **made_with: Any) -> None:
        self.made_with = made_with
        self.id = ID
        self.name = "eager_euler"
        self.status = "created"
        self.attrs: dict[str, Any] = {"State": {"ExitCode": 0}, "Config": {"Hostname": ID[:12]}}
        self.text = b""
        self.asked: list[str] = []

    def start(self) -> None:
        self.status = "running"
        self.text += b"w1 ready.\n"

    def kill(self, signal: str) -> None:
        self.asked.append(signal)
        if signal in ("SIGKILL", "SIGTERM"):
            self.status = "exited"
            self.attrs["State"]["ExitCode"] = 137 if signal == "SIGKILL" else 0

    def pause(self) -> None:
        self.status = "paused"

    def unpause(self) -> None:
        self.status = "running"

    def reload(self) -> None:
        pass

    def logs(self) -> bytes:
        return self.text

    def remove(self, *, force: bool) -> None:
        self.asked.append(f"remove {force}")


class Client:
    """A client of docker-py."""

    def __init__(self) -> None:
        self.containers = self
        self.made: list[RawContainer] = []

    def create(self, **made_with: Any) -> RawContainer:
        self.made.append(RawContainer(**made_with))
        return self.made[-1]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def yard(client: Client, tmp_path: Path) -> EngineYard:
    return EngineYard(
        client, image="shop:test", network="net", broker_url="redis://valkey/0", home=Path("/home/shop"),
        shared=[tmp_path], app="shop", env={"SHOP": "1"},
    )  # fmt: skip


def test_a_worker_is_made_of_the_image_with_the_project_and_the_folder_of_the_test(
    client: Client, yard: EngineYard, tmp_path: Path
) -> None:
    worker = yard.worker("w1", env={"MINE": "2"}, arguments=("-c", "3"))
    [made] = client.made
    assert made.made_with == {
        "image": "shop:test",
        "network": "net",
        "working_dir": "/app",
        "user": f"{os.getuid()}:{os.getgid()}",
        "volumes": {
            "/home/shop": {"bind": "/app", "mode": "ro"},
            str(tmp_path): {"bind": str(tmp_path), "mode": "rw"},
        },
        "command": [
            "python", "-m", "bridge.worker.init",
            "celery", "-A", "shop", "worker", "-n", "w1@%h", "--loglevel=INFO", "-c", "3",
        ],
        "environment": {
            "BRIDGE_BROKER_URL": "redis://valkey/0",
            "CELERY_BROKER_URL": "redis://valkey/0",
            "CELERY_RESULT_BACKEND": "redis://valkey/0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": "/app",
            "SHOP": "1",
            "MINE": "2",
        },
    }  # fmt: skip
    assert worker.running
    assert worker.hostname() == "w1@0123456789ab"


def test_a_master_runs_its_command_and_starts_when_it_is_told_to(client: Client, yard: EngineYard) -> None:
    master = yard.master("m1", app="other", arguments=("--verbose",), ready_text="ready.", start=False)
    [made] = client.made
    assert made.made_with["command"] == ["bridge", "-A", "other", "run", "--verbose"]
    assert (master.running, master.exit_code) == (False, None)
    master.start()
    assert master.ready()
    assert yard.masters() == [master]
    assert yard.workers() == []


def test_a_kill_ends_it_by_sigkill_and_other_signals_are_passed_on(client: Client, yard: EngineYard) -> None:
    worker = yard.worker("w1")
    worker.kill()
    assert (worker.running, worker.exit_code) == (False, -signal.SIGKILL)
    worker.restart()
    assert worker.terminate() == 0
    assert client.made[0].asked == ["SIGKILL", "SIGTERM"]


def test_a_paused_one_counts_as_running(yard: EngineYard) -> None:
    worker = yard.worker("w1")
    worker.pause()
    assert worker.container.status == "paused"
    assert worker.running
    worker.resume()
    assert worker.container.status == "running"


def test_the_log_of_a_life_begins_with_its_start(client: Client, yard: EngineYard) -> None:
    worker = yard.worker("w1")
    client.made[0].text += b"first life\n"
    worker.kill()
    worker.start()
    assert "first life" in worker.logs()
    assert worker.logs(this_life=True) == "w1 ready.\n"


def test_one_that_ends_before_it_is_ready_fails_with_its_log(client: Client, yard: EngineYard) -> None:
    worker = yard.worker("w1", start=False)
    client.made[0].start = lambda: setattr(client.made[0], "text", b"alas")  # type: ignore[method-assign]
    worker.start()
    with pytest.raises(AssertionError, match=r"w1 ended with 0 before it was ready:\n\s*alas"):
        worker.wait_ready()


def test_all_are_removed_in_the_end_and_what_they_logged_is_shown(
    client: Client, yard: EngineYard, capsys: pytest.CaptureFixture[str]
) -> None:
    yard.worker("w1")
    yard.close()
    assert client.made[0].asked == ["remove True"]
    assert "w1 ready." in capsys.readouterr().out


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda worker, _: worker.pid, id="pid"),
        pytest.param(lambda worker, _: worker.kill_main(), id="kill_main"),
        pytest.param(lambda worker, _: worker.children(), id="children"),
        pytest.param(lambda worker, _: worker.survivors(), id="survivors"),
        pytest.param(lambda worker, _: worker.watchers(), id="watchers"),
        pytest.param(lambda worker, _: worker.watcher_at_work(), id="watcher_at_work"),
        pytest.param(lambda _, yard: yard.process("p", ["true"]), id="process"),
    ],
)
def test_a_test_of_single_processes_is_skipped_and_says_how_to_run_it(
    yard: EngineYard, ask: Callable[[WorkerNode, EngineYard], object]
) -> None:
    worker = yard.worker("w1")
    with pytest.raises(pytest.skip.Exception, match="--bridge-nodes=processes"):
        ask(worker, yard)


def test_a_set_up_of_containers_has_clusters_and_no_process_of_the_server(client: Client, yard: EngineYard) -> None:
    broker = RedisContainer(RawContainer())
    setup = BridgeSetup(
        yard, CeleryBrokerCluster(RedisTestBroker(broker)), CeleryBackendCluster(CeleryTestBackend(broker))
    )
    assert (setup.worker_cluster, setup.master_cluster) == (None, None)
    nodes: list[Node] = [yard.worker("w1"), yard.master("m1")]
    assert [setup.worker, setup.master] == nodes
    assert [*(setup.worker_cluster or ()), *(setup.master_cluster or ())] == nodes
    assert len(setup) == 4
    assert [raw.status for raw in client.made] == ["running", "running"]
    with pytest.raises(pytest.skip.Exception, match="needs the server as a process"):
        _ = setup.server


def test_a_node_needs_an_app(client: Client) -> None:
    yard = EngineYard(client, image="i", network="n", broker_url="redis://valkey/0", home=Path("/"))
    with pytest.raises(AssertionError, match="Set the ini option bridge_app"):
        yard.worker("w1")
