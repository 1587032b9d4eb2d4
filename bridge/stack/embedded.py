"""A real Valkey or Redis server as a child process: for `bridge up`, `bridge demo`, the tests and the benchmarks.

`bridge.stack.server_program` has the program itself. The contract:

- `start()` returns when the started process answers. Another server on the port would answer a PING as well, so the
  process id is compared. A server that answers LOADING is not ready.
- The port stays the same over `stop()`, `kill()` and `restart()`, as clients of a crashed server expect. Meanwhile no
  other server of the stack gets it.
- The server does not outlive this process. PDEATHSIG would act when the *thread* that started the server ends, and that
  may not be the main thread. So a shell that waits on a pipe (`OrphanStopper`) stops the server when this process ends.
- Ctrl-C in a terminal does not reach the server, which has its own session. So its clients can finish. The process that
  started the server stops it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bridge.routing.errors import PortInUse, ServerStartFailed
from bridge.stack.ended import exit_code_of
from bridge.stack.orphan_stopper import OrphanStopper
from bridge.stack.ports import HOST, free_port, keep_port
from bridge.stack.server_program import FsyncPolicy, answers_as, find_server_binary, server_command

#: The file in the data folder that a running server has locked.
LOCK = "lock"
#: Longest time to wait for the end of another server there, in seconds.
LOCK_S = 5.0
_POLL_INTERVAL_S = 0.005
_ANSWER_TIMEOUT_S = 0.5
_LOG_LINES_IN_ERRORS = 3
_PORT_ATTEMPTS = 20
_PORT_TAKEN_IN_LOG = "Address already in use"


class EmbeddedServer:
    """One server process with a port and a data folder that outlast it; a context manager."""

    def __init__(
        self,
        *,
        port: int = 0,
        data_dir: Path | None = None,
        binary: Path | None = None,
        append_only: bool = True,
        fsync: FsyncPolicy = "everysec",
        log_file: Path | None = None,
        options: Mapping[str, str] | None = None,
        start_timeout_s: float = 10.0,
    ) -> None:
        """`start` starts the server.

        Args:
            port: Where to listen; 0 takes a free one at the first start and keeps it.
            data_dir: Where the append-only file lies. None: a temporary folder, removed by `close()`.
            binary: The server's program. None: the one that `find_server_binary` finds.
            append_only: Whether writes go to an append-only file.
            fsync: When that file is forced to the disk.
            log_file: The server's own log. None: `server.log` in the data folder.
            options: More settings of the server's own, by their names in its configuration file.
            start_timeout_s: How long `start()` waits, the loading of the append-only file included.
        """
        self._wanted_port = port
        self._port = port
        self._binary = binary
        self._append_only = append_only
        self._fsync = fsync
        self._options = dict(options or {})
        self._start_timeout_s = start_timeout_s
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        # Absolute: the server is started in that folder.
        self._data_dir = data_dir.absolute() if data_dir is not None else None
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._stopper: OrphanStopper | None = None
        #: Lets the port go, when it is called or this object is gone.
        self._let_port_go: weakref.finalize[..., Any] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port; 0 before a first start that may choose it."""
        return self._port

    @property
    def url(self) -> str:
        """Database 0 of this server, as Celery and redis-py write it."""
        return f"redis://{HOST}:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """The process id, while the server runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process is there. A paused one counts as running."""
        return self._process is not None and exit_code_of(self._process) is None

    @property
    def data_dir(self) -> Path:
        """Where the append-only file lies; made when it is first asked for."""
        if self._data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="ticket-bridge-server-")
            self._data_dir = Path(self._temporary.name)
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """What the server writes about itself, over all its restarts."""
        return self._log_file or self.data_dir / "server.log"

    def client(self, **options: Any) -> redis.Redis:
        """A new client, which the caller closes. It sends and returns bytes unless ``options`` say otherwise."""
        client: redis.Redis = redis.Redis.from_url(self.url, **options)
        return client

    def start(self) -> None:
        """Starts the server and waits until it answers; nothing to do when it runs.

        Raises:
            PortInUse: Another process listens on the port.
            ServerStartFailed: It ended, or did not answer in time; the message carries its last log lines.
        """
        if self.running:
            return
        # One that ended by itself.
        self._reap()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if self._port == 0:
                self._port = free_port()
            self._keep_port()
            try:
                self._launch()
            except PortInUse:
                self._give_port_up()
                # Another process may have taken the port since it was chosen: choose again.
                first_start_of_free_port = self._wanted_port == 0 and not self._has_data()
                if not first_start_of_free_port or attempt == _PORT_ATTEMPTS:
                    raise
                self._port = 0
            else:
                return

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Ends the server with SIGTERM, so that it writes everything, whatever the fsync policy. Kills it after
        ``timeout_s``.
        """
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Ends the server as a crash would: SIGKILL, and no last fsync."""
        self._end(signal.SIGKILL, timeout_s=10.0)

    def restart(self) -> None:
        """Stops it if it runs, then starts it on the same port and data; returns when the data is loaded."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes the process: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a frozen process go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stops the server and removes the data folder if it is a temporary one."""
        self.stop()
        self._give_port_up()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self._data_dir = None

    def log_tail(self, lines: int = _LOG_LINES_IN_ERRORS) -> str:
        """The last lines of the log, on one line."""
        try:
            written = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "(no log)"
        meaningful = [line.strip() for line in written if line.strip()]
        return " | ".join(meaningful[-lines:]) or "(empty log)"

    def _keep_port(self) -> None:
        if self._let_port_go is None and (kept := keep_port(self._port)) is not None:
            self._let_port_go = weakref.finalize(self, kept.close)

    def _give_port_up(self) -> None:
        if self._let_port_go is not None:
            self._let_port_go()
            self._let_port_go = None

    def _command(self, binary: Path) -> list[str]:
        return server_command(
            binary,
            self._port,
            self.data_dir,
            append_only=self._append_only,
            fsync=self._fsync,
            options=self._options,
        )

    def _launch(self) -> None:
        binary = self._binary or find_server_binary()
        if not os.access(binary, os.X_OK):
            raise ServerStartFailed(f"cannot run the server {binary}: no such program, or not executable")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        log_offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        try:
            with self.log_file.open("ab") as log:
                self._process = self._spawn(self._command(binary), log, lock)
        finally:
            os.close(lock)
        self._stopper = OrphanStopper(self._process.pid)
        try:
            self._wait_until_it_answers(log_offset)
        except BaseException:
            self.kill()
            raise

    def _lock(self) -> int:
        """Locks the data folder. The server inherits the file, so the lock lasts as long as the server.

        Two servers would write one append-only file, and lose what the other one was told.
        """
        lock = os.open(self.data_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

        def locked() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        # A process that a killed server had forked to write its data ends a moment after it.
        if not _wait_until(locked, LOCK_S):
            os.close(lock)
            raise ServerStartFailed(
                f"another server uses the data in {self.data_dir}: stop what started it, or choose another folder"
            )
        return lock

    def _spawn(self, command: list[str], log: IO[bytes], lock: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                start_new_session=True,
                pass_fds=(lock,),
            )
        except OSError as error:
            raise ServerStartFailed(f"cannot run the server {command[0]}: {error.strerror}") from error

    def _wait_until_it_answers(self, log_offset: int) -> None:
        process = self._process
        assert process is not None
        with contextlib.closing(
            self.client(
                socket_timeout=_ANSWER_TIMEOUT_S,
                socket_connect_timeout=_ANSWER_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
        ) as client:
            answered = _wait_until(
                lambda: exit_code_of(process) is not None or answers_as(client, process.pid), self._start_timeout_s
            )
        if (code := exit_code_of(process)) is not None:
            with self.log_file.open("rb") as log:
                log.seek(log_offset)
                said = log.read().decode("utf-8", errors="replace")
            if _PORT_TAKEN_IN_LOG in said:
                raise PortInUse(
                    f"port {self._port} on {HOST} is in use: stop what listens there, or choose another port"
                )
            raise ServerStartFailed(f"the server ended with code {code} at its start: {self.log_tail()}")
        if not answered:
            raise ServerStartFailed(
                f"the server on port {self._port} did not answer within {self._start_timeout_s:g} s: {self.log_tail()}"
            )

    def _has_data(self) -> bool:
        return any(path.suffix == ".aof" or path.is_dir() for path in self.data_dir.iterdir())

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            os.kill(self._process.pid, number)

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        self._signal(number)
        # A frozen process gets SIGTERM only when it runs again.
        self._signal(signal.SIGCONT)
        _wait_until(lambda: not self.running, timeout_s)
        self._reap()

    def _reap(self) -> None:
        """Kills what is left of the server and of its process group, and releases its number."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            # A child that rewrites the append-only file is in the server's process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        if self._stopper is not None:
            self._stopper.release()
            self._stopper = None
        process.wait()


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Polls ``condition``. Returns whether it became true within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
