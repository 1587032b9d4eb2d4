"""Tokens: who may call what, and which files of tokens are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.http.access import VARIABLE, Access
from bridge.http.options import HttpOptions, read_address
from bridge.http.serving import HttpServer
from bridge.routing.errors import ConfigurationError
from bridge.stack.embedded import EmbeddedServer
from tests.integration.http.http_port import Port, app_of, client_of, port_of, secret_of, token_file

GOOD = {"name": "a", "token": "t" * 30, "verbs": ["push"], "subscriptions": ["*"]}


def tokens_in(folder: Path) -> Path:
    return token_file(
        folder,
        {"name": "producer", "verbs": ["push"]},
        {"name": "reader", "verbs": ["read"]},
        {"name": "billing", "verbs": ["push"], "subscriptions": ["billing"]},
        {"name": "insider", "verbs": ["*"], "subscriptions": ["billing"]},
        {"name": "stranger", "verbs": ["*"], "subscriptions": ["nosuch"]},
        {
            "name": "hashed",
            "token": None,
            "sha256": hashlib.sha256(secret_of("hashed").encode()).hexdigest(),
            "verbs": ["*"],
        },
    )


@contextmanager
def port_with(server: EmbeddedServer, tokens: Path) -> Iterator[Port]:
    subscriptions = {"billing": {"task": "shop.apply"}, "stock": {"task": "shop.other"}}
    app = app_of(server.url, bridge_default_task=None, bridge_subscriptions=subscriptions)
    with port_of(app, tokens=tokens) as found:
        yield found
    app.bridge.client.close()


@pytest.fixture
def valkey(flushed: EmbeddedServer) -> EmbeddedServer:
    return flushed


@pytest.fixture(scope="module")
def kept_port(module_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    with port_with(module_server, tokens_in(tmp_path_factory.mktemp("tokens"))) as found:
        yield found


@pytest.fixture
def port(kept_port: Port, valkey: EmbeddedServer) -> Port:
    del valkey  # nothing is in it
    return client_of(kept_port)


def push(port: Port, name: str | None, task: str = "shop.apply") -> int:
    port.token = None if name is None else secret_of(name)
    return port.post("/api/messages", {"ticket_id": "T", "task": task}).status


def test_a_token_allows_its_verbs_and_its_subscriptions_and_no_others(port: Port) -> None:
    assert push(port, "producer") == 201
    assert push(port, "hashed") == 201
    assert push(port, "billing", "shop.apply") == 201
    assert push(port, "billing", "shop.other") == 403
    # A task that only consumers know may be one of any subscription.
    assert push(port, "billing", "shop.unknown") == 403
    assert push(port, "reader") == 403
    assert push(port, "nobody") == 401
    assert push(port, None) == 401


def register(subscription: str | None) -> tuple[str, str, Any]:
    return ("POST", "/api/consumers/register", {"name": "h1", "concurrency": 1, "subscription": subscription})


def view(name: str, subscription: str | None) -> tuple[str, str, Any]:
    return ("GET", f"/api/{name}" + ("" if subscription is None else f"?subscription={subscription}"), None)


CALLS: dict[str, Callable[[str | None], tuple[str, str, Any]]] = {
    "a push for an unknown task": lambda _wanted: ("POST", "/api/messages", {"ticket_id": "T", "task": "shop.unknown"}),
    "a push for a task of another subscription": lambda _wanted: (
        *("POST", "/api/messages"),
        {"ticket_id": "T", "task": "shop.other"},
    ),
    "a registration": register,
    **{name: partial(view, name) for name in ("status", "pending", "delayed", "dead-letters", "tickets/T")},
}


@pytest.mark.parametrize("wanted", [None, "nosuch", "billing"])
@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("name", ["insider", "stranger"])
def test_no_answer_names_a_subscription_that_the_token_may_not_use(
    port: Port, name: str, what: str, wanted: str | None
) -> None:
    port.token = secret_of(name)
    answer = port.call(*CALLS[what](wanted))
    assert "stock" not in json.dumps(answer.body)
    if name == "stranger" and wanted != "billing":
        assert "billing" not in json.dumps(answer.body)
    if what.startswith("a push"):
        assert answer.status == 403
    elif wanted is None:
        assert answer.status == (200 if what == "status" else 400)
    elif name == "insider":
        assert answer.status == 403 if wanted == "nosuch" else answer.status in (200, 404)
    else:
        assert answer.status == 404 if wanted == "nosuch" else answer.status == 403


def test_an_answer_does_not_name_the_only_subscription_either(valkey: EmbeddedServer, tmp_path: Path) -> None:
    app = app_of(valkey.url, bridge_default_task=None, bridge_subscriptions={"stock": {"task": "shop.other"}})
    with port_of(app, tokens=tokens_in(tmp_path)) as port:
        port.token = secret_of("stranger")
        for call in (register(None), view("pending", None)):
            answer = port.call(*call)
            assert (answer.status, "stock" in json.dumps(answer.body)) == (403, False)
    app.bridge.client.close()


@pytest.mark.parametrize("wanted", [None, "nosuch"])
def test_a_token_for_all_subscriptions_is_told_their_names(port: Port, wanted: str | None) -> None:
    port.token = secret_of("hashed")
    for method, path, body in (register(wanted), view("pending", wanted)):
        answer = port.call(method, path, body)
        assert (answer.status, "billing, stock" in answer.body["detail"]) == (404 if wanted else 400, True)


def test_without_a_token_only_health_and_the_description_answer(port: Port) -> None:
    assert port.get("/api/health").status == 200
    assert port.get("/api/openapi.json").status == 200
    answer = port.post("/api/messages", {"ticket_id": "T"})
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer " + "x" * 5000, "Bearer a b", "Bearer ü"]
)
def test_a_header_that_is_no_token_is_refused(port: Port, header: str) -> None:
    headers = {"Authorization": header}
    assert port.post("/api/messages", {"ticket_id": "T"}, headers=headers).status == 401


def test_with_tokens_the_server_may_have_any_name(port: Port) -> None:
    assert port.get("/api/health", headers={"Host": "bridge.example:8080"}).status == 200


def test_without_tokens_a_name_that_is_not_of_this_machine_is_refused(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    with port_of(app) as port:
        for host in ("evil.example", "127.0.0.1.evil.example", "192.0.2.1", "[2001:db8::1]:80", "0x7f.1"):
            assert port.get("/api/health", headers={"Host": host}).status == 421, host
        for host in ("localhost:8080", "127.0.0.1", "127.0.0.2:1", "[::1]:80", "LOCALHOST."):
            assert port.get("/api/health", headers={"Host": host}).status == 200, host
    app.bridge.client.close()


def test_the_file_is_read_again_and_a_bad_one_changes_nothing(valkey: EmbeddedServer, tmp_path: Path) -> None:
    file = tokens_in(tmp_path)
    with port_with(valkey, file) as port:
        assert port.server is not None
        before = file.read_text()
        file.write_text(json.dumps([{**GOOD, "name": "later", "token": secret_of("later")}]))
        port.server.reload()
        assert (push(port, "later"), push(port, "producer")) == (201, 401)
        for bad in ("[", "[]", json.dumps([{**GOOD, "token": "short"}])):
            file.write_text(bad)
            port.server.reload()
            assert push(port, "later") == 201
        file.write_text(before)
        port.server.reload()
        assert push(port, "producer") == 201


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "must be a list"),
        ("[]", "must be a list"),
        ("[3]", "token 1 must be an object"),
        ([{**GOOD, "name": ""}], "must have a name"),
        ([{**GOOD, "token": "short"}], "must have 22 to 512 characters, and this one has 5"),
        ([{**GOOD, "token": "t" * 513}], "513"),
        ([{**GOOD, "token": "with a space in it, and long"}], "printable ASCII"),
        ([{**GOOD, "token": None}], "either token or sha256"),
        ([{**GOOD, "sha256": "00"}], "either token or sha256"),
        ([{**GOOD, "token": None, "sha256": "00"}], "64 hexadecimal digits"),
        ([{**GOOD, "verbs": ["delete"]}], "verbs are push, consume, read and *, not 'delete'"),
        ([{**GOOD, "verbs": []}], "must have verbs"),
        ([{**GOOD, "verbs": "push"}], "must have verbs"),
        ([{"name": "a", "token": "t" * 30, "verbs": ["push"]}], "must have subscriptions"),
        ([{**GOOD, "verb": ["push"]}], "unknown member 'verb'"),
        ([GOOD, GOOD], "the same name"),
        ([GOOD, {**GOOD, "name": "b"}], "the same token"),
    ],
)
def test_a_file_that_cannot_work_is_refused_without_its_tokens(tmp_path: Path, text: Any, said: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(ConfigurationError) as caught:
        Access(file)
    assert said in str(caught.value)
    assert "ttttt" not in str(caught.value)
    assert "with a space" not in str(caught.value)


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = token_file(tmp_path, {"name": "a", "verbs": ["push"]})
    Access(file)
    assert "chmod 600" not in caplog.text
    file.chmod(0o644)
    Access(file)
    assert "can be read by other users: chmod 600" in caplog.text


def test_an_address_that_others_can_reach_needs_tokens(valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(valkey.url)
    options = HttpOptions(read_address("0.0.0.0:0"))
    with pytest.raises(ConfigurationError, match="needs tokens"):
        HttpServer(app, options)
    monkeypatch.setenv(VARIABLE, json.dumps([GOOD]))
    HttpServer(app, options).join()
