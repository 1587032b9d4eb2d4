"""The set-up of the integration tier: pytest-celery's `celery_setup`, with the nodes that users get in their own tests.

The broker is `own_server`. Most tests start their workers and masters while they run, by `celery_setup.nodes` or by the
lane on top of it (`tests.integration.lanes`), so none is there at first: a test or class that wants them before says
`bridge_workers`, `bridge_masters` and `bridge_app` of `bridge.testing.nodes.plugin`.

``--bridge-nodes=containers`` makes the nodes containers. A test that needs single processes, or the server as one, is
then skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import WORKER_ARGUMENTS, NodeYard
from bridge.testing.nodes.plugin import in_containers
from bridge.testing.nodes.setup import BridgeSetup
from bridge.testing.nodes.yard import ProcessYard
from tests.integration.sentinels import Sentinels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.integration.spark.spark_jobs import JobsHere


@pytest.fixture
def bridge_workers() -> Sequence[str]:
    return ()


@pytest.fixture
def bridge_worker_arguments() -> Sequence[str]:
    """With Celery's mingle and gossip, as in most installations."""
    return WORKER_ARGUMENTS


@pytest.fixture
def own_server(pytestconfig: pytest.Config, own_server: EmbeddedServer) -> EmbeddedServer:
    """As everywhere. With nodes in containers the broker is another one, and the test cannot be run."""
    if in_containers(pytestconfig):
        pytest.skip("needs the server as a process: --bridge-nodes=processes")
    return own_server


@pytest.fixture
def bridge_server(own_server: EmbeddedServer) -> EmbeddedServer:
    return own_server


@pytest.fixture
def nodes(celery_setup: BridgeSetup) -> NodeYard:
    """Starts workers and masters of `celery_setup`; all of them are gone when the test is over."""
    return celery_setup.nodes


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
    """Waits until Spark's tasks have ended when the test is over."""
    from tests.integration.spark.spark_session import wait_for_tasks

    yield
    wait_for_tasks()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Issues the certificates of a test's own servers."""
    return trustme.CA()


@pytest.fixture
def sentinels(request: pytest.FixtureRequest, valkey_binary: Path, tmp_path: Path) -> Iterator[Sentinels]:
    """A primary, a replica, and sentinels. With the parameter "quick" they replace a dead primary soon."""
    folder = tmp_path / "servers"
    folder.mkdir()
    with ExitStack() as stack:
        yard = stack.enter_context(closing(ProcessYard(folder, "redis://nowhere")))
        yield Sentinels(valkey_binary, folder, yard, stack, quick=getattr(request, "param", "") == "quick")
