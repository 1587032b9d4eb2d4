"""Unit tests start no server, except those marked ``server``."""

from __future__ import annotations

import pytest

from bridge.stack.embedded import EmbeddedServer


@pytest.fixture(autouse=True)
def _no_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("server") is None:
        monkeypatch.setattr(EmbeddedServer, "start", _refuse)


def _refuse(server: EmbeddedServer) -> None:
    pytest.fail(f"{server} is started by a test that is not marked `server`", pytrace=False)
