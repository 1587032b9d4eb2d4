"""One adopter's project at work: a server, a master and a worker as processes of its environment, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ProcessNode
from bridge.testing.waiting import wait_until
from tests.adopters.environments import Environment

PROJECTS = Path(__file__).parent / "projects"


class Stand:
    """Runs a project's programs in its folder, as its users do."""

    def __init__(
        self, project: str, environment: Environment, nodes: NodeYard, server: EmbeddedServer, stream: str, **env: str
    ) -> None:
        self.keys = LaneKeys(stream, "concurrency_stream_group")
        self.folder = PROJECTS / project
        self.environment = environment
        self.nodes = nodes
        self.redis: Redis = server.client(decode_responses=True)
        #: The empty PYTHONPATH prevents imports from this checkout.
        self.env = {"REDIS_URL": server.url, "PYTHONPATH": "", **env}

    def start(self, app: str, *worker_arguments: str) -> None:
        """Starts a master and a worker. Returns when the worker is registered."""
        self.program("master", "bridge", "-A", app, "run", ready_text="standing by")
        worker = self.program(
            "worker", "celery", "-A", app, "worker", "-n", "w1@%h", "-c", "2", "--loglevel=INFO",
            "--without-mingle", "--without-gossip", *worker_arguments,
        )  # fmt: skip

        def registered() -> bool:
            assert worker.running, f"the worker ended with {worker.exit_code}:\n{worker.log_tail()}"
            return bool(self.redis.hlen(self.keys.consumers))

        wait_until(registered, description="the worker to register", timeout_s=90)

    def program(self, name: str, command: str, *arguments: str, ready_text: str | None = None) -> ProcessNode:
        """Starts a program of the environment."""
        line = [self.environment.command(command), *arguments]
        return self.nodes.process(name, line, env=self.env, cwd=self.folder, ready_text=ready_text)

    def run(self, *arguments: str, timeout_s: float = 30) -> list[str]:
        """Runs the environment's Python to its end. Returns the printed lines."""
        node = self.program(f"python-{len(self.nodes.nodes)}", "python", *arguments)
        assert node.wait(timeout_s) == 0, node.log_tail()
        return node.logs().splitlines()

    def count(self, name: str) -> int:
        return int(self.redis.hget(self.keys.counts, name) or 0)

    def wait_done(self, count: int) -> None:
        """Waits until ``count`` messages are done; a dead one fails the test."""

        def ended() -> bool:
            assert not self.dead_letters(), self.dead_letters()
            return self.count("done") >= count

        wait_until(ended, description=f"{count} messages to be done", timeout_s=90)
        assert self.count("done") == count

    def dead_letters(self) -> list[dict[str, str]]:
        found: Any = self.redis.xrange(self.keys.dead)
        return [fields for _, fields in found]

    def log(self, ticket: str) -> list[str]:
        """The values that the effects of the ticket's tasks appended."""
        found: Any = self.redis.lrange(f"log:{ticket}", 0, -1)
        return list(found)
