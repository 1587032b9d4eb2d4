"""A lane for integration tests: what they do to it, and what they check when it is at rest."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest
from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, Node, NodeYard, WorkerNode
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import WaitTimeout, wait_until

APP = "tests.apps.counter"
#: Values of `bridge_bundle_ms`: the default, and off.
WITH_AND_WITHOUT_BUNDLES = [
    pytest.param("10", id="bundles"),
    pytest.param("0", id="plain", marks=pytest.mark.long),
]
#: The fixtures of the two servers.
OF_EACH_SERVER = [pytest.param("valkey"), pytest.param("redis6", marks=pytest.mark.long)]
#: Without these, a worker's start takes a second longer.
QUICK = ("--without-mingle", "--without-gossip")
#: The keys in which tasks of the tests' apps leave something, and Celery the results.
OF_TASKS = ("log:*", "sum:*", "a-string:*", "undone:*", "state undone:*", "celery-task-meta-*")
#: How long a lane that is kept may need after a test until it is at rest, in seconds.
REST_S = 5.0


class LaneUnderTest:
    """A lane of `tests.apps.counter` on the test's own server."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path, **env: str) -> None:
        self.nodes = nodes
        self.server = server
        self.keys = LaneKeys("ticket_stream", "concurrency_stream_group")
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self.env = {"COUNTER_LEDGER": str(self.ledger), **env}
        self.redis: Redis = server.client(decode_responses=True)

    def worker(self, name: str, *arguments: str, wait: bool = True, **env: str) -> WorkerNode:
        arguments = arguments or ("--concurrency=2",)
        return self.nodes.worker(name, app=APP, arguments=(*arguments, *QUICK), env={**self.env, **env}, wait=wait)

    def master(self, name: str, *arguments: str, wait: bool = True, **env: str) -> MasterNode:
        return self.nodes.master(
            name, app=APP, arguments=arguments, env={**self.env, **env}, ready_text="standing by", wait=wait
        )

    def push(self, ticket: str, payload: Any, task: str | None = None) -> str:
        fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps(payload)}
        if task is not None:
            fields["task"] = task
        id_: Any = self.redis.xadd(self.keys.stream, fields)
        return str(id_)

    def push_many(self, tickets: int, each: int, *, ms: float = 0, first: int = 0, gate: str = "") -> None:
        """Pushes ``each`` numbered messages of every ticket, the tickets in turn.

        ``gate``: the message in the middle of each ticket waits for this gate (`open`). So the load has no end before.
        """
        with self.redis.pipeline(transaction=False) as pipe:
            for n in range(first, first + each):
                held = bool(gate) and n == first + each // 2
                payload: dict[str, Any] = {"n": n, "gate": gate} if held else {"n": n, "ms": ms}
                fields: dict[Any, Any] = {"payload": json.dumps(payload)} | ({"task": "counter.held"} if held else {})
                for ticket in range(tickets):
                    pipe.xadd(self.keys.stream, {"ticket_id": f"T{ticket}", **fields})
            pipe.execute()

    def open(self, gate: str) -> None:
        """Lets the tasks go on that wait at this gate."""
        (self.ledger / gate).touch()

    def held(self) -> list[tuple[str, int]]:
        """(ticket, process) of each execution that came to a gate."""
        parts = [path.stem.split("-") for path in self.ledger.glob("held-*")]
        return [("-".join(names), int(pid)) for _, *names, _n, pid in parts]

    def count(self, name: str) -> int:
        return int(self.redis.hget(self.keys.counts, name) or 0)

    def executions(self) -> int:
        """How many executions began, by the ledger of the tasks."""
        return sum(path.read_text().count('["start"') for path in self.ledger.glob("*.jsonl"))

    def in_flight(self, consumer: str) -> list[str]:
        """The ids of the messages that are pending under the name of a consumer, or of the master."""
        found: Any = self.redis.xpending_range(self.keys.stream, self.keys.group, "-", "+", 100, consumername=consumer)
        return [entry["message_id"] for entry in found]

    def log(self, ticket: str) -> list[int]:
        """The numbers that the effects of the ticket's tasks appended."""
        found: Any = self.redis.lrange(f"log:{ticket}", 0, -1)
        return [int(n) for n in found]

    def wait_done(self, count: int, timeout_s: float = 30) -> None:
        """Waits until ``count`` messages are done or dead. ``timeout_s``: longest time without any progress."""

        def ended() -> int:
            found: Any = self.redis.hmget(self.keys.counts, "done", "dead")
            return sum(int(count or 0) for count in found)

        while (before := ended()) < count:
            wait_until(
                lambda before=before: ended() > before,  # type: ignore[misc]
                description=f"{count} messages to be done or dead: it stands still at {before}",
                timeout_s=timeout_s,
            )

    def wait_consumers(self, count: int) -> None:
        wait_until(
            lambda: self.redis.hlen(self.keys.consumers) == count,
            description=f"{count} registered consumers",
            timeout_s=90,
        )

    def wait_known(self, master: MasterNode, *workers: WorkerNode) -> None:
        """Waits until the leader knows the workers, which is a moment after they registered. Orders need that."""
        for worker in workers:
            master.wait_for_log(f"consumer {worker.hostname()} is here", timeout=30)

    def wait_leader(self) -> str:
        return str(wait_until(lambda: self.redis.get(self.keys.leader), description="a leader"))

    def dead_letters(self) -> list[dict[str, str]]:
        found: Any = self.redis.xrange(self.keys.dead)
        return [fields for _, fields in found]

    def is_at_rest(self) -> bool:
        """The same as `assert_at_rest` checks, and no delayed message."""
        pending: Any = self.redis.xpending(self.keys.stream, self.keys.group)
        keys = self.keys
        left = (keys.tickets, keys.applied, keys.retries, keys.delayed, keys.late, keys.holding)
        return not (pending["pending"] or self.redis.xlen(keys.outcomes) or self.redis.exists(*left))

    def assert_at_rest(self) -> None:
        """Nothing is pending, in flight, awaiting a retry, or left in the outcome stream."""
        wait_until(lambda: self.redis.xlen(self.keys.outcomes) == 0, description="all outcomes to be settled")
        pending: Any = self.redis.xpending(self.keys.stream, self.keys.group)
        assert pending["pending"] == 0
        assert self.redis.hgetall(self.keys.tickets) == {}
        assert self.redis.hgetall(self.keys.applied) == {}
        assert self.redis.zcard(self.keys.retries) == 0

    def assert_logs(self, tickets: int, each: int) -> None:
        """The effects of every ticket are all there, once, in order."""
        wrong = {}
        for ticket in range(tickets):
            found = self.log(f"T{ticket}")
            if found != list(range(each)):
                wrong[f"T{ticket}"] = found
        assert not wrong

    def assert_no_overlap(self) -> None:
        """No two executions of one ticket ran at the same time, and they began in order.

        An execution without an end was cut off with its process. Its end is not known and is taken as its start, so
        only executions with an end are checked.
        """
        executions: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for path in self.ledger.glob("*.jsonl"):
            open_: dict[tuple[str, int], tuple[int, int]] = {}
            for line in path.read_text().splitlines():
                kind, ticket, n, fence, _attempt, at, _pid = json.loads(line)
                if kind == "start":
                    open_[ticket, fence] = (at, n)
                else:
                    began, _ = open_.pop((ticket, fence))
                    executions[ticket].append((began, at, n, fence))
            for (ticket, fence), (began, n) in open_.items():
                executions[ticket].append((began, began, n, fence))
        assert executions, "the ledger is empty"
        for ticket, found in executions.items():
            found.sort()
            for (_, end, n, fence), (began, _, next_n, next_fence) in pairwise(found):
                assert began >= end, f"{ticket}: {next_n} began before {n} ended"
                assert next_n in (n, n + 1), f"{ticket}: {next_n} follows {n}"
                assert next_fence > fence, f"{ticket}: fence {next_fence} follows {fence}"

    def end_test(self) -> None:
        """Ends what a test has made beside messages, before the lane goes on to the next test."""

    def forget(self) -> None:
        """Removes what earlier tests left that a test may look at. For a lane at rest."""
        patterns = (*OF_TASKS, self.keys.state("*"))
        found = [key for pattern in patterns for key in self.redis.scan_iter(pattern, count=1000)]
        self.redis.delete(self.keys.counts, self.keys.dead, *found)
        for path in self.ledger.iterdir():
            path.unlink()


def begun(nodes: NodeYard, server: EmbeddedServer, folder: Path, **env: str) -> LaneUnderTest:
    """A lane with a master and a worker."""
    lane = LaneUnderTest(nodes, server, folder, **env)
    lane.master("m1")
    lane.worker("w1")
    lane.wait_consumers(1)
    return lane


class Keepable(Protocol):
    """A lane, or several, as `Kept` needs it."""

    @property
    def nodes(self) -> NodeYard: ...
    def end_test(self) -> None: ...
    def is_at_rest(self) -> bool: ...
    def forget(self) -> None: ...


K = TypeVar("K", bound=Keepable)


class Kept(Generic[K]):
    """A lane that goes from test to test with its server and its nodes, since their starts take longer than most tests.

    The next test gets it without the traces of the one before (`forget`). It gets a new one if that test has ended or
    added a master or a worker, or if it did not leave the lane at rest.
    """

    def __init__(
        self,
        valkey_binary: Path,
        folders: pytest.TempPathFactory,
        begin: Callable[[NodeYard, EmbeddedServer, Path], K],
    ) -> None:
        """``begin`` makes the lane and starts its nodes."""
        self._binary = valkey_binary
        self._folders = folders
        self._begin = begin
        self._parts = ExitStack()
        self._lane: K | None = None
        self._nodes: list[Node] = []

    def lend(self) -> Iterator[K]:
        """The lane for one test, as a fixture yields it. Then prints what the nodes logged: pytest shows it for a test
        that failed.
        """
        lane = self._next()
        yield lane
        for node in lane.nodes.nodes:
            print(f"--- {node!r}\n{node.log_tail()}")

    def _next(self) -> K:
        if self._lane is not None and self._is_as_given(self._lane):
            self._lane.forget()
            return self._lane
        self.close()
        folder = self._folders.mktemp("kept")
        server = EmbeddedServer(binary=self._binary, data_dir=folder / "server", fsync="no")
        self._parts.enter_context(server)
        yard = self._parts.enter_context(closing(ProcessYard(folder, server.url)))
        self._lane = self._begin(yard, server, folder)
        self._nodes = [*yard.masters(), *yard.workers()]
        return self._lane

    def _is_as_given(self, lane: K) -> bool:
        nodes = lane.nodes
        if [*nodes.masters(), *nodes.workers()] != self._nodes:
            return False
        # A test may have run other programs.
        if any(node.running != (node in self._nodes) for node in nodes.nodes):
            return False
        lane.end_test()
        try:
            wait_until(lane.is_at_rest, description="a lane at rest", timeout_s=REST_S)
        except WaitTimeout:
            return False
        return True

    def close(self) -> None:
        """The next test gets a new lane."""
        self._lane = None
        self._parts.close()


def kept_in_each_mode(**env: str) -> Any:
    """The fixture of a module: a lane that is kept, with and without bundles. ``env``: of its master and its worker."""

    @pytest.fixture(scope="module", params=WITH_AND_WITHOUT_BUNDLES)
    def kept(
        request: pytest.FixtureRequest, valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Kept[LaneUnderTest]]:
        begin = partial(begun, **{"COUNTER_BUNDLE_MS": request.param, **env})
        with closing(Kept(valkey_binary, tmp_path_factory, begin)) as made:
            yield made

    return kept
