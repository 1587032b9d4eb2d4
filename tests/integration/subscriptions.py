"""The lanes of `tests.apps.subscribers`, an app with several subscriptions, with real masters and workers."""

from __future__ import annotations

import json
import os
from typing import Any

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import wait_until

APP = "tests.apps.subscribers"
NAMES = ("billing", "search", "trail")


class Subscriptions:
    """The lanes of `tests.apps.subscribers` on the test's own server."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer) -> None:
        self.nodes = nodes
        self.url = server.url
        self.redis: Any = server.client(decode_responses=True)
        self.keys = {name: LaneKeys("ticket_stream", name) for name in NAMES}

    def worker(self, name: str, **env: str) -> Any:
        return self.nodes.worker(name, app=APP, arguments=("--concurrency=2", "--without-mingle"), env=env)

    def master(self, name: str, **env: str) -> Any:
        return self.nodes.master(name, app=APP, env=env, ready_text="standing by")

    def push(self, ticket: str, n: int, task: str = "", **more: Any) -> str:
        fields = {"ticket_id": ticket, "payload": json.dumps({"n": n, **more})}
        if task:
            fields["task"] = task
        return str(self.redis.xadd("ticket_stream", fields))

    def count(self, name: str, counter: str = "done") -> int:
        return int(self.redis.hget(self.keys[name].counts, counter) or 0)

    def wait(self, **done: int) -> None:
        for name, count in done.items():
            wait_until(lambda name=name, count=count: self.count(name) >= count, description=f"{name}: {count} done")  # type: ignore[misc]

    def oldest_s(self, name: str) -> float:
        """The age of the oldest message that was read and is not done."""
        first = self.redis.xpending("ticket_stream", name)["min"]
        seconds, micros = self.redis.time()
        return seconds + micros / 1e6 - int(first.partition("-")[0]) / 1000 if first else 0.0

    def bridge(self, *arguments: str, **env: str) -> Any:
        """A command that has ended."""
        full = {**os.environ, **broker_environment(self.url), "PYTHONPATH": str(ROOT), **env}
        return preloaded.run(python_module("bridge", "-A", APP, *arguments), cwd=ROOT, env=full)

    def looks(self) -> int:
        """How often leaders have compared their lanes with a limit of the lag in bytes."""
        return int(self.redis.info("commandstats")["cmdstat_memory|usage"]["calls"])

    def log(self, name: str, ticket: str) -> list[int]:
        return [int(n) for n in self.redis.lrange(f"{name}:{ticket}", 0, -1)]
