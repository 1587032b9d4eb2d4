"""Lanes with HTTP consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
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
