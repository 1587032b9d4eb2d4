"""A master with a port needs no more of Redis than `bridge acl master --http` prints."""

from __future__ import annotations

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard, broker_environment
from tests.integration.http.http_port import STREAM, Port
from tests.integration.lanes import APP
from tests.integration.servers import make_user, url_of

GROUP = "concurrency_stream_group"
VIEWS = ("status", "pending", "dead-letters", "delayed", "tickets/T1", "dead-letters/1-1")


def test_the_printed_permissions_suffice_for_all_routes(nodes: NodeYard, own_server: EmbeddedServer) -> None:
    with own_server.client() as admin:
        make_user(admin, "master", "--http")
        admin.xadd(LaneKeys(STREAM, GROUP).dead, {"message_id": "1-1", "reason": "a test", "at_ms": 1}, id="1-0")
    port = Port(free_port())
    env = broker_environment(url_of("master", own_server.port))
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port.number}"), env=env, ready_text="leading")
    # With a key, with a delay, plain, and many.
    key = {"Idempotency-Key": "k"}
    message = {"ticket_id": "T1", "payload": {"n": 1}}
    for body, headers in ((message, key), ({**message, "delay": 60}, {}), (message, {}), ([message] * 3, {})):
        assert port.post("/api/messages", body, headers=headers).status == 201
    for view in VIEWS:
        assert port.get(f"/api/{view}").status == 200, view
    for view in ("pending?state=waiting&ticket=T1", "dead-letters?reason=test", "delayed?ticket=T1"):
        assert port.get(f"/api/{view}").status == 200, view
    assert "NOPERM" not in master.logs()
    assert "may not do that" not in master.logs()
