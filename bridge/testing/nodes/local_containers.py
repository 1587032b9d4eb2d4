"""pytest-celery's containers without an engine: the same interface, over processes of this machine.

pytest-celery builds its nodes, clusters and set-ups on a small part of a Docker container: its id, name, status, logs,
kill, restart and readiness. These classes have that part, so that a test written for `celery_setup` runs unchanged
without an engine. As with an engine, SIGKILL to a container ends all processes in it.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import redis
from pytest_celery import CeleryTestContainer, CeleryWorkerContainer

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import EXITED, RUNNING, signal_number


class ServerContainer(CeleryTestContainer):
    """A broker or result backend: an embedded server."""

    def __init__(self, server: EmbeddedServer, name: str = "valkey") -> None:
        # Without super().__init__, which would ask an engine about the container.
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
        """The settings with which Celery reaches it. The address is the same inside a node and in the test."""
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
        """Does nothing: the server belongs to the fixture that made it."""


class Holder(Protocol):
    """What a container needs of the node whose processes it stands for."""

    cwd: Path

    @property
    def running(self) -> bool: ...
    def name(self) -> str: ...
    def environment(self) -> dict[str, str]: ...
    def ready(self) -> bool: ...
    def logs(self) -> str: ...
    def kill(self, signal: str | int = ...) -> None: ...
    def restart(self, *, timeout_s: float = ...) -> None: ...
    def close(self) -> None: ...


class ProcessContainer(CeleryWorkerContainer):
    """The processes of one node."""

    def __init__(self, node: Holder) -> None:
        self.node = node

    @property
    def id(self) -> str:
        return socket.gethostname()

    @property
    def name(self) -> str:
        return self.node.name()

    @property
    def status(self) -> str:
        return RUNNING if self.node.running else EXITED

    # A classmethod in the base class, where a class stands for an image.
    def version(self) -> str:
        import celery

        return str(celery.__version__)

    def ready(self) -> bool:
        return self.node.ready()

    def logs(self) -> str:
        return self.node.logs()

    def reload(self) -> None:
        """Nothing is cached."""

    def kill(self, signal: str | int | None = None) -> None:
        self.node.kill("SIGKILL" if signal is None else signal)

    def restart(self, timeout: int = 10) -> None:
        self.node.restart(timeout_s=timeout)

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        """Runs a command where the node runs: its folder, its environment, its Python."""
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
        if arguments[0] == "python":
            arguments[0] = sys.executable
        done = subprocess.run(
            arguments, cwd=self.node.cwd, env=self.node.environment(), capture_output=True, check=False, timeout=30
        )
        return done.returncode, done.stdout + done.stderr

    def teardown(self) -> None:
        self.node.close()


def write_content(folder: Path, content: Mapping[str, bytes]) -> None:
    """Writes pytest-celery's generated app, tasks and helpers into a folder, as into a container's volume."""
    for name, source in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
