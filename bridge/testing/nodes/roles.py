"""Workers and masters as processes: each one real process with the command that a user types."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bridge.testing.nodes.node import WORKER_ARGUMENTS, MasterNode, WorkerNode, broker_environment
from bridge.testing.nodes.process import HOME, ProcessNode, python_module
from bridge.testing.waiting import wait_until

#: The module that a watcher runs, as its command line shows it.
WATCHER = "bridge.worker.guard.watcher"


def _is_watcher(process: psutil.Process) -> bool:
    try:
        return WATCHER in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process has said that it ignores a signal (proc(5), ``SigIgn``)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    [mask] = [line.split()[1] for line in lines if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


class ProcessWorker(ProcessNode, WorkerNode):
    """A worker as processes of this machine."""

    ready_text = WorkerNode.ready_text

    def __init__(
        self,
        name: str,
        *,
        app: str,
        broker_url: str,
        log_file: Path,
        arguments: Sequence[str] = WORKER_ARGUMENTS,
        env: Mapping[str, str] | None = None,
        cwd: Path = HOME,
    ) -> None:
        super().__init__(
            name,
            python_module("celery", "-A", app, "worker", "-n", f"{name}@%h", "--loglevel=INFO", *arguments),
            log_file=log_file,
            env={**broker_environment(broker_url), **(env or {})},
            cwd=cwd,
        )

    def host(self) -> str:
        return socket.gethostname()

    def children(self) -> list[psutil.Process]:
        """The live descendants of the main process without its watcher, mostly pool processes."""
        return [process for process in super().children() if not _is_watcher(process)]

    def watchers(self) -> list[psutil.Process]:
        return [process for process in self.survivors() if _is_watcher(process)]

    def watcher_at_work(self) -> psutil.Process:
        def at_work() -> psutil.Process | None:
            found = [process for process in self.watchers() if process.status() != psutil.STATUS_ZOMBIE]
            # The last of the signals that it ignores before it watches.
            return found[0] if len(found) == 1 and _ignores(found[0].pid, signal.SIGQUIT) else None

        found = wait_until(at_work, description=f"the watcher of {self._name} to be at work")
        assert found is not None
        return found

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: Mapping[str, object] | None = None
    ) -> list[dict[str, Any]]:
        """The processes of this node only: in a container there would be no others."""
        wanted = columns or ["pid", "name", "username", "cmdline", "cpu_percent", "memory_percent", "create_time"]
        found = [process.as_dict(wanted) for process in self.survivors()]
        return [info for info in found if all(info.get(key) == value for key, value in (filters or {}).items())]


class ProcessMaster(ProcessNode, MasterNode):
    """A master as a process of this machine."""

    def __init__(
        self,
        name: str,
        *,
        app: str,
        broker_url: str,
        log_file: Path,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path = HOME,
        ready_text: str | None = None,
    ) -> None:
        super().__init__(
            name,
            python_module("bridge", "-A", app, "run", *arguments),
            log_file=log_file,
            env={**broker_environment(broker_url), **(env or {})},
            cwd=cwd,
            ready_text=ready_text,
        )
