"""What clients do that send too much, too slowly, or no HTTP at all. The server goes on, and its memory is bounded."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
from collections.abc import Iterator

import pytest

from bridge.http import connections
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.http.http_port import Port, app_of, port_of

BODY = 50_000


@contextlib.contextmanager
def limited_port(server: EmbeddedServer) -> Iterator[Port]:
    """A port with the usual times: a test about a slow client makes them short itself, since any client may be slow on
    a busy machine.
    """
    app = app_of(server.url, bridge_http_max_body=BODY, bridge_http_max_connections=20)
    with port_of(app) as found:
        yield found
        # Whatever was done to it.
        assert found.get("/api/health").status == 200
    app.bridge.client.close()


@pytest.fixture
def port(flushed: EmbeddedServer) -> Iterator[Port]:
    with limited_port(flushed) as found:
        yield found


@pytest.fixture(scope="module")
def kept_port(module_server: EmbeddedServer) -> Iterator[Port]:
    """For requests that no later test could find traces of: each is answered, and its connection closed."""
    with limited_port(module_server) as found:
        yield found


def all_of(dialled: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := dialled.recv(65536):
            found += piece
    return found


def request(headers: str = "", body: bytes = b"", path: str = "/api/messages") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def test_a_body_over_the_limit_is_refused_before_it_is_read(port: Port) -> None:
    with port.dial() as dialled:
        dialled.sendall(request(f"Content-Length: {10**12}\r\n"))
        answer = all_of(dialled)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_a_body_without_a_length_is_counted_as_it_comes(port: Port) -> None:
    with port.dial() as dialled:
        dialled.sendall(request("Transfer-Encoding: chunked\r\n"))
        sent = 0
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                dialled.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
                sent += 0x1000
        answer = all_of(dialled)
    assert answer.startswith(b"HTTP/1.1 413 ") or not answer
    # The buffers of the kernel took some of it.
    assert sent < 20 * 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        (
            b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
            b"431",
        ),
        (b"GET /api/health HTTP/1.1\r\nX: " + b"a" * 1_000_000, b"431"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"431"),
        (request("Content-Length: -1\r\n"), b"400"),
        (request("Content-Length: 1\r\nContent-Length: 2\r\n"), b"400"),
        (request("Transfer-Encoding: chunked\r\n", b"zz\r\n"), b"400"),
        (request("Transfer-Encoding: gzip\r\n"), b"400"),
        (b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", b"400"),
        (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET /%ff%00/../ HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (
            b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
            b"200",
        ),
    ],
)
def test_what_is_not_good_http_gets_one_answer_and_no_line_in_the_log(
    kept_port: Port, caplog: pytest.LogCaptureFixture, sent: bytes, status: bytes
) -> None:
    with kept_port.dial() as dialled:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            dialled.sendall(sent)
        answer = all_of(dialled)
    assert answer.split(b" ", 2)[1] == status, answer
    assert b"Traceback" not in answer
    # The server logs a request before it answers it.
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
    # Whatever was done to it.
    assert kept_port.get("/api/health").status == 200


def test_a_client_that_sends_its_headers_slowly_is_cut_off(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some time to send the first ones: without them there is no answer.
    monkeypatch.setattr(connections, "HEADERS_S", 2.0)
    began = time.monotonic()
    with port.dial() as dialled:
        dialled.sendall(b"GET /api/health HTTP/1.1\r\n")
        answer = b""
        dialled.settimeout(0.1)
        while time.monotonic() - began < 30 and not answer:
            with contextlib.suppress(TimeoutError):
                dialled.sendall(b"X: a\r\n")
                answer = dialled.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_nothing_is_cut_off(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 0.5)
    with port.dial() as dialled:
        assert dialled.recv(1000) == b""


def test_a_client_that_sends_its_body_slowly_is_cut_off(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_S", 0.7)
    with port.dial() as dialled:
        dialled.sendall(request("Content-Length: 100\r\n", b"{"))
        assert all_of(dialled).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_goes_away_in_the_middle_of_its_body_leaves_nothing(port: Port) -> None:
    for _ in range(30):
        with port.dial() as dialled:
            dialled.sendall(request("Content-Length: 100\r\n", b"{"))
        with port.dial() as dialled:
            dialled.sendall(request("Content-Length: 100\r\n", b"{"))
            dialled.shutdown(socket.SHUT_WR)
            all_of(dialled)


def test_requests_that_come_at_once_are_answered_in_their_order(port: Port) -> None:
    one = b'{"ticket_id": "T"}'
    with port.dial() as dialled:
        dialled.sendall(request(f"Content-Length: {len(one)}\r\n", one) * 3 + request("Connection: close\r\n"))
        answer = all_of(dialled)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"201"] * 3 + [b"400"]


def test_a_connection_too_many_is_told_so(port: Port) -> None:
    with contextlib.ExitStack() as stack:
        dialled = [stack.enter_context(port.dial()) for _ in range(21)]
        answer = all_of(dialled[-1])
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer.lower()
    assert b"20 open connections" in answer


def test_a_long_poll_too_many_is_told_so_and_the_others_are_answered_at_the_stop(flushed: EmbeddedServer) -> None:
    app = app_of(flushed.url, bridge_http_max_polls=2)
    with port_of(app) as port, contextlib.ExitStack() as stack:
        polls = []
        for n in range(3):
            name = {"name": f"c{n}", "concurrency": 1}
            incarnation = port.post("/api/consumers/register", name).body["incarnation"]
            polls.append(f"/api/messages/next?consumer=c{n}&incarnation={incarnation}&wait=30")
        waiting = [stack.enter_context(port.dial()) for _ in polls[:2]]
        for dialled, path in zip(waiting, polls, strict=False):
            dialled.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        server = port.server
        assert server is not None
        # A third poll that comes before the other two would be one of the two.
        wait_until(lambda: server.polls == 2, description="the limit to be reached")
        assert port.get(polls[2]).status == 503
        server.stop()
        for dialled in waiting:
            assert all_of(dialled).startswith(b"HTTP/1.1 200 ")
    app.bridge.client.close()


@pytest.mark.parametrize("ending", ["goes away", "ends its side", "is too slow"])
def test_a_client_that_does_not_finish_its_body_is_no_error_of_the_server(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    if ending == "is too slow":
        monkeypatch.setattr(connections, "BODY_S", 0.7)
    caplog.set_level(logging.DEBUG, "bridge.http")
    with port.dial() as dialled:
        dialled.sendall(request("Content-Length: 100\r\n", b"{"))
        if ending == "ends its side":
            dialled.shutdown(socket.SHUT_WR)
        if ending != "goes away":
            all_of(dialled)
    wait_until(
        lambda: any(record.name == "bridge.http.limits" for record in caplog.records), description="a line of the log"
    )
    assert [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info] == []
