"""Producers choose no command by the version of the server, and the scripts of pushes run on both servers in
`tests/scripts`. So what they do on Redis 6.2 is left to ``make long``.
"""

from __future__ import annotations

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.conftest import REDIS6, VALKEY, emptied


@pytest.fixture(params=[VALKEY, pytest.param(REDIS6, marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    name = "valkey_of_session" if request.param == VALKEY else "redis6_of_session"
    chosen: EmbeddedServer = request.getfixturevalue(name)
    return emptied(chosen)
