"""Consumers over HTTP that know several masters, of which one is frozen, or gone."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import pytest

from bridge.consumer import HttpConsumer, Message
from bridge.consumer.http_calls import Calls, HttpProblem
from tests.unit.consumer.http_stub import Stub, serving

#: Much less than the time of a long poll or of a registration at a master that is frozen.
SOON_S = 15


@pytest.fixture
def frozen() -> Iterator[str]:
    """A master whose process is frozen: its kernel takes connections, and nothing answers."""
    with frozen_master() as (found, _):
        yield found


@contextmanager
def frozen_master() -> Iterator[tuple[str, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", server


@pytest.fixture
def closed() -> str:
    """A master that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def running(consumer: HttpConsumer) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        consumer.stop()
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("urls", "handler", "said"),
    [
        ([], print, "the URL of at least one master"),
        ((), print, "the URL of at least one master"),
        (["shop:8080"], print, "http://HOST:PORT"),
        (["http://h:1"], None, "the handler must be a function"),
        (["http://h:1"], "shop.apply", "the handler must be a function"),
    ],
    ids=str,
)
def test_what_cannot_be_a_consumer_is_refused_at_once(urls: list[str], handler: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        HttpConsumer(urls, "c1", handler)


SECRET = "q9X4mD2sLr6tPz8eUw1hYb5K"


@pytest.mark.parametrize(
    ("urls", "given", "kind", "said"),
    [
        ("http://h:1", {"token": f"{SECRET}🚲"}, ValueError, "the token must be printable ASCII without spaces"),
        ("http://h:1", {"token": f"{SECRET}\r\nEvil: 1"}, ValueError, "the token must be printable ASCII"),
        ("http://h:1", {"token": f"{SECRET} {SECRET}"}, ValueError, "the token must be printable ASCII"),
        ("http://h:1", {"token": "\n"}, ValueError, "the token is empty"),
        ("http://h:1", {"token": SECRET.encode()}, TypeError, "the token must be text, not bytes"),
        ("http://my host:1", {}, ValueError, "from 1 to 65535, not 'http://my host:1'"),
        ("http://h:1\n", {}, ValueError, "http://HOST:PORT"),
        ("http://h:99999", {}, ValueError, "http://HOST:PORT, with a port from 1 to 65535, not 'http://h:99999'"),
        ("http://h:0", {}, ValueError, "with a port from 1 to 65535"),
        ("http://h:x", {}, ValueError, "with a port from 1 to 65535"),
        ("http://[::1", {}, ValueError, "http://HOST:PORT"),
        (f"http://{'h' * 64}:1", {}, ValueError, "http://HOST:PORT"),
        ("http://ü..h:1", {}, ValueError, "http://HOST:PORT"),
        ([b"http://h:1"], {}, TypeError, "the URL of a master must be text"),
        (f"http://me:{SECRET}@h:1", {}, ValueError, "a master's URL must not have a user or a password: give token="),
        (f"http://{SECRET}@h:1", {}, ValueError, "a master's URL must not have a user or a password"),
        (f"htp://me:{SECRET}@h:99999", {}, ValueError, "a master's URL must not have a user or a password"),
        (f"http://h:1/?token={SECRET}", {}, ValueError, "a master's URL must not have a query or a fragment"),
        (f"http://h:1#{SECRET}", {}, ValueError, "a master's URL must not have a query or a fragment"),
        ("http://h:1?", {}, ValueError, "a master's URL must not have a query or a fragment"),
        ("http://h:1/brücke", {}, ValueError, "the path of a master's URL must be ASCII: quote what is not, as %C3%BC"),
        ("http://h:1", {"wait_s": float("nan")}, ValueError, "wait_s must be from 0 to 60 seconds, it is nan"),
        ("http://h:1", {"wait_s": float("inf")}, ValueError, "wait_s must be from 0 to 60 seconds"),
        ("http://h:1", {"wait_s": -1}, ValueError, "wait_s must be from 0 to 60 seconds"),
        ("http://h:1", {"wait_s": 61}, ValueError, "wait_s must be from 0 to 60 seconds"),
        ("http://h:1", {"wait_s": "1"}, TypeError, "wait_s must be a number of seconds, not '1'"),
        ("http://h:1", {"concurrency": "4"}, TypeError, "concurrency must be a whole number, not '4'"),
        ("http://h:1", {"concurrency": True}, TypeError, "concurrency must be a whole number"),
        ("http://h:1", {"concurrency": 0}, ValueError, "concurrency must be from 1 to 1000, it is 0"),
        ("http://h:1", {"concurrency": 1001}, ValueError, "concurrency must be from 1 to 1000"),
        ("http://h:1", {"tasks": {"a"}}, TypeError, "tasks must be a list of task names, not {'a'}"),
        ("http://h:1", {"tasks": "shop.apply"}, TypeError, "tasks must be a list of task names, not 'shop.apply'"),
        ("http://h:1", {"tasks": [1]}, TypeError, "tasks must be a list of task names"),
        ("http://h:1", {"name": 7}, TypeError, "name must be text, not 7"),
        ("http://h:1", {"subscription": ["a"]}, TypeError, "subscription must be text"),
        ("http://h:1", {"health_url": 7}, TypeError, "health_url must be text"),
    ],
    ids=range(36),
)
def test_what_no_call_can_have_is_refused_in_one_line_that_shows_no_token(
    urls: Any, given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=re.escape(said)) as raised:
        HttpConsumer(urls, **{"name": "c1", "handler": print, **given})
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["", "/", "/bridge", "/bridge/", "/a%20b/c"])
def test_the_path_of_a_url_goes_before_that_of_each_call(path: str, url: str, stub: Stub) -> None:
    Calls([url + path], None).call("GET", "/api/health", goes_on=lambda: False)
    assert stub.path == f"{path.rstrip('/')}/api/health"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["", "newline", "carriage return and newline"])
def test_the_newline_at_the_end_of_a_token_file_is_no_part_of_the_token(end: str, url: str, stub: Stub) -> None:
    Calls([url], SECRET + end).call("POST", "/api/consumers/h/heartbeat", {}, goes_on=lambda: False)
    assert stub.authorization == f"Bearer {SECRET}"


def test_an_error_of_a_connection_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def refuse(_connection: HTTPConnection) -> None:
        # It is a ValueError, too.
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(HTTPConnection, "connect", refuse)
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        Calls([url], None).call("GET", "/api/health", goes_on=lambda: False)


def test_an_answer_that_is_no_json_is_said_to_be_none(url: str, stub: Stub) -> None:
    stub.text = b"<html>"
    with pytest.raises(HTTPException, match="an answer that is no JSON"):
        Calls([url], None).call("GET", "/api/health", goes_on=lambda: False)


def test_a_master_that_is_frozen_does_not_keep_a_registration(frozen: str, url: str, stub: Stub) -> None:
    with running(HttpConsumer([frozen, url], "h", lambda _message: None)):
        assert stub.registered.wait(SOON_S)


def test_a_master_that_freezes_does_not_keep_a_registration_that_waits(url: str, stub: Stub) -> None:
    other = Stub()
    stub.enlists.clear()
    with serving(other) as second, running(HttpConsumer([url, second], "h", lambda _message: None)):
        assert stub.registered.wait(SOON_S)
        stub.thawed.clear()
        assert other.registered.wait(SOON_S)


def test_a_master_that_freezes_does_not_keep_a_receive(url: str, stub: Stub) -> None:
    other, handled = Stub(), threading.Event()
    stub.lease_ms = other.lease_ms = 3_000
    other.add("T")
    with serving(other) as second, running(HttpConsumer([url, second], "h", lambda _message: handled.set())):
        assert stub.polls.wait(SOON_S)
        stub.thawed.clear()
        assert handled.wait(SOON_S)
        # The lease was renewed in time by the other master.
        assert not other.registered.is_set()


def test_a_call_that_fails_late_does_not_lead_back_to_the_master_that_failed(url: str) -> None:
    def late() -> None:
        with pytest.raises((OSError, HTTPException)):
            calls.call("GET", "/api/health", goes_on=lambda: False, answer_s=1)

    with frozen_master() as (frozen, server):
        calls = Calls([frozen, url], None)
        slow = threading.Thread(target=late)
        slow.start()
        # Until it is sent, it may go to the other master.
        with server.accept()[0]:
            calls.call("GET", "/api/health", goes_on=lambda: True, answer_s=0.2)
            slow.join()
        # A new connection is one to the master to which the faster call led.
        calls.close()
        calls.call("GET", "/api/health", goes_on=lambda: False, answer_s=0.2)


def test_a_connection_that_was_idle_for_too_long_is_no_reason_to_leave_the_master(closed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        calls = Calls([f"http://127.0.0.1:{server.getsockname()[1]}", closed], None)
        for _ in range(2):
            assert calls.call("GET", "/", goes_on=lambda: False) == {}
        thread.join()
    assert calls._masters[calls._at].port != urlsplit(closed).port


@pytest.mark.parametrize("gone", [("closed",), ("closed", "frozen"), ("frozen",)], ids=" ".join)
@pytest.mark.parametrize("waits", [True, False], ids=["in a long poll", "with a message"])
def test_one_that_is_stopped_leaves_while_other_masters_are_away(
    url: str, stub: Stub, request: pytest.FixtureRequest, gone: tuple[str, ...], waits: bool
) -> None:
    others = [request.getfixturevalue(name) for name in gone]
    handles = threading.Event()

    def handle(_message: Message) -> None:
        handles.set()
        consumer.stop()

    if not waits:
        stub.add("T")
    consumer = HttpConsumer([url, *others], "h", handle)
    with running(consumer):
        assert (stub.polls if waits else handles).wait(SOON_S)
        consumer.stop()
        assert stub.left.wait(SOON_S)


def test_a_second_stop_does_not_end_the_good_bye(caplog: pytest.LogCaptureFixture, url: str, stub: Stub) -> None:
    # A second SIGTERM, or the end of a `with` block.
    stub.leaves.clear()
    consumer = HttpConsumer(url, "h", lambda _message: None)
    with running(consumer):
        assert stub.polls.wait(SOON_S)
        consumer.stop()
        assert stub.left.wait(SOON_S)
        consumer.stop()
        stub.leaves.set()
    assert "cannot leave" not in caplog.text


def test_one_whose_master_froze_leaves_by_another_one(url: str, stub: Stub) -> None:
    other = Stub()
    with serving(other) as second:
        consumer = HttpConsumer([url, second], "h", lambda _message: None)
        with running(consumer):
            assert stub.polls.wait(SOON_S)
            stub.thawed.clear()
            consumer.stop()
            assert other.left.wait(SOON_S)


def test_a_master_that_is_away_is_in_the_log_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture, url: str, stub: Stub
) -> None:
    caplog.set_level(logging.INFO, "bridge.consumer")
    stub.most_bytes = 10
    tries = iter(range(4))

    def goes_on() -> bool:
        if next(tries, None) is None:
            stub.most_bytes = 1 << 60
        return True

    body = json.dumps([{"message_id": "1-0"}]).encode()
    assert Calls([url], None).call("POST", "/api/messages/acknowledge", body, goes_on=goes_on)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert "the HTTP port of the masters is away, calls are repeated: " in lines[0]
    assert "the HTTP port of the masters is back after " in lines[1]


def test_a_refusal_is_no_outage(caplog: pytest.LogCaptureFixture, url: str, stub: Stub) -> None:
    stub.status = 410
    with pytest.raises(HttpProblem):
        Calls([url], None).call("POST", "/api/consumers/h/heartbeat", {}, goes_on=lambda: False)
    assert caplog.records == []
