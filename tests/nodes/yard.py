"""The nodes of one test. All of them are ended when the test is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.nodes.process import ROOT, ProcessNode
from tests.nodes.roles import MasterNode, WorkerNode

Node = TypeVar("Node", bound=ProcessNode)


class NodeYard:
    """Starts nodes against one broker, and keeps them so that none is forgotten."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder = folder
        self.broker_url = broker_url
        self.nodes: list[ProcessNode] = []

    def worker(
        self,
        name: str,
        *,
        app: str,
        arguments: Sequence[str] = ("--concurrency=2",),
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        wait: bool = True,
        start: bool = True,
    ) -> WorkerNode:
        """A Celery worker, ready unless `wait` is off (start several without, then `wait_ready()` each).

        With `start` off the caller starts it.
        """
        node = WorkerNode(
            name,
            app=app,
            broker_url=self.broker_url,
            log_file=self._log_file(name),
            arguments=arguments,
            env=env,
            cwd=cwd,
        )
        return self.add(node, wait=wait, start=start)

    def master(
        self,
        name: str,
        *,
        app: str,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        ready_text: str | None = None,
        wait: bool = True,
        start: bool = True,
    ) -> MasterNode:
        """A bridge master; `start` as for a worker."""
        node = MasterNode(
            name,
            app=app,
            broker_url=self.broker_url,
            log_file=self._log_file(name),
            arguments=arguments,
            env=env,
            cwd=cwd,
            ready_text=ready_text,
        )
        return self.add(node, wait=wait, start=start)

    def process(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        ready_text: str | None = None,
        wait: bool = True,
    ) -> ProcessNode:
        """Any other program."""
        node = ProcessNode(name, command, log_file=self._log_file(name), env=env, cwd=cwd, ready_text=ready_text)
        return self.add(node, wait=wait)

    def add(self, node: Node, *, wait: bool, start: bool = True) -> Node:
        """Takes a node over and starts it."""
        self.nodes.append(node)
        if not start:
            return node
        node.start()
        if wait:
            node.wait_ready()
        return node

    def close(self) -> None:
        """Ends every node; then shows what each logged, which pytest prints for a test that failed."""
        for node in self.nodes:
            node.close()
        for node in self.nodes:
            print(f"--- {node!r} {' '.join(node.command[1:])}\n{node.log_tail()}")

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"
