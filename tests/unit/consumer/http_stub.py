"""A master that is a stub, for consumers over HTTP. Its clock is far from this machine's."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
        #: Not set: a registration waits, as for an older lease.
        self.enlists = threading.Event()
        self.enlists.set()
        #: Not set: the good-bye waits for its answer.
        self.leaves = threading.Event()
        self.leaves.set()
        #: Set: a heartbeat is answered. Until then its answer comes byte by byte.
        self.answers = threading.Event()
        self.answers.set()
        #: Not set: it answers nothing, as a process that is frozen.
        self.thawed = threading.Event()
        self.thawed.set()
        #: A long poll without messages ends when this is set.
        self.arrived = threading.Event()
        self.polls = threading.Event()
        self.left = threading.Event()
        #: A larger body ends the connection, as one that is refused before it was read.
        self.most_bytes = 1 << 60
        #: Of the last call.
        self.path = ""
        self.authorization = ""
        #: The answer, if it is no JSON.
        self.text = b""
        #: The end of a path -> what a gateway before it answers to the next calls in its place.
        self.gateway: dict[str, list[int]] = {}
        #: Outcomes of one call, for each call.
        self.calls: list[int] = []

    def add(self, ticket: str, **options: int) -> None:
        number = len(self.messages) + 1
        message = {"ticket_id": ticket, "message_id": f"{number}-0", "fence": number, "attempt": 1, "task": "t"}
        more = {"options": options} if options else {}
        self.messages.append({**message, "payload": {}, "deadline_ms": NOW_MS + LEASE_MS, **more})

    def answer(self, path: str, body: Any) -> Any:
        if path.endswith("/register"):
            self.registered.set()
            self.enlists.wait()
            return {"incarnation": "i", "lease_ms": self.lease_ms}
        if path.endswith("/heartbeat"):
            return {"wants": self.wants, "lease_ms": self.lease_ms}
        if "/next" in path:
            query = parse_qs(urlsplit(path).query)
            wait_s, has = float(query["wait"][0]), {int(fence) for fence in query.get("has", ())}
            if wait_s and not self.messages:
                self.polls.set()
                self.arrived.wait(wait_s)
            given = [
                message
                for message in self.messages
                if message["message_id"] not in self.outcomes and message["fence"] not in has
            ]
            return {"messages": given, "lease_ms": LEASE_MS}
        if path.endswith("/acknowledge"):
            self.calls.append(len(body))
            self.outcomes |= {item["message_id"]: item for item in body}
            return {"results": [{"message_id": item["message_id"], "status": 200} for item in body]}
        if path.endswith("/leave"):
            self.left.set()
            self.leaves.wait()
        return {"status": "left"}


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """The URL of a server that answers as ``stub`` does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            # The client may have gone on to another master.
            with suppress(ConnectionError):
                self.answer()

        def answer(self) -> None:
            stub.thawed.wait()
            size = int(self.headers.get("Content-Length") or 0)
            if size > stub.most_bytes:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            text = self.rfile.read(size)
            stub.path = self.path
            stub.authorization = self.headers.get("Authorization") or ""
            status = next((said.pop(0) for end, said in stub.gateway.items() if said and end in self.path), 0)
            if status:
                answer = b'{"message": "not now"}'
            else:
                answer = stub.text or json.dumps(stub.answer(self.path, json.loads(text) if text else None)).encode()
            self.send_response(status or (stub.status if self.path.endswith("/heartbeat") else 200))
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

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            stub.thawed.set()
            stub.enlists.set()
            stub.leaves.set()
            stub.arrived.set()
            server.shutdown()
            thread.join()
