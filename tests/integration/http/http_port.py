"""A port within the process of a test, without a master, and a client for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from celery import Celery

import bridge
from bridge.http.options import Certificate, HttpOptions, read_address
from bridge.http.serving import HttpServer
from bridge.stack.ports import HOST

STREAM = "ticket_stream"
#: Of tokens that tests use: long enough.
SECRET = "secret-{}-0123456789abcdef"


def app_of(url: str, **conf: Any) -> Celery:
    """An app with the task ``shop.apply``, which is the default, and ``shop.other``."""
    app = Celery("http-test", broker=url, set_as_current=False)
    app.conf.update({"bridge_default_task": "shop.apply", **conf})
    bridge.install(app)

    def apply(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    for name in ("shop.apply", "shop.other"):
        app.task(bind=True, name=name, lazy=False, shared=False)(apply)
    return app


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass
class Port:
    """A client of a port. ``token``: sent with each request."""

    number: int
    token: str | None = None
    server: HttpServer | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> Answer:
        connection = HTTPConnection(HOST, self.number, timeout=timeout_s)
        sent = dict(self.headers)
        if body is not None:
            raw = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        sent.update(headers or {})
        try:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, found, json.loads(text) if text else None)
        if answer.status >= 400:
            assert found["content-type"] == "application/problem+json", answer
            assert answer.body["status"] == answer.status
            assert "Traceback" not in text.decode()
        return answer

    def get(self, path: str, **options: Any) -> Answer:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("POST", path, body, **options)

    def dial(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection((HOST, self.number), timeout=60)


@contextmanager
def port_of(
    app: Celery, *, tokens: Path | None = None, certificate: Certificate | None = None, address: str = f"{HOST}:0"
) -> Iterator[Port]:
    """Serves ``app`` within the block."""
    server = HttpServer(app, HttpOptions(read_address(address), tokens, certificate))
    server.start()
    try:
        yield Port(server.port, server=server)
    finally:
        server.stop()
        server.join()


def client_of(port: Port) -> Port:
    """A client of the same port without a token, for one test."""
    return Port(port.number, server=port.server)


def token_file(folder: Path, *entries: Mapping[str, Any]) -> Path:
    """A file of tokens. The token of NAME is `secret_of` NAME."""
    file = folder / "tokens.json"
    full = [{"token": secret_of(entry["name"]), "subscriptions": ["*"], **entry} for entry in entries]
    file.write_text(json.dumps(full), encoding="utf-8")
    file.chmod(0o600)
    return file


def secret_of(name: str) -> str:
    return SECRET.format(name)
