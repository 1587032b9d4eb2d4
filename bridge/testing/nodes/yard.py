"""The nodes of one test as processes. They are ended after the test in any case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bridge.testing.nodes.node import WORKER_ARGUMENTS, NodeYard
from bridge.testing.nodes.process import HOME, ProcessNode, close_all
from bridge.testing.nodes.roles import ProcessMaster, ProcessWorker


class ProcessYard(NodeYard):
    """Starts processes of this machine; their logs are in ``folder``, and they start in ``home``."""

    def __init__(
        self,
        folder: Path,
        broker_url: str,
        *,
        home: Path = HOME,
        app: str | None = None,
        worker_arguments: Sequence[str] = WORKER_ARGUMENTS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(broker_url, app=app, worker_arguments=worker_arguments, env=env)
        self.folder = folder
        self.home = home

    def worker(
        self,
        name: str,
        *,
        app: str | None = None,
        arguments: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        wait: bool = True,
        start: bool = True,
    ) -> ProcessWorker:
        node = ProcessWorker(
            name,
            app=self.app_or_default(app),
            broker_url=self.broker_url,
            log_file=self._log_file(name),
            arguments=self.worker_arguments if arguments is None else arguments,
            env={**self._env, **(env or {})},
            cwd=cwd or self.home,
        )
        return self.add(node, wait=wait, start=start)

    def master(
        self,
        name: str,
        *,
        app: str | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready_text: str | None = None,
        wait: bool = True,
        start: bool = True,
    ) -> ProcessMaster:
        node = ProcessMaster(
            name,
            app=self.app_or_default(app),
            broker_url=self.broker_url,
            log_file=self._log_file(name),
            arguments=arguments,
            env={**self._env, **(env or {})},
            cwd=cwd or self.home,
            ready_text=ready_text,
        )
        return self.add(node, wait=wait, start=start)

    def process(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready_text: str | None = None,
        wait: bool = True,
    ) -> ProcessNode:
        node = ProcessNode(
            name, command, log_file=self._log_file(name), env=env, cwd=cwd or self.home, ready_text=ready_text
        )
        return self.add(node, wait=wait)

    def close_nodes(self) -> None:
        close_all([node for node in self.nodes if isinstance(node, ProcessNode)])

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"
