"""Lanes with HTTP consumers, and the server of tests that share a port."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from tests.conftest import emptied
from tests.integration.http.http_consumers import HttpLane


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> HttpLane:
    """A lane with a master. No lease ends during a test, unless its consumer leaves."""
    lane = HttpLane(nodes, own_server, tmp_path)
    lane.master("m1")
    return lane


@pytest.fixture
def short(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> HttpLane:
    """A lane with a master, and leases that end soon."""
    lane = HttpLane(nodes, own_server, tmp_path, COUNTER_LEASE="6")
    lane.master("m1")
    return lane


@pytest.fixture(scope="module")
def module_server(valkey_of_session: EmbeddedServer) -> EmbeddedServer:
    """The server of the port that all tests of a module share: to make an application takes longer than most tests."""
    return emptied(valkey_of_session)


@pytest.fixture
def flushed(module_server: EmbeddedServer) -> EmbeddedServer:
    """The same server without keys. The connections of the port stay open, which `emptied` would close."""
    with module_server.client() as client:
        client.flushall()
    return module_server
