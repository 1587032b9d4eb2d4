"""A child process of a stack, with its log. It never outlives the stack."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bridge.routing.errors import ServerStartFailed
from bridge.stack.ended import exit_code_of
from bridge.stack.orphan_stopper import OrphanStopper
from bridge.stack.stopping import POLL_S, StopRequest

#: Lines of a log that an error shows.
TAIL_LINES = 8
#: Signals that stop a process, each with the seconds to wait for its end. SIGKILL is last. At SIGQUIT a Celery worker
#: stops without finishing its tasks.
ESCALATION = ((signal.SIGTERM, 15.0), (signal.SIGQUIT, 3.0))


class Child:
    """One process, in its own session: Ctrl-C in a terminal does not reach it. The stack stops it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """`start` starts it.

        ``env`` comes on top of this process's environment. ``on_line`` gets each line of its standard output, on a
        thread; then only its standard error goes to the log.
        """
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self._env = dict(env or {})
        self._on_line = on_line
        self._process: subprocess.Popen[str] | None = None
        self._stopper: OrphanStopper | None = None
        self._reader: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Child {self.name}: {f'pid {self.pid}' if self.running else f'ended with {self.exit_code}'}>"

    @property
    def pid(self) -> int:
        """Its process id, also after it ended; 0 before it was started."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None before its end; negative: the signal that ended it."""
        # It stays a zombie until `reap`. So nobody else gets its number, which is that of its group.
        return None if self._process is None else exit_code_of(self._process)

    def start(self) -> None:
        """Starts it. Raises `ServerStartFailed` when there is no such program."""
        with self.log_file.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if self._on_line else log,
                    stderr=log,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
                    start_new_session=True,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                )
            except OSError as exc:
                raise ServerStartFailed(f"cannot start {self.name} ({self.command[0]}): {exc.strerror}") from None
        self._stopper = OrphanStopper(self._process.pid)
        if self._on_line is not None:
            self._reader = threading.Thread(target=self._read, name=f"{self.name}-output", daemon=True)
            self._reader.start()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the main process. Does nothing when it has ended."""
        if self.running:
            os.kill(self.pid, number)

    def finished(self) -> int | None:
        """Its exit code, once all its output was read; None until then."""
        code = self.exit_code
        if code is not None and self._reader is not None:
            # Its own children may hold the pipe a moment longer.
            self._reader.join(timeout=5.0)
        return code

    def reap(self) -> None:
        """Kills the rest of it, and releases its resources. The last call."""
        if self._process is None:
            return
        # Its process group too: it may have left children.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5.0)
        if self._stopper is not None:
            self._stopper.release()
            self._stopper = None

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of its log, indented."""
        try:
            written = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            written = []
        shown = [line.rstrip() for line in written if line.strip()][-lines:] or ["(it logged nothing)"]
        return "\n".join(f"  {line}" for line in shown)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._on_line is not None
        for line in self._process.stdout:
            self._on_line(line.rstrip("\n"))


def end_all(children: Sequence[Child], stop: StopRequest) -> None:
    """Stops children at the same time, with `ESCALATION` and then SIGKILL.

    A second Ctrl-C skips the waiting.
    """
    for number, patience_s in ESCALATION:
        alive = [child for child in children if child.running]
        for child in alive:
            child.send(number)
        deadline = time.monotonic() + patience_s
        while any(child.running for child in alive) and time.monotonic() < deadline and not stop.hurry:
            time.sleep(POLL_S)
    for child in children:
        child.reap()
