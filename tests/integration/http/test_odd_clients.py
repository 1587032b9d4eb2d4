"""What odd and hostile clients send to the routes of consumers: each gets one clear answer, and nothing changes."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.http.http_port import Port, app_of, port_of, secret_of, token_file

REGISTER, ACKNOWLEDGE = "/api/consumers/register", "/api/messages/acknowledge"
GOOD = '{"name": "odd", "concurrency": 1}'
JSON = "Content-Type: application/json\r\n"


def post(body: str | bytes, headers: str = JSON, path: str = REGISTER, version: str = "1.1") -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n"
    return f"{head}{headers}\r\n".encode() + raw


def chunked(body: bytes, headers: str = "") -> bytes:
    head = f"POST {REGISTER} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}Transfer-Encoding: chunked\r\n"
    return f"{head}{headers}\r\n".encode() + body


def named(name: str) -> str:
    return f'{{"name": "{name}", "concurrency": 1}}'


IN_CHUNKS = named("c").encode()
#: What is sent to register, the status, and a word of the answer.
SENT: dict[str, tuple[bytes, int, str]] = {
    "HTTP/1.0": (post(named("a"), version="1.0"), 200, "incarnation"),
    "100-continue": (post(named("b"), f"{JSON}Expect: 100-continue\r\n"), 200, "incarnation"),
    "in chunks": (chunked(b"5\r\n%b\r\n1a\r\n%b\r\n0\r\n\r\n" % (IN_CHUNKS[:5], IN_CHUNKS[5:])), 200, "incarnation"),
    "a negative chunk": (chunked(b"-5\r\nabc\r\n0\r\n\r\n"), 400, "not a valid HTTP request"),
    "a chunk without a size": (chunked(b"\r\nabc\r\n0\r\n\r\n"), 400, "not a valid HTTP request"),
    "two lengths": (chunked(b"0\r\n\r\n", "Content-Length: 5\r\n"), 400, "not both"),
    "no media type": (post(GOOD, ""), 415, "send JSON as"),
    "another media type": (post(GOOD, "Content-Type: text/plain\r\n"), 415, "not 'text/plain'"),
    "an encoding": (post(GOOD, f"{JSON}Content-Encoding: gzip\r\n"), 415, "without Content-Encoding"),
    "many headers": (post(GOOD, JSON + "".join(f"X{n}: aaaaaaaaaa\r\n" for n in range(3000))), 431, "32,768 bytes"),
    "nothing": (post(""), 400, "body"),
    "no JSON": (post("{"), 400, "the body is not JSON"),
    "more than JSON": (post(f"{GOOD} x"), 400, "the body is not JSON"),
    "a NaN": (post('{"name": "odd", "concurrency": NaN}'), 400, "the body is not JSON"),
    "an infinity": (post('{"name": "odd", "concurrency": 1e999}'), 400, ""),
    "a huge number": (post('{"name": "odd", "concurrency": ' + "9" * 400 + "}"), 400, ""),
    "a number beyond 64 bits": (post('{"name": "odd", "concurrency": 99999999999999999999}'), 400, "64 bits"),
    "depth": (post("[" * 100_000), 400, "the body is not JSON"),
    "deep objects": (post('{"a":' * 5000 + "1" + "}" * 5000), 400, "the body is not JSON"),
    "a lone surrogate": (post('{"name": "\\ud800", "concurrency": 1}'), 400, "the body is not JSON"),
    "bytes that are no text": (post(b'{"name": "\xff", "concurrency": 1}'), 400, "the body is not JSON"),
    "a name in Unicode": (post(named("\u00fc")), 400, "body.name"),
    "a NUL in a name": (post('{"name": "a\\u0000", "concurrency": 1}'), 400, "body.name"),
    "a name like a key": (post(named("{a}:b")), 400, "body.name"),
    "null": (post("null"), 400, "body"),
    "a whole float": (post('{"name": "odd", "concurrency": 1.0}'), 400, "body.concurrency"),
}  # fmt: skip


def answer_of(port: Port, sent: bytes) -> tuple[int, bytes]:
    """The last status that comes, and all that comes."""
    with port.dial() as dialled:
        dialled.sendall(sent)
        found = b""
        while piece := dialled.recv(65536):
            found += piece
    statuses = re.findall(rb"^HTTP/1.1 (\d+)", found, re.MULTILINE)
    assert len([status for status in statuses if status != b"100"]) == 1, found
    return int(statuses[-1]), found


def test_each_odd_request_has_one_clear_answer(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    wrong = {}
    with port_of(app) as port:
        for name, (sent, status, said) in SENT.items():
            found, text = answer_of(port, sent)
            if found != status or said.encode() not in text or b"Traceback" in text:
                wrong[name] = (found, text)
        assert not wrong
        # One that is waited for as the header says, and one whose client goes away before its end
        with port.dial() as dialled:
            head, body = post(GOOD, f"{JSON}Expect: 100-continue\r\n").split(b"\r\n\r\n")
            dialled.sendall(head + b"\r\n\r\n")
            assert dialled.recv(1000).startswith(b"HTTP/1.1 100 ")
            dialled.sendall(body)
            assert dialled.recv(1000).startswith(b"HTTP/1.1 200 ")
        with port.dial() as dialled:
            dialled.sendall(post(named("half"))[:-3])
            dialled.shutdown(socket.SHUT_WR)
            assert b" 200 " not in dialled.recv(1000)
        registered = {name.decode() for name in valkey.client().hkeys(app.bridge.settings.lane.keys.consumers)}  # type: ignore[union-attr]
        assert registered == {"a", "b", "c", "odd"}
    app.bridge.client.close()


def test_odd_acknowledgements_and_receives_change_nothing(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    with port_of(app) as port:
        life = port.post(REGISTER, {"name": "h", "concurrency": 1}).body["incarnation"]
        one: dict[str, Any] = {"consumer": "h", "incarnation": life, "message_id": "1-1", "fence": 1, "outcome": "done"}
        acknowledged: list[tuple[Any, int]] = [
            (one, 404),
            ({**one, "message_id": "1-1@p3"}, 404),
            ({**one, "message_id": "1-1@g1p3"}, 404),
            # As a receive of CloudEvents has it.
            ({**one, "fence": "1"}, 404),
            ({**one, "consumer": "other"}, 404),
            ({**one, "incarnation": "0" * 32}, 404),
            ({**one, "incarnation": "*"}, 404),
            ({**one, "message_id": "1-" + "9" * 21}, 400),
            ({**one, "message_id": "\u0661-\u0661"}, 400),
            *(({**one, "fence": fence}, 400) for fence in (2**63 - 1, 2**64, -1, 0, 1.0, True, None)),
            *(({**one, "fence": fence}, 400) for fence in ("", "0", "-1", "1.0", " 1", "\u0661", "1" * 20, [1])),
            *(({**one, "outcome": "failed", "delay": delay}, 400) for delay in ("1", -1, 10**12, True)),
            ({**one, "outcome": "done", "error": "x"}, 400),
            ({**one, "outcome": "perhaps"}, 400),
            ({**one, "more": 1}, 400),
            ([], 400),
            ([one] * 1001, 400),
            ([[one]], 400),
        ]
        for body, status in acknowledged:
            assert port.post(ACKNOWLEDGE, body).status == status, body
        for number in ("NaN", "Infinity", "-Infinity"):
            text = json.dumps({**one, "outcome": "failed", "delay": 5}).replace('"delay": 5', f'"delay": {number}')
            assert port.post(ACKNOWLEDGE, raw=text.encode(), headers={"Content-Type": "application/json"}).status == 400
        results = port.post(ACKNOWLEDGE, [one, {**one, "incarnation": "0" * 32}, one]).body["results"]
        assert [result["status"] for result in results] == [404] * 3
        receive = "/api/messages/next?"
        for more in ("wait=nan", "wait=1e400", "wait=61", "wait=0x1", "max=0", "max=1001", "max=%D9%A1", "max=1.5",
                     "has=0", "has=", "has=" + "9" * 22, "has=1&" * 1001):  # fmt: skip
            assert port.get(f"{receive}consumer=h&incarnation={life}&{more}").status in (400, 404), more
        for whose, status in (("consumer=h&incarnation=", 400), (f"consumer=%00&incarnation={life}", 400),
                              (f"consumer=other&incarnation={life}", 404)):  # fmt: skip
            assert port.get(receive + whose).status == status, whose
        assert port.post("/api/consumers/h/heartbeat", {"incarnation": life}).body["wants"] == "go on"
    assert valkey.client().xlen(app.bridge.settings.lane.keys.outcomes) == 1  # it joined
    app.bridge.client.close()


def test_a_token_that_is_taken_away_ends_no_poll_and_allows_no_further_call(
    valkey: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_of(valkey.url)
    tokens = token_file(tmp_path, {"name": "old", "verbs": ["consume"]})
    with port_of(app, tokens=tokens) as port:
        port.token = secret_of("old")
        life = port.post(REGISTER, {"name": "h", "concurrency": 1}).body["incarnation"]
        path = f"/api/messages/next?consumer=h&incarnation={life}&wait=60"
        assert port.server is not None
        server = port.server
        with port.dial() as dialled:
            authorised = f"Host: localhost\r\nAuthorization: Bearer {port.token}\r\nConnection: close\r\n\r\n"
            dialled.sendall(f"GET {path} HTTP/1.1\r\n{authorised}".encode())
            wait_until(lambda: server.polls, description="the poll to wait")
            token_file(tmp_path, {"name": "new", "verbs": ["consume"]})
            port.server.reload()
            assert port.post("/api/consumers/h/heartbeat", {"incarnation": life}).status == 401
            port.token = secret_of("new")
            # The same consumer goes on with another token; its new receive ends the old one, which is answered.
            assert port.get(path.replace("wait=60", "wait=0.01")).body["messages"] == []
            assert dialled.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert port.post("/api/consumers/h/leave", {"incarnation": life}).status == 200
    app.bridge.client.close()


def test_a_parameter_that_a_route_does_not_have_is_refused_by_every_route(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    with port_of(app) as port:
        paths = port.get("/api/openapi.json").body["paths"]
        # A load balancer may add parameters of its own.
        assert port.get("/api/health?t=1").status == 200
        asked = [(m, path) for path, operations in paths.items() for m in operations if path != "/api/health"]
        assert len(asked) > 10
        for method, path in asked:
            # Before anything else of the request is read.
            answer = port.call(method.upper(), re.sub(r"{\w+}", "x", path) + "?nobody=1", {})
            assert (answer.status, answer.body["detail"][:40]) == (400, "query.nobody: there is no such parameter")
            assert [error["where"] for error in answer.body["errors"]] == ["query.nobody"], path
        with valkey.client() as client:
            assert client.dbsize() == 0
    app.bridge.client.close()


@pytest.mark.parametrize("bad", ["%FF", "a%C3", "%ED%A0%80", "%C0%80b"])
def test_what_is_not_utf_8_is_refused_by_every_route(valkey: EmbeddedServer, bad: str) -> None:
    # Else each of them would be the ticket, or the consumer, with the name U+FFFD
    app = app_of(valkey.url)
    app.tasks["shop.apply"].push("\ufffd", {"secret": 1})
    with port_of(app) as port:
        paths = port.get("/api/openapi.json").body["paths"]
        asked = [(m, path) for path, operations in paths.items() for m in operations if path != "/api/health"]
        assert len([path for _, path in asked if "{" in path]) >= 4
        for method, path in asked:
            answer = port.call(method.upper(), re.sub(r"{\w+}", "x", path) + f"?ticket={bad}", {})
            assert (answer.status, answer.body["detail"]) == (400, "query: it must be percent-encoded UTF-8"), path
            if "{" in path:
                answer = port.call(method.upper(), re.sub(r"{\w+}", bad, path), {})
                assert (answer.status, answer.body["detail"]) == (400, "path: it must be percent-encoded UTF-8"), path
        assert port.get("/api/pending?ticket=%ef%bf%bd").status == 200
    app.bridge.client.close()


def test_a_parameter_that_is_misspelt_or_given_twice_is_named(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    life = "consumer=h&incarnation=i"
    with port_of(app) as port:
        for path, detail in (
            ("/api/dead-letters?tickt=EE", "query.tickt: there is no such parameter; did you mean ticket?"),
            ("/api/status?a=1&a=2&b=%0A", "query.a: there is no such parameter; there is subscription, and 1 more"),
            ("/api/dead-letters?ticket=A&limit=1&ticket=B", "query.ticket: it is given twice"),
            ("/api/dead-letters?ticket=A&ticket=A&ticket=A", "query.ticket: it is given 3 times"),
            (f"/api/messages/next?{life}&max=1&max=2", "query.max: it is given twice"),
        ):
            answer = port.get(path)
            assert (answer.status, answer.body["detail"]) == (400, detail)
        none = port.post("/api/consumers/register?t=1", {})
        assert none.body["detail"] == "query.t: there is no such parameter; this route has none"
        # A list of fences, and what is percent-encoded.
        assert port.get(f"/api/messages/next?{life}&has=1&has=2").status == 404
        assert port.get("/api/dead-letters?%74icket=A&").status == 200
        many = port.get("/api/status?" + "&".join(f"a{n}" + "=" for n in range(1000)))
        assert (many.status, len(many.body["errors"])) == (400, 10)
        pushed = port.post("/api/messages?taks=shop.other", {"ticket_id": "A"})
        assert (pushed.status, "did you mean task?" in pushed.body["detail"]) == (400, True)
    app.bridge.client.close()
