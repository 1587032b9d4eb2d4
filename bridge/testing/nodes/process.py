"""One program as a node of a test: a process group with a log. A test may kill it in every way. Nothing of it remains.

To end the process group is not enough, because a process may have a session of its own (the watcher beside a worker has
one). So every node has a mark in its environment, which all its descendants inherit. A node has ended when no process
with that mark is left. A server writes its title over its environment, and so over the mark. So the descendants of the
node are ended, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from bridge.stack.orphan_stopper import OrphanStopper
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.fork_server import MARK
from bridge.testing.nodes.local_containers import ProcessContainer
from bridge.testing.nodes.node import Node
from bridge.testing.waiting import DEFAULT_TIMEOUT_S, wait_until

#: The folder that `bridge` is imported from.
ROOT = preloaded.ROOT
#: The folder in which programs start if no other is given. All programs can import from it.
HOME = Path.cwd()


class ProcessNode(Node):
    """A command that runs as a process of this machine."""

    #: Whether it is forked from a preloaded parent, if that makes no difference to the program.
    preload = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path = HOME,
        ready_text: str | None = None,
    ) -> None:
        super().__init__(name, command, ProcessContainer(self))
        self.log_file = log_file
        self.cwd = cwd
        self.env = dict(env or {})
        if ready_text is not None:
            self.ready_text = ready_text
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | preloaded.Forked | None = None
        self._stopper: OrphanStopper | None = None
        self._life_began_at = 0

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"ended with {self.exit_code}"
        return f"<{type(self).__name__} {self._name}: {state}>"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def environment(self) -> dict[str, str]:
        """What the program sees: the caller's environment, the node's own, and its mark."""
        # The first folder is for programs that start in a folder of their own. An empty part would be that folder.
        paths = [str(HOME), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            **self.env,
            MARK: self._mark,
        }

    def start(self) -> None:
        assert not self.running, f"{self._name} runs already"
        if self._stopper is not None:
            self._stopper.release()  # of the life before
        self._life_began_at = self._log_size()
        env = self.environment()
        with self.log_file.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            if self.preload and preloaded.can_fork(self.command, env):
                streams = (nothing.fileno(), log.fileno(), log.fileno())
                self._process = preloaded.start(self.command, cwd=self.cwd, env=env, streams=streams)
            else:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=nothing,
                    stdout=log,
                    stderr=log,
                    cwd=self.cwd,
                    env=env,
                    start_new_session=True,
                )
        self._stopper = OrphanStopper(self._process.pid)

    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        assert self._process is not None, f"{self._name} was never started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._name} did not end within {timeout_s:g} s:\n{self.log_tail()}") from None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self._name} was never started"
        assert self.running, f"{self._name} has already ended with {self.exit_code}:\n{self.log_tail()}"
        os.kill(self._process.pid, number)

    def kill_main(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def vanish(self) -> None:
        assert self._process is not None, f"{self._name} was never started"
        # Frozen first, so that no process sees the end of another one and acts on it.
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        self._kill_all()

    def pause(self) -> None:
        assert self._process is not None, f"{self._name} was never started"
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, f"{self._name} was never started"
        os.killpg(self._process.pid, signal.SIGCONT)

    def children(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def survivors(self) -> list[psutil.Process]:
        return list({*_processes_with({self._mark}), *self.children()})

    def logs(self, *, this_life: bool = False) -> str:
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(self._life_began_at if this_life else 0)
            return log.read().decode("utf-8", errors="replace")

    def close(self) -> None:
        close_all([self])

    def _kill_all(self) -> None:
        _kill_all([self])

    def _killed(self) -> str:
        """Kills the node's own process group; the mark of those that may be left."""
        assert self._process is not None
        if self._process.poll() is None:  # no other process has its number
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return self._mark

    def _release(self) -> None:
        if self._stopper is not None:
            self._stopper.release()
            self._stopper = None

    def _log_size(self) -> int:
        return self.log_file.stat().st_size if self.log_file.exists() else 0


def python_module(module: str, *arguments: str) -> list[str]:
    """The command `python -m module …` with the interpreter that runs the tests."""
    return [sys.executable, "-m", module, *arguments]


def close_all(nodes: Sequence[ProcessNode]) -> None:
    """Ends whatever is left of nodes by force: together, since each look at the processes of the machine takes time."""
    started = [node for node in nodes if node.pid is not None]
    if started:
        _kill_all(started)
    for node in started:
        node._release()


def _kill_all(nodes: Sequence[ProcessNode]) -> None:
    # Before their parents end: those without the mark can only be found as descendants.
    descended = _descendants({node.pid for node in nodes if node.running})
    marks = {node._killed() for node in nodes}
    for process in descended:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def all_gone() -> bool:
        left = list(_processes_with(marks))
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return not left

    wait_until(all_gone, description="the processes of a node to end after SIGKILL")


def _descendants(pids: set[int | None]) -> list[psutil.Process]:
    if not pids:
        return []
    children = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        children[process.info["ppid"]].append(process)
    found = [child for pid in pids for child in children[pid]]
    for process in found:  # grows on the way
        found += children[process.pid]
    return found


def _processes_with(marks: set[str]) -> Iterator[psutil.Process]:
    # Processes that are older than the tests belong to no node. Their environments need not be read.
    earliest = psutil.Process().create_time()
    for process in psutil.process_iter(["create_time"]):
        if process.info["create_time"] is not None and process.info["create_time"] < earliest:
            continue
        try:
            if process.environ().get(MARK) in marks and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
