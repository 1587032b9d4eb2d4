"""A server that is emptied for a test has nothing of an earlier one, and neither has this process."""

from __future__ import annotations

import pytest
from celery import Celery

from bridge.stack.embedded import EmbeddedServer
from tests.conftest import emptied

pytestmark = pytest.mark.server


def test_no_test_gets_the_broker_connection_of_an_earlier_one(valkey: EmbeddedServer) -> None:
    """Kombu gives one that was left to the next app with the same URL."""
    connections = []
    for _ in range(2):
        with Celery(broker=valkey.url, set_as_current=False).pool.acquire(block=True) as connection:
            connection.default_channel.client.ping()
            connections.append(connection)
        emptied(valkey)
    assert connections[0] is not connections[1]
    assert not connections[0].connected
