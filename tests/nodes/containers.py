"""pytest-celery's containers without an engine: the same interface, over processes of this machine.

pytest-celery builds its nodes, clusters and set-ups on a small part of a Docker container: its id, name, status, logs,
kill, restart and readiness. These classes give that part, so that a test written for `celery_setup` runs as it is where
no engine exists. As with an engine, SIGKILL to a container takes everything in it.
"""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from pytest_celery import CeleryTestContainer, CeleryTestWorker, CeleryWorkerContainer

from bridge.stack.embedded import HOST, EmbeddedServer
from tests.nodes.roles import WorkerNode

RUNNING = "running"
EXITED = "exited"


def signal_number(wanted: str | int | None) -> signal.Signals:
    """A signal as an engine's client names it: "SIGTERM", "TERM", 15, or nothing for SIGKILL."""
    if wanted is None:
        return signal.SIGKILL
    if isinstance(wanted, int):
        return signal.Signals(wanted)
    return signal.Signals["SIG" + wanted.upper().removeprefix("SIG")]


class ValkeyContainer(CeleryTestContainer):
    """A broker or result backend: an embedded server."""

    def __init__(self, server: EmbeddedServer, name: str = "valkey") -> None:
        # Without super().__init__, which asks an engine about the container.
        self.server = server
        self._name = name

    @property
    def id(self) -> str:
        return socket.gethostname()

    @property
    def name(self) -> str:
        return self._name

    @property
    def status(self) -> str:
        return RUNNING if self.server.running else EXITED

    @property
    def client(self) -> redis.Redis:
        """A new client, with strings in and out, as pytest-celery's own Redis container gives one."""
        return self.server.client(decode_responses=True)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """What Celery needs to reach it; the address is the same from inside a node and from the test."""
        return {
            "url": self.server.url,
            "host_url": self.server.url,
            "hostname": HOST,
            "port": self.server.port,
            "vhost": "0",
        }

    def ready(self) -> bool:
        return self.server.running

    def logs(self) -> str:
        return self.server.log_file.read_text(encoding="utf-8", errors="replace")

    def reload(self) -> None:
        """Nothing is cached."""

    def kill(self, signal: str | int | None = None) -> None:
        if signal_number(signal).name == "SIGKILL":
            self.server.kill()
        else:
            self.server.stop()

    def restart(self, timeout: int = 10) -> None:
        self.server.stop(timeout_s=timeout)
        self.server.start()

    def teardown(self) -> None:
        """The server belongs to the fixture that made it."""


class WorkerContainer(CeleryWorkerContainer):
    """A worker: `python -m celery -A APP worker -n NAME@%h` with a log file of its own."""

    def __init__(self, node: WorkerNode, queue: str = "celery") -> None:
        self.node = node
        self._queue = queue

    @property
    def id(self) -> str:
        return socket.gethostname()

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def status(self) -> str:
        return RUNNING if self.node.running else EXITED

    # These three are classmethods in the base class, where a class stands for an image; here each worker has its own.
    def worker_name(self) -> str:
        return self.node.name

    def worker_queue(self) -> str:
        return self._queue

    def version(self) -> str:
        import celery

        return str(celery.__version__)

    def ready(self) -> bool:
        self.node.wait_ready()
        return True

    def logs(self) -> str:
        return self.node.logs()

    def reload(self) -> None:
        """Nothing is cached."""

    def kill(self, signal: str | int | None = None) -> None:
        number = signal_number(signal)
        if number.name == "SIGKILL":
            self.node.vanish()
        else:
            self.node.send(number)

    def restart(self, timeout: int = 10) -> None:
        if self.node.running:
            try:
                self.node.terminate(timeout_s=timeout)
            except AssertionError:
                self.node.vanish()
        self.node.start()
        self.node.wait_ready()

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        """Runs a command where the worker runs: its folder, its environment, its Python."""
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
        if arguments[0] == "python":
            arguments[0] = sys.executable
        done = subprocess.run(
            arguments, cwd=self.node.cwd, env=self.node.environment(), capture_output=True, check=False, timeout=30
        )
        return done.returncode, done.stdout + done.stderr

    def teardown(self) -> None:
        self.node.close()


class ProcessWorker(CeleryTestWorker):
    """pytest-celery's worker node, where host and processes are those of this machine."""

    container: WorkerContainer

    def hostname(self) -> str:
        """The node name; pytest-celery would cut the host's part to the length of a container's id."""
        return self.container.node.hostname

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: Mapping[str, object] | None = None
    ) -> list[dict[str, Any]]:
        """The processes of this node only, as they would be the only ones in a container."""
        wanted = columns or ["pid", "name", "username", "cmdline", "cpu_percent", "memory_percent", "create_time"]
        found = [process.as_dict(wanted) for process in self.container.node.survivors()]
        return [info for info in found if all(info.get(key) == value for key, value in (filters or {}).items())]


def write_content(folder: Path, content: Mapping[str, bytes]) -> None:
    """Lay pytest-celery's generated app, tasks and helpers out as a folder, as it would fill a container's volume."""
    for name, source in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
