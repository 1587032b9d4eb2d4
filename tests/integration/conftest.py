"""Real processes for the integration tier, in two ways that share one server per test.

`nodes` starts workers, masters and other programs directly: `nodes.worker("w1", app="…")`, `nodes.master("m1", …)`.

`celery_setup` is pytest-celery's own entry point, with its own node, cluster and set-up classes. Its nodes are
processes of this machine; `TICKET_BRIDGE_TEST_NODES=docker` selects pytest-celery's containers instead. A test module
shapes it by overriding pytest-celery's fixtures (`default_worker_tasks` …) or these: `worker_app`, `worker_names`,
`worker_arguments`, `worker_env`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBroker,
    CeleryWorkerCluster,
    RedisTestBackend,
)

from bridge.stack.embedded import EmbeddedServer
from tests.integration.sentinels import Sentinels
from tests.nodes.containers import ProcessWorker, ValkeyContainer, WorkerContainer, write_content
from tests.nodes.process import ROOT
from tests.nodes.roles import WorkerNode
from tests.nodes.yard import NodeYard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.integration.spark.spark_jobs import JobsHere

VALKEY_IMAGE = "valkey/valkey:9.1"


def on_docker() -> bool:
    """Whether pytest-celery's nodes shall be containers."""
    chosen = os.environ.get("TICKET_BRIDGE_TEST_NODES", "process")
    if chosen not in {"process", "docker"}:
        pytest.fail(f"TICKET_BRIDGE_TEST_NODES={chosen}: choose process or docker", pytrace=False)
    return chosen == "docker"


@pytest.fixture
def nodes(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[NodeYard]:
    """Starts processes against `own_server`; all of them are gone when the test is over."""
    yard = NodeYard(tmp_path, own_server.url)
    yield yard
    yard.close()


@pytest.fixture
def worker_app() -> str | None:
    """The app of `celery_setup`'s workers, as `celery -A` takes it. None: the one that pytest-celery generates."""
    return None


@pytest.fixture
def worker_names() -> Sequence[str]:
    """One worker of `celery_setup` for each name."""
    return ("w1",)


@pytest.fixture
def worker_arguments() -> Sequence[str]:
    """What `celery_setup`'s workers get on their command line after their name."""
    return ("--concurrency=2",)


@pytest.fixture
def worker_env() -> Mapping[str, str]:
    """What `celery_setup`'s workers get into their environment."""
    return {}


@pytest.fixture
def celery_broker_cluster(request: pytest.FixtureRequest) -> Iterator[CeleryBrokerCluster]:
    """One broker: the test's own Valkey."""
    if on_docker():
        broker = request.getfixturevalue("celery_redis_broker")
    else:
        broker = CeleryTestBroker(ValkeyContainer(request.getfixturevalue("own_server")))
    cluster = CeleryBrokerCluster(broker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def celery_backend_cluster(request: pytest.FixtureRequest) -> Iterator[CeleryBackendCluster]:
    """One result backend: the same server as the broker's, as in most installations."""
    if on_docker():
        yield CeleryBackendCluster(request.getfixturevalue("celery_redis_backend"))
        return
    backend = RedisTestBackend(ValkeyContainer(request.getfixturevalue("own_server")))
    yield CeleryBackendCluster(backend)
    # It lets go of AsyncResults that would otherwise unsubscribe from a server that is gone.
    backend.teardown()


@pytest.fixture
def default_redis_broker_image() -> str:
    """pytest-celery's Redis container runs `redis-server`, which the Valkey image has as well."""
    return VALKEY_IMAGE


@pytest.fixture
def default_redis_backend_image() -> str:
    return VALKEY_IMAGE


@pytest.fixture
def celery_worker_cluster(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    celery_broker_cluster: CeleryBrokerCluster,
    worker_app: str | None,
    worker_names: Sequence[str],
    worker_arguments: Sequence[str],
    worker_env: Mapping[str, str],
) -> Iterator[CeleryWorkerCluster]:
    """The workers, started together and ready."""
    if on_docker():
        if worker_app is not None or len(worker_names) != 1:
            pytest.skip("an app of the checkout, and several workers, run as processes only")
        yield CeleryWorkerCluster(request.getfixturevalue("celery_setup_worker"))
        return
    folder = ROOT
    if worker_app is None:
        folder = tmp_path / "worker-app"
        write_content(folder, request.getfixturevalue("default_worker_initial_content"))
    broker_url = celery_broker_cluster.config()["urls"][0]
    started = []
    for name in worker_names:
        node = WorkerNode(
            name,
            app=worker_app or "app",
            broker_url=broker_url,
            log_file=tmp_path / f"{name}.log",
            arguments=worker_arguments,
            env=worker_env,
            cwd=folder,
        )
        started.append(ProcessWorker(WorkerContainer(node), request.getfixturevalue("default_worker_app")))
    try:
        for worker in started:
            worker.container.node.start()
        cluster = CeleryWorkerCluster(*started)
        cluster.ready()
        yield cluster
    finally:
        for worker in started:
            worker.teardown()
            print(f"--- {worker.container.node!r}\n{worker.container.node.log_tail()}")


@pytest.fixture(scope="module")
def session() -> SparkSession:
    """A Spark with the settings that most tests want."""
    from tests.integration.spark.spark_session import session_of

    return session_of()


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> JobsHere:
    """Jobs of Spark, called in this process."""
    from tests.integration.spark.spark_jobs import JobsHere

    return JobsHere(monkeypatch)


@pytest.fixture
def nothing_runs_on() -> Iterator[None]:
    """What the test asked of Spark has ended when it is over."""
    from tests.integration.spark.spark_session import wait_for_tasks

    yield
    wait_for_tasks()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Issues the certificates of a test's own servers."""
    return trustme.CA()


@pytest.fixture
def sentinels(request: pytest.FixtureRequest, valkey_binary: Path, tmp_path: Path) -> Iterator[Sentinels]:
    """A primary, a replica, and sentinels; which replace it soon when it is away, if the parameter says "quick"."""
    folder = tmp_path / "servers"
    folder.mkdir()
    with ExitStack() as stack:
        yard = stack.enter_context(closing(NodeYard(folder, "redis://nowhere")))
        yield Sentinels(valkey_binary, folder, yard, stack, quick=getattr(request, "param", "") == "quick")
