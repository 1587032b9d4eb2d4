"""pytest-celery's set-up, with masters, and with nodes that a test starts while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestCluster,
    CeleryTestSetup,
    CeleryWorkerCluster,
    RedisTestBroker,
)
from redis import Redis

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.local_containers import ServerContainer
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.outcome import dead_letters, lanes_here, wait_until_done


class MasterCluster(CeleryTestCluster):
    """The masters of a set-up: one leads, the others stand by."""


class BridgeSetup(CeleryTestSetup):
    """A broker, workers and masters. A test may start more of them at any time with ``nodes``."""

    def __init__(
        self,
        nodes: NodeYard,
        broker_cluster: CeleryBrokerCluster,
        backend_cluster: CeleryBackendCluster,
        app: Celery | None = None,
    ) -> None:
        super().__init__(None, broker_cluster, backend_cluster, app)
        #: Starts workers, masters and other programs. All of them are ended after the test.
        self.nodes = nodes

    @classmethod
    @contextmanager
    def on(cls, server: EmbeddedServer, folder: Path, *, url: str | None = None) -> Iterator[BridgeSetup]:
        """Processes that use the given server, at ``url`` if that is given. Their logs are in ``folder``."""
        container = ServerContainer(server)
        nodes = ProcessYard(folder, url or server.url)
        backend = CeleryBackendCluster(CeleryTestBackend(container))
        setup = cls(nodes, CeleryBrokerCluster(RedisTestBroker(container)), backend)
        try:
            yield setup
        finally:
            nodes.close()

    def __len__(self) -> int:
        return len(self.broker_cluster) + len(self.backend_cluster) + len(self.nodes.nodes)

    @property
    def worker_cluster(self) -> CeleryWorkerCluster | None:
        """The workers that there are now; None: there are none."""
        found = self.nodes.workers()
        return CeleryWorkerCluster(*found) if found else None

    @property
    def worker(self) -> Any:
        """The first worker."""
        return self.nodes.workers()[0]

    @property
    def master_cluster(self) -> MasterCluster | None:
        """The masters that there are now; None: there are none."""
        found = self.nodes.masters()
        return MasterCluster(*found) if found else None

    @property
    def master(self) -> MasterNode:
        """The first master."""
        return self.nodes.masters()[0]

    @property
    def server(self) -> EmbeddedServer:
        """The broker's process; where the broker is a container, the test is skipped."""
        container = self.broker.container
        if not isinstance(container, ServerContainer):
            pytest.skip("needs the server as a process: --bridge-nodes=processes")
        return container.server

    def client(self, **options: Any) -> Redis:
        """A new client of the broker, which the caller closes. It returns bytes unless ``options`` say otherwise."""
        made: Redis = Redis.from_url(self.broker.config()["host_url"], **options)
        return made

    def wait(self, timeout_s: float = 60.0) -> None:
        """Waits until every message that was pushed is done or dead. Raises `TimeoutError`, which says what is not."""
        with self.client() as redis:
            wait_until_done(redis, lanes_here(self.app, redis), timeout_s)

    def dead_letters(self) -> list[dict[str, str]]:
        """The messages that were given up, oldest first, with the fields of their letters."""
        with self.client() as redis:
            return dead_letters(redis, lanes_here(self.app, redis))

    def _is_docker_ready(self, docker: bool) -> bool:
        return not docker or (super()._is_docker_ready(docker) and all(node.ready() for node in self.nodes.masters()))
