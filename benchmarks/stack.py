"""The processes of one run: a server, workers, masters. Each run starts its own, so that none inherits a state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from redis import Redis

from benchmarks.tally import FOLDER, Reading
from bridge.routing.errors import TicketBridgeError
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.orphan_stopper import OrphanStopper

#: The checkout, where the apps under test are importable.
ROOT = Path(__file__).resolve().parent.parent
#: Where fake or real, the lane is the default one.
KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
#: Environment variable with the server's URL, for the apps.
URL = "BENCHMARK_URL"
#: Environment variable with `bridge_history`; unset: the bridge's own default.
HISTORY = "BENCHMARK_HISTORY"
#: Seconds that processes may take to come up.
START_S = 60.0


class BenchmarkFailed(TicketBridgeError):
    """A run that broke: a process ended, or nothing moved any more."""


class Stack:
    """A server and the processes around it; a context manager that ends them all.

    ``app``: one of `benchmarks.apps`. ``bundle_ms``: for the bridge, how long a bundle lasts.
    """

    def __init__(self, app: str, *, bundle_ms: float = 10.0) -> None:
        self._app = f"benchmarks.apps.{app}"
        self._bundle_ms = bundle_ms
        self._cleanup = ExitStack()
        #: Further environment variables of the processes.
        self.environment_more: dict[str, str] = {}
        self._roles: dict[str, list[psutil.Process]] = {}
        self._processes: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        #: Those that were released.
        self._ended: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            self.folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ticket-bridge-bench-")))
            # Append-only file on, forced to the disk each second: as `bridge up` and `bridge demo` run it.
            self.server = cleanup.enter_context(EmbeddedServer(append_only=True, fsync="everysec"))
            self.redis: Redis = self.server.client()
            cleanup.callback(self.redis.close)
            cleanup.callback(self._end)
            self._cleanup = cleanup.pop_all()
        self.tally = Reading(self.folder)
        assert self.server.pid is not None
        self._roles["server"] = [psutil.Process(self.server.pid)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the processes."""
        return {
            URL: self.server.url,
            FOLDER: str(self.folder),
            "BENCHMARK_BUNDLE_MS": str(self._bundle_ms),
            **self.environment_more,
        }

    def start(self, role: str, *arguments: str, program: str = sys.executable) -> psutil.Process:
        """Starts ``program <arguments>`` as one of ``role``."""
        log = self.folder / f"{role}.{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        stopper = OrphanStopper(process.pid)
        self._cleanup.callback(stopper.release)
        self._processes.append((role, process, log))
        found = psutil.Process(process.pid)
        self._roles.setdefault(role, []).append(found)
        return found

    def talk(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a process that is written to and read from; it is not watched, and ends with the stack."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        stopper = OrphanStopper(process.pid)
        self._cleanup.callback(stopper.release)
        self._ended.append(process)
        return process

    def start_workers(self, count: int, concurrency: int, *, queues: bool = False) -> None:
        """Starts Celery workers with the flags that all peers get, and waits until all are ready to receive.

        ``queues``: each has a queue of its own, ``q0``, ``q1``, …
        """
        for i in range(count):
            arguments = ("-m", "celery", "-A", self._app, "worker", "-n", f"w{i}@bench", "-c", str(concurrency))
            own = ("-Q", f"q{i}") if queues else ()
            self.start("worker", *arguments, "-l", "WARNING", "-P", "prefork", *own)
        self.wait(lambda: len(self.tally.ready()) >= count, "the workers to be ready", START_S)
        children = [child for worker in self._roles["worker"] for child in worker.children()]
        self._roles["pool"] = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]

    def start_master(self, *arguments: str) -> psutil.Process:
        """Starts a master; the first one leads."""
        return self.start("master", "-m", "bridge", "-A", self._app, "run", "-l", "WARNING", *arguments)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float, interval_s: float = 0.02) -> None:
        """Polls until ``condition`` holds. Raises `BenchmarkFailed` when it does not, or when a process ended."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"waited {timeout_s:g} s for {what}; {self._last_words()}")
            self.check()
            time.sleep(interval_s)

    def check(self) -> None:
        """Raises `BenchmarkFailed` when a process ended."""
        for role, process, _ in self._processes:
            if process.poll() is not None:
                raise BenchmarkFailed(f"a {role} ended with code {process.returncode}; {self._last_words()}")

    def release(self, process: psutil.Process) -> None:
        """``process`` is about to end, and may: it is not missed any more."""
        for i, (_, started, _) in enumerate(self._processes):
            if started.pid == process.pid:
                self._ended.append(self._processes.pop(i)[1])
                return

    def count_children(self, role: str, of: str) -> None:
        """Counts what the processes of ``of`` have started by now as ``role``."""
        self._roles[role] = [child for one in self._roles[of] for child in one.children(recursive=True)]

    def process(self, role: str) -> psutil.Process:
        """The first process of ``role``."""
        return self._roles[role][0]

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each role used so far; a role's processes together."""
        used = {}
        for role, processes in self._roles.items():
            times = [process.cpu_times() for process in processes if process.is_running()]
            used[role] = sum(t.user + t.system for t in times)
        return used

    def _last_words(self) -> str:
        said = []
        for role, _, log in self._processes:
            lines = log.read_text(errors="replace").strip().splitlines()[-3:]
            if lines:
                said.append(f"the {role} said: {' | '.join(lines)}")
        return "; ".join(said) or "no process said why"

    def _end(self) -> None:
        # They are killed at once, since nothing of theirs is needed. Pool processes end with their parent:
        # they are in its session.
        for process in (*self._ended, *(process for _, process, _ in self._processes)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
