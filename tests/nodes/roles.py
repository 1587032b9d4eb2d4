"""The nodes of a bridge: workers and masters, each one real process with the command that a user types."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.nodes.process import ROOT, ProcessNode, python_module
from tests.waiting import wait_until

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


def broker_environment(url: str) -> dict[str, str]:
    """Where a process finds the broker: the project's own variable, and Celery's for apps that know nothing of it."""
    return {"BRIDGE_BROKER_URL": url, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}


class WorkerNode(ProcessNode):
    """`celery -A APP worker -n NAME@%h`."""

    ready_text = " ready."

    def __init__(
        self,
        name: str,
        *,
        app: str,
        broker_url: str,
        log_file: Path,
        arguments: Sequence[str] = ("--concurrency=2",),
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        super().__init__(
            name,
            python_module("celery", "-A", app, "worker", "-n", f"{name}@%h", "--loglevel=INFO", *arguments),
            log_file=log_file,
            env={**broker_environment(broker_url), **(env or {})},
            cwd=cwd,
        )

    def children(self) -> list[psutil.Process]:
        """The live descendants of the main process but for its watcher: the pool children, mostly."""
        return [process for process in super().children() if not _is_watcher(process)]

    def watchers(self) -> list[psutil.Process]:
        """The live watchers: there is one beside each main process that lives or has just died."""
        return [process for process in self.survivors() if _is_watcher(process)]

    def watcher_at_work(self) -> psutil.Process:
        """The one watcher of a worker that lives, as soon as it does what it is for: it starts as a bare Python."""

        def at_work() -> psutil.Process | None:
            found = [process for process in self.watchers() if process.status() != psutil.STATUS_ZOMBIE]
            return found[0] if len(found) == 1 and _ignores(found[0].pid, signal.SIGTERM) else None

        found = wait_until(at_work, description=f"the watcher of {self.name} to be at work")
        assert found is not None
        return found

    @property
    def hostname(self) -> str:
        """The node name under which Celery, Flower and the bridge know this worker."""
        return f"{self.name}@{socket.gethostname()}"


class MasterNode(ProcessNode):
    """`python -m bridge -A APP run`."""

    def __init__(
        self,
        name: str,
        *,
        app: str,
        broker_url: str,
        log_file: Path,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
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
