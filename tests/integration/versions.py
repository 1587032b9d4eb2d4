"""A chain of versions for integration tests: what they do to it, and what they check when it is at rest."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.partitions import partition_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK
from tests.keycheck import check_keys

APP = "tests.apps.versions"
GROUP = "concurrency_stream_group"
#: Version -> its stream.
STREAMS = {"v1": "orders", "v2": "orders:v2", "v3": "orders:v3"}
#: The settings of an app of before the deploy, and of one with three versions.
ONLY_V1: dict[str, Any] = {"bridge_stream": "orders", "bridge_follows": [], "bridge_default_task": "versions.v1"}
THREE: dict[str, Any] = {
    "bridge_stream": "orders:v3",
    "bridge_default_task": "versions.v3",
    "bridge_follows": [
        {"stream": "orders", "task": "versions.v1"},
        {"stream": "orders:v2", "task": "versions.v2"},
    ],
}


class Versions:
    """The lanes of `tests.apps.versions` on the test's own server. ``conf`` has the settings of all its processes."""

    def __init__(
        self, nodes: NodeYard, server: EmbeddedServer, folder: Path, conf: dict[str, Any] | None = None
    ) -> None:
        self.nodes = nodes
        self.conf = conf or {}
        self.url = server.url
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self.redis: Redis = server.client(decode_responses=True)
        self.keys = {version: LaneKeys(stream, GROUP) for version, stream in STREAMS.items()}
        #: (ticket, version) -> numbers pushed.
        self.pushed: dict[tuple[str, str], list[int]] = defaultdict(list)
        #: (ticket, version, number) -> when it was in the stream, Unix µs by the server's clock.
        self.pushed_us: dict[tuple[str, str, int], int] = {}

    def _env(self, conf: dict[str, Any]) -> dict[str, str]:
        return {"VERSIONS_LEDGER": str(self.ledger), "VERSIONS_CONF": json.dumps({**self.conf, **conf})}

    def worker(self, name: str, *, wait: bool = True, **conf: Any) -> WorkerNode:
        arguments = ("--concurrency=2", *QUICK)
        return self.nodes.worker(name, app=APP, arguments=arguments, env=self._env(conf), wait=wait)

    def master(self, name: str, *, wait: bool = True, **conf: Any) -> MasterNode:
        return self.nodes.master(name, app=APP, env=self._env(conf), ready_text="standing by", wait=wait)

    def wait_for_lanes(self, partitions: int) -> None:
        """Waits until each partition of both versions is led."""
        keys = [LaneKeys(f"{STREAMS[version]}:p{n}", GROUP) for version in ("v1", "v2") for n in range(partitions)]
        wait_until(lambda: self.redis.exists(*(one.leader for one in keys)) == len(keys), description="leaders")

    def push_split(self, version: str, ticket: str, partitions: int, **payload: Any) -> None:
        """Adds a message to the ticket's partition."""
        self.push(version, ticket, f"{STREAMS[version]}:p{partition_of(ticket, partitions)}", **payload)

    def push(self, version: str, ticket: str, stream: str = "", **payload: Any) -> str:
        numbers = self.pushed[ticket, version]
        numbers.append(len(numbers))
        fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": numbers[-1], **payload})}
        id_ = str(self.redis.xadd(stream or STREAMS[version], fields))
        self.pushed_us[ticket, version, numbers[-1]] = int(id_.split("-", maxsplit=1)[0]) * 1000
        return id_

    def open(self, gate: str) -> None:
        """Lets messages go on that were pushed with this ``gate``."""
        (self.ledger / gate).touch()

    def operate(self, *arguments: str, code: int = 0, **conf: Any) -> str:
        """Runs a command. Returns its output, or its error when it ends with another code than 0."""
        env = {**os.environ, **broker_environment(self.url), **self._env(conf)}
        done = preloaded.run(python_module("bridge", "-A", APP, *arguments), cwd=ROOT, env=env)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stderr if code else done.stdout

    def why(self, ticket: str, **conf: Any) -> str:
        """Why the ticket does not move, by the command."""
        found: str = json.loads(self.operate("ticket", "show", ticket, "--json", **conf))["why"]
        return found

    def status(self, **conf: Any) -> str:
        """What `bridge status` prints, in lines that are not folded."""
        return self.operate("status", **conf)

    def count(self, version: str, counter: str = "done") -> int:
        return int(self.redis.hget(self.keys[version].counts, counter) or 0)

    def wait_ended(self, version: str, count: int, timeout_s: float = 30) -> None:
        """Waits until so many messages are done or dead."""
        wait_until(
            lambda: self.count(version) + self.count(version, "dead") >= count,
            description=f"{count} messages of {version} to be done or dead",
            timeout_s=timeout_s,
        )

    def wait_all(self, timeout_s: float = 60) -> None:
        """Waits until all pushed messages are done or dead."""
        for version in STREAMS:
            if count := sum(len(numbers) for (_, of), numbers in self.pushed.items() if of == version):
                self.wait_ended(version, count, timeout_s)

    def wait_leader(self, version: str) -> str:
        return str(wait_until(lambda: self.redis.get(self.keys[version].leader), description=f"a leader of {version}"))

    def log(self, ticket: str) -> list[str]:
        """What succeeded, in order."""
        found: Any = self.redis.lrange(f"log:{ticket}", 0, -1)
        return list(found)

    def executions(self, ticket: str) -> list[tuple[int, int, str, int, int, str]]:
        """(began, ended, version, n, fence, how it ended) of each execution, by the ledger. One that was cut off ended
        when it began.
        """
        found = []
        for path in self.ledger.glob("*.jsonl"):
            open_: dict[int, tuple[int, str, int]] = {}
            for line in path.read_text().splitlines():
                kind, name, version, n, fence, at, _pid = json.loads(line)
                if name != ticket:
                    continue
                if kind == "start":
                    open_[fence] = (at, version, n)
                else:
                    found.append((open_.pop(fence)[0], at, version, n, fence, kind))
            found += [(at, at, version, n, fence, "cut off") for fence, (at, version, n) in open_.items()]
        return sorted(found)

    def started(self, ticket: str) -> list[str]:
        return [f"{version}:{n}" for _, _, version, n, _, _ in self.executions(ticket)]

    def check_one_at_a_time(self) -> None:
        """No two executions of one ticket overlapped, and its fences grew over all versions."""
        for ticket in sorted({ticket for ticket, _ in self.pushed}):
            last_end = last_fence = 0
            for began, ended, version, n, fence, _ in self.executions(ticket):
                assert began >= last_end, f"{ticket}: {version}:{n} began before the execution before it ended"
                assert fence > last_fence, f"{ticket}: the fence of {version}:{n} did not grow"
                last_end, last_fence = ended, fence

    def check_each_version_in_order(self) -> None:
        for (ticket, version), numbers in self.pushed.items():
            found = [int(entry.split(":")[1]) for entry in self.log(ticket) if entry.startswith(f"{version}:")]
            assert found == [n for n in numbers if n in found], f"{ticket}: {version} in the order {found}"

    def check_older_first(self) -> None:
        """When a message was dispatched, each message of its ticket in an older version was over, or not pushed yet.

        A fence is the server's clock in µs when its run was dispatched.
        """
        runs = 0
        for ticket in sorted({ticket for ticket, _ in self.pushed}):
            executions = self.executions(ticket)
            last_end = {(version, n): ended for _, ended, version, n, _, _ in executions}
            for began, _, version, n, fence, _ in executions:
                for older in sorted(STREAMS):
                    for other in self.pushed[ticket, older] if older < version else ():
                        runs += 1
                        if self.pushed_us[ticket, older, other] + 2000 < fence:
                            ended = last_end.get((older, other))
                            assert ended is not None, f"{ticket}: {version}:{n} ran, and {older}:{other} never did"
                            assert ended <= began, f"{ticket}: {version}:{n} began before {older}:{other} was over"
        assert runs, "no ticket had messages of two versions"

    def check_at_rest(self) -> None:
        """Nothing is undone, and each key has an owner."""
        versions = {version for _, version in self.pushed}
        for version in versions:
            keys = self.keys[version]
            wait_until(lambda keys=keys: self.redis.xlen(keys.outcomes) == 0, description="settled outcomes")  # type: ignore[misc]
            assert self.redis.hgetall(keys.tickets) == {}
            pending: Any = self.redis.xpending(keys.stream, keys.group)
            assert pending["pending"] == 0
        check_keys(self.redis, *self.keys.values(), allowed=("log:*", "_kombu*", "unacked*", "celery*"))


def check(chain: Versions) -> None:
    """What holds when a chain is at rest."""
    chain.check_one_at_a_time()
    chain.check_older_first()
    chain.check_each_version_in_order()
    chain.check_at_rest()
