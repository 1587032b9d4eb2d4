"""Fixtures of tests about the lanes of an app."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from tests.integration.versions import Versions


@pytest.fixture
def chain(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Versions:
    return Versions(nodes, own_server, tmp_path)
