"""Workers and masters as containers of a Docker engine, from one image that has Celery, the bridge and the app.

The project's folder is ``/app`` in each container, where ``-A`` finds it. The folder of the test has the same path
there as here, so that nodes and test can share files. Containers run as the user who runs the tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_celery import CeleryWorkerContainer

from bridge.testing.nodes.node import (
    RUNNING,
    WORKER_ARGUMENTS,
    MasterNode,
    Node,
    NodeYard,
    WorkerNode,
    broker_environment,
)
from bridge.testing.waiting import DEFAULT_TIMEOUT_S, WaitTimeout, wait_until

#: Where the project is in a container.
HOME = "/app"
#: Passes signals on, and lives until the death of the worker is reported.
INIT = ("python", "-m", "bridge.worker.init")
#: The exit code of a process that a signal ended is this number plus the signal's.
BY_SIGNAL = 128


class EngineContainer(CeleryWorkerContainer):
    """A container that was made for one node; it may not have started yet."""

    @property
    def raw(self) -> Any:
        """The container as the engine's client has it."""
        return self._container

    def teardown(self) -> None:
        self.raw.remove(force=True)


class EngineNode(Node):
    """A command that runs as a container."""

    container: EngineContainer

    def __init__(self, name: str, command: Sequence[str], container: EngineContainer, ready_text: str | None) -> None:
        super().__init__(name, command, container)
        if ready_text is not None:
            self.ready_text = ready_text
        self._life_began_at = 0
        self._started = False
        self._removed = False
        self._kept_log = ""

    @property
    def running(self) -> bool:
        if self._removed:
            return False
        self.container.reload()
        return self.container.status in (RUNNING, "paused")

    @property
    def exit_code(self) -> int | None:
        if not self._started or self._removed or self.running:
            return None
        code = int(self.container.attrs["State"]["ExitCode"])
        return BY_SIGNAL - code if code > BY_SIGNAL else code

    def start(self) -> None:
        assert not self.running, f"{self._name} runs already"
        self._life_began_at = len(self.container.logs())
        self._started = True
        self.container.raw.start()

    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        try:
            wait_until(lambda: not self.running, description=f"{self._name} to end", timeout_s=timeout_s)
        except WaitTimeout:
            raise AssertionError(f"{self._name} did not end within {timeout_s:g} s:\n{self.log_tail()}") from None
        code = self.exit_code
        assert code is not None, f"{self._name} was never started"
        return code

    def send(self, number: signal.Signals) -> None:
        self.container.raw.kill(signal=number.name)

    def vanish(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        self.container.raw.pause()

    def resume(self) -> None:
        self.container.raw.unpause()

    def logs(self, *, this_life: bool = False) -> str:
        if self._removed:
            return self._kept_log
        text: str = self.container.logs()
        return text[self._life_began_at :] if this_life else text

    def close(self) -> None:
        if not self._removed:
            self._kept_log = self.logs()
            self.container.teardown()
            self._removed = True


class EngineWorker(EngineNode, WorkerNode):
    """A worker as a container."""

    ready_text = WorkerNode.ready_text

    def host(self) -> str:
        return str(self.container.id[:12])


class EngineMaster(EngineNode, MasterNode):
    """A master as a container."""


class EngineYard(NodeYard):
    """Makes containers from one image, in one network."""

    def __init__(
        self,
        client: Any,
        *,
        image: str,
        network: str,
        broker_url: str,
        home: Path,
        shared: Sequence[Path] = (),
        app: str | None = None,
        worker_arguments: Sequence[str] = WORKER_ARGUMENTS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``client``: of docker-py. ``shared``: folders that nodes see, and may write, at the test's own paths."""
        super().__init__(broker_url, app=app, worker_arguments=worker_arguments, env=env)
        self._client = client
        self._made_with = {
            "image": image,
            "network": network,
            "working_dir": HOME,
            "user": f"{os.getuid()}:{os.getgid()}",
            "volumes": {
                str(home): {"bind": HOME, "mode": "ro"},
                **{str(folder): {"bind": str(folder), "mode": "rw"} for folder in shared},
            },
        }

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
    ) -> EngineWorker:
        command = [
            *INIT,
            "celery",
            "-A",
            self.app_or_default(app),
            "worker",
            "-n",
            f"{name}@%h",
            "--loglevel=INFO",
            *(self.worker_arguments if arguments is None else arguments),
        ]
        node = EngineWorker(name, command, self._container(command, env, cwd), None)
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
    ) -> EngineMaster:
        command = ["bridge", "-A", self.app_or_default(app), "run", *arguments]
        node = EngineMaster(name, command, self._container(command, env, cwd), ready_text)
        return self.add(node, wait=wait, start=start)

    def _container(self, command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None) -> EngineContainer:
        """Made, not started. ``cwd`` is to be one of the shared folders."""
        environment = {
            **broker_environment(self.broker_url),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": HOME,
            **self._env,
            **(env or {}),
        }
        made = {**self._made_with, "command": list(command), "environment": environment}
        if cwd is not None:
            made["working_dir"] = str(cwd)
        return EngineContainer(self._client.containers.create(**made))
