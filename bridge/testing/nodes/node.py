"""What a test asks of a worker, a master or another program, whether it is a process or a container."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil
import pytest
from pytest_celery import CeleryTestContainer, CeleryTestNode, CeleryTestWorker

from bridge.testing.waiting import DEFAULT_TIMEOUT_S, WaitTimeout, wait_until

RUNNING = "running"
EXITED = "exited"


def signal_number(wanted: str | int | None) -> signal.Signals:
    """A signal as an engine's client names it: "SIGTERM", "TERM", 15, or None for SIGKILL."""
    if wanted is None:
        return signal.SIGKILL
    if isinstance(wanted, int):
        return signal.Signals(wanted)
    return signal.Signals["SIG" + wanted.upper().removeprefix("SIG")]


def broker_environment(url: str) -> dict[str, str]:
    """Where a program finds the broker: the project's own variable, and Celery's for apps that know nothing of it."""
    return {"BRIDGE_BROKER_URL": url, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}


class Node(CeleryTestNode, ABC):
    """A program that a test starts, watches and ends; it can be started again after it has ended.

    As a node of pytest-celery it has a name, a host name, logs, `kill`, `restart` and `ready`. Only a node that is
    processes of this machine has `pid`, `children`, `kill_main` and the other members for single processes. For a
    container they skip the test.
    """

    #: A text in the log that says the program is ready; None: it is ready when it runs.
    ready_text: str | None = None

    # pytest-celery compares nodes by container and app, and so makes them unhashable.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, name: str, command: Sequence[str], container: CeleryTestContainer) -> None:
        super().__init__(container, None)
        self._name = name
        self.command = list(command)

    def __repr__(self) -> str:
        state = "runs" if self.running else f"ended with {self.exit_code}"
        return f"<{type(self).__name__} {self._name}: {state}>"

    def name(self) -> str:
        return self._name

    # -- its life ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the main process runs."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """None before it has started and while it runs; -9 after SIGKILL."""

    @abstractmethod
    def start(self) -> None:
        """Starts the program, and appends to its log. It may not be ready yet when this returns."""

    def wait_ready(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Waits until this life of the program has logged `ready_text`. Fails at once when the program ends first. A
        program without such a text is ready when it has started, and may end at any time.
        """
        text = self.ready_text
        if text is None:
            return

        def ready_or_ended() -> bool:
            return not self.running or text in self.logs(this_life=True)

        wait_until(ready_or_ended, description=f"{self._name} to log {text!r}", timeout_s=timeout_s)
        assert self.running, f"{self._name} ended with {self.exit_code} before it was ready:\n{self.log_tail()}"

    def ready(self) -> bool:
        self.wait_ready()
        return True

    @abstractmethod
    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Waits for the main process to end. Returns its exit code."""

    @abstractmethod
    def close(self) -> None:
        """Ends by force what is left of the node. Terminate a node first if it should end in order."""

    def teardown(self) -> None:
        self.close()

    # -- what is done to it ------------------------------------------------------------------------------------------

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the main process only, as a supervisor or the kernel's OOM killer does."""

    def terminate(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Sends SIGTERM to the main process, as a deployment does, and waits for its end. Returns its exit code."""
        self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    @abstractmethod
    def vanish(self) -> None:
        """Sends SIGKILL to all processes of the node, as if its machine were lost."""

    @abstractmethod
    def pause(self) -> None:
        """Freezes all of it, as if its virtual machine were paused."""

    @abstractmethod
    def resume(self) -> None:
        """Lets a frozen node go on."""

    def kill(self, signal: str | int = "SIGKILL", reload_container: bool = True) -> None:  # noqa: ARG002
        """As an engine does: SIGKILL ends all processes of the node, other signals go to its main process."""
        if not self.running:
            return
        number = signal_number(signal)
        if number.name == "SIGKILL":
            self.vanish()
        else:
            self.send(number)

    def restart(self, reload_container: bool = True, force: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:  # noqa: ARG002
        """Ends it, by force if it does not end in time, and starts it again. It is ready when this returns."""
        if self.running:
            try:
                self.terminate(timeout_s)
            except AssertionError:
                self.vanish()
        self.start()
        self.wait_ready()

    # -- what it logs ------------------------------------------------------------------------------------------------

    @abstractmethod
    def logs(self, *, this_life: bool = False) -> str:
        """All that was logged so far, or only since the last start."""

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log, for a failing test's report."""
        return "\n".join(self.logs().splitlines()[-lines:])

    def wait_for_log(self, log: str, message: str = "", timeout: float = 30.0) -> None:
        """Waits until this life of the program has logged a text."""
        wait_until(
            lambda: log in self.logs(this_life=True),
            description=message or f"{self._name} to log {log!r}",
            timeout_s=timeout,
        )

    def assert_log_exists(self, log: str, message: str = "", timeout: float = 30.0) -> None:
        self.wait_for_log(log, message, timeout)

    def assert_log_does_not_exist(self, log: str, message: str = "", timeout: float = 1) -> None:
        try:
            self.wait_for_log(log, message, timeout)
        except WaitTimeout:
            return
        raise AssertionError(f"{self._name} logged {log!r}")

    # -- single processes of it --------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The main process, also after it has ended."""
        self._skip("a process id")

    def kill_main(self) -> None:
        """Sends SIGKILL to the main process only, and waits for its end. What its children do is up to the program."""
        self._skip("the death of a main process alone")

    def children(self) -> list[psutil.Process]:
        """The live descendants of the main process, mostly pool processes."""
        self._skip("child processes")

    def survivors(self) -> list[psutil.Process]:
        """Every live process that this node or a descendant of it started, whatever its session and parent are now."""
        self._skip("the processes of a node")

    def _skip(self, what: str) -> NoReturn:
        pytest.skip(f"needs {what}, which a container hides: --bridge-nodes=processes")


class WorkerNode(Node, CeleryTestWorker):
    """`celery -A APP worker -n NAME@%h`."""

    ready_text = " ready."

    def hostname(self) -> str:
        """The node name under which Celery, Flower and the bridge know this worker."""
        return f"{self._name}@{self.host()}"

    @abstractmethod
    def host(self) -> str:
        """The name of its machine."""

    @property
    def worker_name(self) -> str:
        return self._name

    @property
    def worker_queue(self) -> str:
        """The queue that Celery uses by default."""
        return "celery"

    def watchers(self) -> list[psutil.Process]:
        """The live watchers: there is one beside each main process that lives or has just died."""
        self._skip("the watcher's process")

    def watcher_at_work(self) -> psutil.Process:
        """The watcher of a live worker, as soon as it watches. Before that it is a Python that starts."""
        self._skip("the watcher's process")


class MasterNode(Node):
    """`python -m bridge -A APP run`."""


AnyNode = TypeVar("AnyNode", bound=Node)

#: The rest of a worker's command line, where nobody says another.
WORKER_ARGUMENTS = ("--concurrency=2",)


class NodeYard(ABC):
    """Starts the nodes of one test against one broker, and keeps a list of them, so that all are ended."""

    def __init__(
        self,
        broker_url: str,
        *,
        app: str | None = None,
        worker_arguments: Sequence[str] = WORKER_ARGUMENTS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``app``, ``worker_arguments``: of nodes that are made without; ``env``: for workers and masters, beside their
        own.
        """
        #: The broker as nodes reach it.
        self.broker_url = broker_url
        self._app = app
        self.worker_arguments = worker_arguments
        self._env = dict(env or {})
        self.nodes: list[Node] = []

    @abstractmethod
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
    ) -> WorkerNode:
        """A Celery worker, ready unless `wait` is off (start several without, then `wait_ready()` each).

        With `start` off the caller starts it.
        """

    @abstractmethod
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
    ) -> MasterNode:
        """A bridge master; `start` as for a worker."""

    def process(
        self,
        name: str,  # noqa: ARG002
        command: Sequence[str],  # noqa: ARG002
        *,
        env: Mapping[str, str] | None = None,  # noqa: ARG002
        cwd: Path | None = None,  # noqa: ARG002
        ready_text: str | None = None,  # noqa: ARG002
        wait: bool = True,  # noqa: ARG002
    ) -> Node:
        """Any other program of this machine; where nodes are containers, the test is skipped."""
        pytest.skip("needs a program of this machine beside the nodes: --bridge-nodes=processes")

    def add(self, node: AnyNode, *, wait: bool, start: bool = True) -> AnyNode:
        """Adds a node, and starts it."""
        self.nodes.append(node)
        if start:
            node.start()
            if wait:
                node.wait_ready()
        return node

    def app_or_default(self, app: str | None) -> str:
        """The app of a node that is made with ``app``."""
        chosen = app or self._app
        assert chosen is not None, "which app? Set the ini option bridge_app"
        return chosen

    def workers(self) -> list[WorkerNode]:
        """The workers, in the order in which they were made."""
        return [node for node in self.nodes if isinstance(node, WorkerNode)]

    def masters(self) -> list[MasterNode]:
        """The masters, in the order in which they were made."""
        return [node for node in self.nodes if isinstance(node, MasterNode)]

    def close_nodes(self) -> None:
        for node in self.nodes:
            node.close()

    def close(self) -> None:
        """Ends every node. Then prints what each logged: pytest shows it for a test that failed."""
        self.close_nodes()
        for node in self.nodes:
            print(f"--- {node!r} {' '.join(node.command[1:])}\n{node.log_tail()}")
