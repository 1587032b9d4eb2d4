"""Values in a lane's hashes that cannot be read: the port goes on without them, as the leader does."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from bridge.app.installed import bridge_of
from bridge.protocol.agreement import facts, leads_http
from bridge.protocol.drain_orders import DrainOrder
from bridge.protocol.unreadable import UNREADABLE
from bridge.stack.embedded import EmbeddedServer
from tests.integration.http.http_port import Port, app_of, port_of
from tests.unreadable_values import like

ORDER = DrainOrder(7, 1.5).text().encode()


@pytest.fixture(scope="module")
def app(module_server: EmbeddedServer) -> Iterator[Celery]:
    found = app_of(module_server.url)
    yield found
    found.bridge.client.close()


@pytest.fixture(scope="module")
def port(app: Celery) -> Iterator[Port]:
    with port_of(app) as found:
        yield found


def could_lead(master: bytes) -> bool:
    """Whether nothing says that an older version leads."""
    try:
        return leads_http(master)
    except UNREADABLE:
        return True


@given(data=st.data(), order=like(ORDER))
def test_an_http_consumer_registers_and_lives_beside_them(
    app: Celery, port: Port, module_server: EmbeddedServer, data: st.DataObject, order: bytes
) -> None:
    settings = bridge_of(app).settings.lane
    master = data.draw(like(orjson.dumps(facts(app, settings, master=True))))
    with module_server.client() as redis:
        redis.hset(settings.keys.about, "master", master)
        redis.hset(settings.keys.drains, "h1", order)
    answer = port.post("/api/consumers/register", {"name": "h1", "concurrency": 1})
    assert answer.status == (200 if could_lead(master) else 503)
    if answer.status == 200:
        life = {"incarnation": answer.body["incarnation"]}
        beat = port.post("/api/consumers/h1/heartbeat", life)
        assert (beat.status, beat.body["wants"]) == (200, "go on")
        assert port.post("/api/consumers/h1/leave", life).status == 200
