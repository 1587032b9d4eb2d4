"""What consumers may ask for beside messages: CloudEvents, and pings of their health URL."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import HttpConsumerUnderTest, HttpLane, call


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> HttpLane:
    return HttpLane(nodes, own_server, tmp_path, COUNTER_CONF='{"bridge_http_health_networks": ["127.0.0.0/8"]}')


@pytest.fixture
def asked() -> Iterator[tuple[str, list[bytes]]]:
    """A health URL that answers 500, and what it was asked."""
    found: list[bytes] = []
    listening = socket.create_server((HOST, 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                dialled, _ = listening.accept()
                with dialled, suppress(OSError):
                    found.append(dialled.recv(4096))
                    dialled.sendall(b"HTTP/1.1 500 Broken\r\n\r\n")

    threading.Thread(target=serve, name="test-health", daemon=True).start()
    yield f"http://{HOST}:{listening.getsockname()[1]}/alive", found
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_a_receive_answers_cloud_events_and_their_fences_count(lane: HttpLane) -> None:
    lane.master("m1")
    consumer = lane.consumer("c1", tasks=["counter.append"])
    for done, own_id in enumerate(("*", "253402300799999-0", "1763695023117000-0", f"{2**64 - 1}-7")):
        receive_event(lane, consumer, own_id)
        lane.wait_done(done + 1)


def receive_event(lane: HttpLane, consumer: HttpConsumerUnderTest, own_id: str) -> None:
    """Pushes a message with ``own_id``, receives it as an event, and acknowledges it by what the event says."""
    # A number that orjson would round.
    id_ = lane.redis.xadd(lane.keys.stream, {"ticket_id": "T/1", "payload": '{"n": 123456789012345678901}'}, own_id)
    query = urlencode({"consumer": "c1", "incarnation": consumer.incarnation, "wait": 10})
    connection = HTTPConnection(HOST, consumer.port, timeout=30)
    connection.request("GET", f"/api/messages/next?{query}", headers={"Accept": "application/cloudevents-batch+json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.headers["content-type"] == "application/cloudevents-batch+json"
    [event] = json.loads(text)
    assert '"data":{"n": 123456789012345678901}' in text
    assert {name: event[name] for name in ("specversion", "id", "source", "type", "partitionkey", "attempt")} == {
        "specversion": "1.0",
        "id": id_,
        "source": "/streams/ticket_stream",
        "type": "counter.append",
        "partitionkey": "T/1",
        "attempt": 1,
    }
    # Not every id is a time that CloudEvents can name.
    assert ("time" in event) == (int(event["id"].partition("-")[0]) < 253_402_300_800_000)
    body = {
        "consumer": "c1",
        "incarnation": consumer.incarnation,
        "message_id": event["id"],
        "fence": int(event["fence"]),
        "outcome": "done",
    }
    assert call(consumer.port, "POST", "/api/messages/acknowledge", body).status == 200


def test_a_health_url_outside_of_the_list_is_refused(lane: HttpLane) -> None:
    lane.master("m1")
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "ftp://127.0.0.1/", "http://127.0.0.1:0/"):
        body = {"name": "c1", "concurrency": 1, "healthURL": url}
        answer = call(lane.ports["m1"], "POST", "/api/consumers/register", body)
        assert (answer.status, "healthURL" in answer.body["detail"]) == (400, True), answer
    assert lane.redis.hlen(lane.keys.consumers) == 0


def test_a_consumer_that_fails_its_pings_keeps_its_tickets_as_long_as_it_renews(
    lane: HttpLane, asked: tuple[str, list[bytes]]
) -> None:
    url, found = asked
    master = lane.master("m1")
    consumer = lane.consumer("c1", tasks=["counter.append"], healthURL=url)

    def failed() -> bool:
        assert consumer.heartbeat().status == 200
        return "does not answer pings" in master.logs()

    wait_until(failed, description="two pings to fail", timeout_s=90)
    assert found[0].startswith(b"GET /alive HTTP/1.1\r\n")
    # The leader looked, and the lease decided.
    assert consumer.heartbeat().status == 200
    assert "consumer c1 is gone" not in master.logs()
