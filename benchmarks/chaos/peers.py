"""The peers under chaos: how each is started, and how a message is put where it takes it from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as python_version
from typing import Any

from celery import Celery

from benchmarks.apps.chaos_names import LOCKS
from benchmarks.feed import Item, queue_of
from benchmarks.peers.node import FOLDER, NotInstalled, node
from benchmarks.peers.node import version as node_version
from benchmarks.stack import KEYS, Stack

#: Worker processes, and tasks that each runs at once.
WORKERS = 3
SLOTS = 2

#: Puts messages where the peer takes them from; returns when the server has them.
Push = Callable[[Sequence[Item]], None]


@dataclass(frozen=True)
class Part:
    """One process of a peer: its role, and its command."""

    role: str
    arguments: tuple[str, ...]
    program: str = sys.executable


@dataclass(frozen=True)
class Peer:
    """``parts``: the processes that are kept alive. ``environment``: further variables of theirs."""

    title: str
    parts: Callable[[], list[Part]]
    producer: Callable[[Stack], Push]
    environment: dict[str, str] = field(default_factory=dict)
    #: The package from npm that it needs.
    package: str = ""
    #: The package from PyPI that it needs.
    extra: str = ""

    def version(self) -> str:
        """The version of the package that the peer needs; empty: it needs none. Raises `NotInstalled`."""
        if self.package:
            return f"{self.title} {node_version(self.package)}"
        if self.extra:
            try:
                return f"{self.title} {python_version(self.extra)}"
            except PackageNotFoundError as error:
                raise NotInstalled(
                    f"{self.extra}: not installed; run: .venv/bin/pip install --no-deps {self.extra}"
                ) from error
        return ""


def _celery(app: str, workers: int, slots: int, *, queues: bool = False) -> list[Part]:
    common = ("-l", "WARNING", "-P", "prefork", "-c", str(slots))
    return [
        Part(
            "worker",
            ("-m", "celery", "-A", f"benchmarks.apps.{app}", "worker", "-n", f"w{i}@chaos", *common)
            + (("-Q", f"q{i}") if queues else ()),
        )
        for i in range(workers)
    ]


def _bridged() -> list[Part]:
    master = Part("master", ("-m", "bridge", "-A", "benchmarks.apps.chaos_bridged", "run", "-l", "WARNING"))
    return [master, master, *_celery("chaos_bridged", WORKERS, SLOTS)]


def _to_stream(stack: Stack) -> Push:
    def push(messages: Sequence[Item]) -> None:
        with stack.redis.pipeline(transaction=False) as pipe:
            for ticket, payload in messages:
                fields: dict[Any, Any] = {"ticket_id": ticket, "task": "work", "payload": json.dumps(payload)}
                pipe.xadd(KEYS.stream, fields)
            pipe.execute()

    return push


def _to_queues(queues: int) -> Callable[[Stack], Push]:
    def producer(stack: Stack) -> Push:
        app = Celery("producer", broker=stack.server.url)
        send = app.task(name="work", ignore_result=True)(_never)

        def push(messages: Sequence[Item]) -> None:
            for item in messages:
                send.apply_async(item, queue=queue_of(item[0], queues))

        return push

    return producer


def _never(ticket: str, payload: dict[str, int]) -> None:
    raise AssertionError(f"{ticket} {payload} was run by its producer")


def _in_node(package: str) -> list[Part]:
    command = (str(FOLDER / f"{package}.mjs"), "chaos", str(SLOTS))
    return [Part("worker", command, node(package)) for _ in range(WORKERS)]


def _to_node(package: str) -> Callable[[Stack], Push]:
    def producer(stack: Stack) -> Push:
        command = [node(package), str(FOLDER / f"{package}.mjs"), "produce"]
        process = stack.talk(command)

        def push(messages: Sequence[Item]) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(messages).encode() + b"\n")
            process.stdin.flush()
            # It answers when the server has all of them.
            if not process.stdout.readline():
                raise subprocess.SubprocessError(f"the producer of {package} ended")

        return push

    return producer


#: Name on the command line -> the peer.
PEERS = {
    "bridge": Peer("the bridge", _bridged, _to_stream),
    "plain": Peer(
        "plain Celery, acks_late", lambda: _celery("chaos_celery", WORKERS, SLOTS), _to_queues(0)
    ),
    "locks": Peer(
        "Celery, a lock per ticket", lambda: _celery("chaos_celery", WORKERS, SLOTS), _to_queues(0), {LOCKS: "1"}
    ),
    "queues": Peer(
        "Celery, a queue per process",
        lambda: _celery("chaos_celery", WORKERS * SLOTS, 1, queues=True), _to_queues(WORKERS * SLOTS),
    ),
    "batches": Peer(
        "celery-batches", lambda: _celery("chaos_batches", WORKERS, SLOTS), _to_queues(0), extra="celery-batches"
    ),
    "groupmq": Peer("GroupMQ", lambda: _in_node("groupmq"), _to_node("groupmq"), package="groupmq"),
    "bullmq": Peer("BullMQ", lambda: _in_node("bullmq"), _to_node("bullmq"), package="bullmq"),
}  # fmt: skip
