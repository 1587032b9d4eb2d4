"""Unit tests start no server, except those marked ``server``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.alternating import alternate
from tests.conftest import REDIS6, VALKEY

#: Where commands only read what scripts wrote, or are refused. In `make test` a test there runs on one of the servers.
ONE_SERVER = ("cli", "link", "operate")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.relative_to(Path(__file__).parent).parts[0] in ONE_SERVER:
        alternate(item, (VALKEY, REDIS6))


@pytest.fixture(autouse=True)
def _no_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("server") is None:
        monkeypatch.setattr(EmbeddedServer, "start", _refuse)


def _refuse(server: EmbeddedServer) -> None:
    pytest.fail(f"{server} is started by a test that is not marked `server`", pytrace=False)
