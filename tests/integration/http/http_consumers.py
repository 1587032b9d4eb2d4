"""HTTP consumers for integration tests: a lane whose masters have a port, and the calls of a consumer."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: In seconds: longer than a test on a loaded machine takes between two calls of a consumer.
LONG_LEASE = "60"
#: For tests in which a lease ends.
SHORT_LEASE = {"COUNTER_LEASE": "2"}


@dataclass(frozen=True)
class Answer:
    """The answer to one call."""

    status: int
    body: Any


def call(port: int, method: str, path: str, body: Any = None, *, timeout_s: float = 60) -> Answer:
    """One call of a master's port, over a connection of its own."""
    connection = HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Answer(response.status, json.loads(response.read()))
    finally:
        connection.close()


def handler_command(name: str, concurrency: int, *urls: str) -> list[str]:
    """Starts `tests.apps.http_handler`, in a form that a node forks: its imports take longer than its work."""
    code = "from tests.apps.http_handler import main; main()"
    return [sys.executable, "-c", code, name, str(concurrency), *urls]


class HttpLane(LaneUnderTest):
    """A lane whose masters have ports."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path, **env: str) -> None:
        super().__init__(nodes, server, folder, **{"COUNTER_LEASE": LONG_LEASE, **env})
        self.ports: dict[str, int] = {}

    def master(self, name: str, *arguments: str, wait: bool = True, **env: str) -> MasterNode:
        self.ports[name] = free_port()
        return super().master(name, *arguments, "--http", f"{HOST}:{self.ports[name]}", wait=wait, **env)

    def end_test(self) -> None:
        """Lets all consumers leave."""
        found: Any = self.redis.hgetall(self.keys.consumers)
        for name, text in found.items():
            HttpConsumerUnderTest(name, 1, self.ports["m1"], incarnation=json.loads(text)["incarnation"]).leave()
        wait_until(lambda: not self.redis.exists(self.keys.consumers), description="all consumers to leave")

    def consumer(self, name: str, concurrency: int = 1, *, master: str = "m1", **more: Any) -> HttpConsumerUnderTest:
        """A registered consumer that calls ``master``."""
        consumer = HttpConsumerUnderTest(name, concurrency, self.ports[master], more)
        consumer.register()
        return consumer


@dataclass
class HttpConsumerUnderTest:
    """The calls of one HTTP consumer. They go to the port ``port``, which may change."""

    name: str
    concurrency: int
    port: int
    more: dict[str, Any] = field(default_factory=dict)
    incarnation: str = ""

    def register(self) -> Answer:
        answer = self.ask_to_register()
        assert answer.status == 200, answer
        return answer

    def ask_to_register(self) -> Answer:
        """Registers, if the port lets it."""
        body = {"name": self.name, "concurrency": self.concurrency, **self.more}
        answer = call(self.port, "POST", "/api/consumers/register", body)
        if answer.status == 200:
            self.incarnation = answer.body["incarnation"]
        return answer

    def heartbeat(self) -> Answer:
        return call(self.port, "POST", f"/api/consumers/{self.name}/heartbeat", {"incarnation": self.incarnation})

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Renews the lease within the block, on a thread."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(0.4):
                self.heartbeat()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def leave(self) -> Answer:
        return call(self.port, "POST", f"/api/consumers/{self.name}/leave", {"incarnation": self.incarnation})

    def ask(self, most: int = 1, wait: float = 0, has: tuple[int, ...] = ()) -> Answer:
        query: list[tuple[str, Any]] = [("consumer", self.name), ("incarnation", self.incarnation)]
        query += [("max", most), ("wait", wait), *(("has", fence) for fence in has)]
        return call(self.port, "GET", f"/api/messages/next?{urlencode(query)}", timeout_s=wait + 60)

    def next(self, most: int = 1, wait: float = 30, has: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        answer = self.ask(most, wait, has)
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.body["messages"]
        return found

    def one(self, wait: float = 30) -> dict[str, Any]:
        """The only message that it gets."""
        [message] = self.next(1, wait)
        return message

    def item(self, message: dict[str, Any], outcome: str = "done", **more: Any) -> dict[str, Any]:
        return {
            "consumer": self.name,
            "incarnation": self.incarnation,
            "message_id": message["message_id"],
            "fence": message["fence"],
            "outcome": outcome,
            **more,
        }

    def acknowledge(self, message: dict[str, Any], outcome: str = "done", **more: Any) -> Answer:
        return call(self.port, "POST", "/api/messages/acknowledge", self.item(message, outcome, **more))

    def acknowledge_all(self, items: list[dict[str, Any]]) -> list[int]:
        """The status of each item."""
        answer = call(self.port, "POST", "/api/messages/acknowledge", items)
        assert answer.status == 200, answer
        return [one["status"] for one in answer.body["results"]]

    def extend(self, message: dict[str, Any]) -> Answer:
        body = self.item(message)
        del body["outcome"]
        return call(self.port, "POST", "/api/messages/extend", body)
