"""`HttpConsumer` goes by the options of a message. Its master is a stub, whose clock is far from this machine's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bridge.consumer import GiveUp, HttpConsumer, Message, Refuse
from bridge.consumer.http_consumer import LOST_STATUS
from bridge.routing.message_options import EXPIRED

#: The time by the stub's clock, Unix ms: in 1970.
NOW_MS = 5_000_000
LEASE_MS = 60_000


class Stub:
    """A master that has some messages, and keeps what is acknowledged."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.lease_ms = LEASE_MS
        self.wants = "go on"
        #: Of the answers to heartbeats.
        self.status = 200
        self.registered = threading.Event()
        #: Set: a heartbeat is answered. Until then its answer comes byte by byte.
        self.answers = threading.Event()
        self.answers.set()

    def add(self, ticket: str, **options: int) -> None:
        number = len(self.messages) + 1
        message = {"ticket_id": ticket, "message_id": f"{number}-0", "fence": number, "attempt": 1, "task": "t"}
        more = {"options": options} if options else {}
        self.messages.append({**message, "payload": {}, "deadline_ms": NOW_MS + LEASE_MS, **more})

    def answer(self, path: str, body: Any) -> Any:
        if path.endswith("/register"):
            self.registered.set()
            return {"incarnation": "i", "lease_ms": self.lease_ms}
        if path.endswith("/heartbeat"):
            return {"wants": self.wants, "lease_ms": self.lease_ms}
        if "/next" in path:
            given = [message for message in self.messages if message["message_id"] not in self.outcomes]
            return {"messages": given, "lease_ms": LEASE_MS}
        if path.endswith("/acknowledge"):
            self.outcomes |= {item["message_id"]: item for item in body}
            return {"results": [{"message_id": item["message_id"], "status": 200} for item in body]}
        return {"status": "left"}


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
def url(stub: Stub) -> Iterator[str]:
    with serving(stub) as found:
        yield found


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """The URL of a server that answers as ``stub`` does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(size)
            answer = json.dumps(stub.answer(self.path, json.loads(text) if text else None)).encode()
            self.send_response(stub.status if self.path.endswith("/heartbeat") else 200)
            self.flush_headers()
            self.wfile.write(b"Wait: ")
            while self.path.endswith("/heartbeat") and not stub.answers.wait(0.01):
                self.wfile.write(b".")
            self.wfile.write(b"\r\n")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def handled(url: str, stub: Stub, handler: Any) -> dict[str, dict[str, Any]]:
    """The outcomes of all messages, by ticket."""
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(message.ticket_id)
        if message.ticket_id == "last":
            consumer.stop()
            return
        handler(message)

    stub.add("last")
    consumer = HttpConsumer(url, "h", handle, concurrency=1, wait_s=0)
    consumer.run()
    tickets = {message["message_id"]: message["ticket_id"] for message in stub.messages}
    found = {tickets[id_]: outcome for id_, outcome in stub.outcomes.items()}
    assert found.keys() == set(tickets.values())
    assert sorted(seen) == sorted(ticket for ticket in found if ticket != "expired")
    return found


def test_what_has_expired_is_dead_and_its_handler_is_not_called(url: str, stub: Stub) -> None:
    stub.add("expired", expires_ms=NOW_MS)
    stub.add("in time", expires_ms=NOW_MS + 3_600_000)
    found = handled(url, stub, lambda _message: None)
    assert (found["expired"]["outcome"], found["expired"]["error"]) == ("dead", EXPIRED)
    assert found["in time"]["outcome"] == "done"


def test_a_handler_that_takes_too_long_fails_when_it_ends_and_one_that_looks_can_stop_itself(
    url: str, stub: Stub
) -> None:
    left: dict[str, float] = {}

    def handle(message: Message) -> None:
        left[message.ticket_id] = message.left_s()
        while message.ticket_id != "in time" and message.left_s() > 0:
            pass
        if message.ticket_id == "refuses":
            raise Refuse("later")
        if message.ticket_id == "gives up":
            raise GiveUp("never")

    for ticket in ("slow", "refuses", "gives up"):
        stub.add(ticket, timeout_ms=1)
    stub.add("in time", timeout_ms=3_600_000, max_attempts=2)
    found = handled(url, stub, handle)
    assert "after the time that its message allows" in found["slow"]["error"]
    assert {ticket: outcome["outcome"] for ticket, outcome in found.items()} == {
        "slow": "failed",
        "refuses": "refused",
        "gives up": "dead",
        "in time": "done",
        "last": "done",
    }
    assert 3_500 < left["in time"] <= 3_600


def test_a_message_says_its_options_and_one_without_has_all_the_time(url: str, stub: Stub) -> None:
    seen: list[tuple[Any, float, bool]] = []
    stub.add("with", max_attempts=2)
    stub.add("without")
    handled(url, stub, lambda message: seen.append((message.options, message.left_s(), message.holds())))
    assert seen == [({"max_attempts": 2}, float("inf"), True), (None, float("inf"), True)]


def test_the_end_of_the_lease_is_noticed_while_a_renewal_waits_for_its_answer(
    url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    lost = threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        lost.set()

    def handle(_message: Message) -> None:
        lost.wait(8)
        stub.answers.set()
        consumer.stop()

    monkeypatch.setattr("bridge.consumer.http_consumer.os._exit", end)
    stub.lease_ms = 400
    stub.answers.clear()
    stub.add("long")
    consumer = HttpConsumer(url, "h", handle, concurrency=1, wait_s=0)
    consumer.run()
    assert ended == [LOST_STATUS]


def test_one_that_is_told_to_leave_registers_again_with_the_master_that_said_so(url: str, stub: Stub) -> None:
    # A deploy: two masters know different lanes. The thread that renews has left the first one, which answers 503.
    stub.status, other = 503, Stub()
    other.wants = "leave"
    with serving(other) as second:
        consumer = HttpConsumer([url, second], "h", lambda _message: None, wait_s=0)
        running = threading.Thread(target=consumer.run)
        running.start()
        try:
            assert other.registered.wait(30)
        finally:
            consumer.stop()
            running.join()
