"""pytest-celery's fixtures with the nodes of a bridge. A project names this module in the conftest of its root folder.

That is the line ``pytest_plugins = ["bridge.testing.nodes.plugin"]``. `celery_setup` is the entry point: a broker,
workers and masters of the app that the ini option ``bridge_app`` names. The option ``--bridge-nodes`` says what they
are: processes of this machine, or containers of a Docker engine. A test module shapes them by its own version of
`bridge_workers`, `bridge_masters`, `bridge_worker_arguments`, `bridge_node_env`, `bridge_server` or `bridge_image`.
Without an app the workers run the one that pytest-celery generates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

try:
    from pytest_celery import (
        CeleryBackendCluster,
        CeleryBrokerCluster,
        CeleryTestBackend,
        CeleryTestBroker,
        CeleryWorkerCluster,
        RedisTestBackend,
        RedisTestBroker,
    )
except ImportError:
    raise pytest.UsageError("bridge.testing.nodes needs pytest-celery: pip install 'ticket-bridge[testing]'") from None

from celery import Celery
from celery.app.utils import find_app

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import free_port
from bridge.testing.nodes.engine import EngineYard
from bridge.testing.nodes.local_containers import ServerContainer, write_content
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.preloaded import read_by_apps, take_environment
from bridge.testing.nodes.setup import BridgeSetup, MasterCluster
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.pointing import pointed_at

VALKEY_IMAGE = "valkey/valkey:9.1"


def pytest_sessionstart() -> None:
    """All conftests are loaded: from now on the environment of the tests is known."""
    take_environment()


def in_containers(config: pytest.Config) -> bool:
    """Whether nodes are containers."""
    return bool(config.getoption("--bridge-nodes") == "containers")


def engine_of(request: pytest.FixtureRequest) -> Any:
    """The client of the Docker engine. Skips the test where there is none."""
    from docker.errors import DockerException

    try:
        return request.getfixturevalue("docker_client")
    except DockerException as error:
        pytest.skip(f"--bridge-nodes=containers needs a Docker engine: {error}")


# -- what a project says ---------------------------------------------------------------------------------------------


@pytest.fixture
def bridge_app(pytestconfig: pytest.Config) -> str | None:
    """The app of the nodes, as `celery -A` takes it."""
    return pytestconfig.getini("bridge_app") or None


@pytest.fixture
def bridge_workers() -> Sequence[str]:
    """One worker for each name."""
    return ("w1",)


@pytest.fixture
def bridge_masters(bridge_app: str | None) -> Sequence[str]:
    """One master for each name."""
    return ("m1",) if bridge_app else ()


@pytest.fixture
def bridge_worker_arguments() -> Sequence[str]:
    """What workers get on their command line after their name."""
    return ("--concurrency=2", "--without-mingle", "--without-gossip")


@pytest.fixture
def bridge_node_env() -> Mapping[str, str]:
    """What workers and masters get into their environment, besides the broker's address."""
    return {}


@pytest.fixture
def bridge_home(pytestconfig: pytest.Config) -> Path:
    """Where workers and masters start, and what they can import from."""
    return pytestconfig.rootpath


@pytest.fixture
def bridge_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """The broker's process, where nodes are processes."""
    with EmbeddedServer(data_dir=tmp_path / "server") as server:
        yield server


@pytest.fixture
def bridge_image(request: pytest.FixtureRequest, bridge_home: Path) -> str:
    """The image of workers and masters, where nodes are containers: that of the project's Dockerfile."""
    if not (bridge_home / "Dockerfile").exists():
        pytest.fail(
            f"--bridge-nodes=containers needs an image with Celery, the bridge and what the app imports. {bridge_home} "
            "has no Dockerfile: write one, or a fixture `bridge_image` that returns the name of an image",
            pytrace=False,
        )
    image, _ = engine_of(request).images.build(path=str(bridge_home), rm=True)
    return str(image.id)


# -- the nodes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def default_redis_broker_image() -> str:
    """pytest-celery's Redis container runs `redis-server`, which the Valkey image has as well."""
    return VALKEY_IMAGE


@pytest.fixture
def default_redis_broker_command() -> Sequence[str]:
    """The command of a server that keeps its data over a restart, as `bridge_server` does. pytest-celery's does not."""
    return (
        "redis-server", "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction", "--protected-mode",
        "no",
    )  # fmt: skip


@pytest.fixture
def default_redis_broker_ports() -> Mapping[str, int]:
    """A port that stays the same when the broker is restarted. The engine would choose another one each time."""
    return {"6379/tcp": free_port()}


@pytest.fixture
def celery_broker_cluster(request: pytest.FixtureRequest) -> Iterator[CeleryBrokerCluster]:
    """One broker."""
    if in_containers(request.config):
        engine_of(request)
        broker: CeleryTestBroker = request.getfixturevalue("celery_redis_broker")
    else:
        broker = RedisTestBroker(ServerContainer(request.getfixturevalue("bridge_server")))
    cluster = CeleryBrokerCluster(broker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def celery_backend_cluster(
    celery_broker_cluster: CeleryBrokerCluster, bridge_workers: Sequence[str]
) -> Iterator[CeleryBackendCluster]:
    """One result backend: the broker's server, as in most installations."""
    # pytest-celery's class for Redis looks at every object of the process, to release results that a test still holds.
    kind = RedisTestBackend if bridge_workers else CeleryTestBackend
    cluster = CeleryBackendCluster(kind(celery_broker_cluster[0].container))
    yield cluster
    cluster.teardown()


@pytest.fixture
def bridge_broker_url(celery_broker_cluster: CeleryBrokerCluster) -> str:
    """The broker, as workers and masters reach it."""
    return str(celery_broker_cluster.config()["urls"][0])


@pytest.fixture
def bridge_nodes(
    request: pytest.FixtureRequest,
    bridge_broker_url: str,
    bridge_app: str | None,
    bridge_home: Path,
    bridge_worker_arguments: Sequence[str],
    bridge_node_env: Mapping[str, str],
    tmp_path: Path,
) -> Iterator[NodeYard]:
    """Starts workers and masters against the broker. All of them are ended after the test."""
    nodes: NodeYard
    if in_containers(request.config):
        nodes = EngineYard(
            engine_of(request),
            image=request.getfixturevalue("bridge_image"),
            network=request.getfixturevalue("default_pytest_celery_network").name,
            broker_url=bridge_broker_url,
            home=bridge_home,
            shared=[tmp_path],
            app=bridge_app,
            worker_arguments=bridge_worker_arguments,
            env=bridge_node_env,
        )
    else:
        read_by_apps(*bridge_node_env)
        nodes = ProcessYard(
            tmp_path,
            bridge_broker_url,
            home=bridge_home,
            app=bridge_app,
            worker_arguments=bridge_worker_arguments,
            env=bridge_node_env,
        )
    yield nodes
    nodes.close()


@pytest.fixture
def celery_worker_cluster(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bridge_nodes: NodeYard,
    bridge_app: str | None,
    bridge_workers: Sequence[str],
) -> CeleryWorkerCluster | None:
    """The workers that the test asks for by name, started; `celery_setup` waits until they are ready."""
    if not bridge_workers:
        return None
    folder = None
    if bridge_app is None:
        folder = tmp_path / "worker-app"
        write_content(folder, request.getfixturevalue("default_worker_initial_content"))
    workers = [
        bridge_nodes.worker(
            name,
            app=bridge_app or "app",
            cwd=folder,
            wait=False,
        )
        for name in bridge_workers
    ]
    return CeleryWorkerCluster(*workers)


@pytest.fixture
def bridge_master_cluster(bridge_nodes: NodeYard, bridge_masters: Sequence[str]) -> MasterCluster | None:
    """The masters that the test asks for by name, started; `celery_setup` waits until they are ready."""
    if not bridge_masters:
        return None
    return MasterCluster(*(bridge_nodes.master(name, ready_text="standing by", wait=False) for name in bridge_masters))


@pytest.fixture
def celery_setup_cls() -> type[BridgeSetup]:
    """pytest-celery's set-up, with masters."""
    return BridgeSetup


@pytest.fixture
def celery_setup_app(
    request: pytest.FixtureRequest,
    celery_setup_cls: type[BridgeSetup],
    celery_broker_cluster: CeleryBrokerCluster,
    bridge_app: str | None,
    bridge_workers: Sequence[str],
) -> Iterator[Celery]:
    """The app as the test calls it: the project's own, pointed at the broker until the test ends."""
    if bridge_app is not None:
        app = find_app(bridge_app)
        with pointed_at(app, celery_broker_cluster.config()["host_urls"][0]):
            yield app
    elif bridge_workers:
        # pytest-celery's tasks belong to the current app, which this becomes.
        config = request.getfixturevalue("celery_setup_config")
        yield celery_setup_cls.create_setup_app(config, request.getfixturevalue("celery_setup_name"))
    else:
        url = celery_broker_cluster.config()["host_urls"][0]
        yield Celery(celery_setup_cls.name(), broker=url, backend=url, set_as_current=False)


@pytest.fixture
def celery_setup(
    celery_setup_cls: type[BridgeSetup],
    bridge_nodes: NodeYard,
    celery_broker_cluster: CeleryBrokerCluster,
    celery_backend_cluster: CeleryBackendCluster,
    celery_worker_cluster: CeleryWorkerCluster | None,  # noqa: ARG001
    bridge_master_cluster: MasterCluster | None,  # noqa: ARG001
    celery_setup_app: Celery,
) -> Iterator[BridgeSetup]:
    """The entry point of a test: all nodes that it asked for, ready."""
    setup = celery_setup_cls(bridge_nodes, celery_broker_cluster, celery_backend_cluster, celery_setup_app)
    assert setup.ready(docker=True)
    yield setup
    setup.teardown()
