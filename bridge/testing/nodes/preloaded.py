"""Starts Python programs from a parent that has imported most of what they need (`bridge.testing.nodes.fork_server`).

A worker starts in a third of the processor time. Otherwise it is as if started by an interpreter: it has its own
session, process number, exit code, command line and environment. `can_fork` returns False where the environment changes
the interpreter. Tests of the start itself turn it off (`ProcessNode.preload`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from bridge.testing.nodes import fork_server

ROOT = fork_server.ROOT
MODULES = ("bridge", "celery")
#: The environment that the server starts with. A forked program has it, too, except for the variables below.
STARTED_WITH = dict(os.environ)
#: Variables that a fork gets as an interpreter would, or that only an app reads. An interpreter and the libraries read
#: many others once, when they start or are imported.
READ_LATER = [
    "BRIDGE_", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "COLUMNS", "PYTEST_CURRENT_TEST", "PYTHONPATH",
    "PYTHONUNBUFFERED", "TICKET_BRIDGE_",
]  # fmt: skip
#: Prefixes of the variables that an interpreter or a library reads early.
READ_EARLY = ("CELERY_", "DJANGO_", "KOMBU_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "REMAP_", "TZ")
#: Room for what a process shows as its arguments and its environment.
ROOM = 1 << 15


class Forked:
    """A program that a fork server has started, with the part of `subprocess.Popen` that nodes use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, or None while it runs; minus the number of the signal that ended it."""
        return self.returncode if self.returncode is not None or not self._has_ended(0) else self._reap()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within ``timeout`` seconds.
        """
        if self.returncode is not None:
            return self.returncode
        if not self._has_ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._reap()

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _reap(self) -> int:
        self.returncode = self._server.reap(self.pid)
        os.close(self._ended)
        return self.returncode


class ForkServer:
    """One server of this process; it ends with this process."""

    def __init__(self, *, with_bridge: bool, gevent: bool = False) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        kept = {name: value for name, value in STARTED_WITH.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable, fork_server.__file__, str(theirs.fileno()),
                    "with-bridge" if with_bridge else "without-bridge", "gevent" if gevent else "no-patches",
                    " " * ROOM,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**kept, "PYTHONUNBUFFERED": "1", "ROOM": " " * ROOM},
                start_new_session=True,
            )  # fmt: skip
        assert self._control.recv(fork_server.REQUEST_SIZE) == b"ready", "the fork server did not start"

    def start(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], streams: Sequence[int]) -> Forked:
        """Starts ``arguments``, for which `can_fork` has said yes; ``streams``: standard input, output and error."""
        request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
        return Forked(self, int(self._ask(request, streams)))

    def reap(self, pid: int) -> int:
        """The exit code of a program that has ended."""
        return int(self._ask({"reap": pid}))

    def _ask(self, request: object, streams: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(streams))
            answer = self._control.recv(fork_server.REQUEST_SIZE)
        assert answer, "the fork server has ended"
        code: int = json.loads(answer)
        return code


def read_by_apps(*names: str) -> None:
    """Only apps read the variables with these prefixes, so a fork may have other values than its parent."""
    READ_LATER.extend(name for name in names if name not in READ_LATER and not name.startswith(READ_EARLY))


def take_environment() -> None:
    """Servers that start from now on get the environment that this process has now."""
    STARTED_WITH.clear()
    STARTED_WITH.update(os.environ)


@cache
def server(*, with_bridge: bool, gevent: bool = False) -> ForkServer:
    """The server of this test process, started when it is first needed."""
    return ForkServer(with_bridge=with_bridge, gevent=gevent)


def can_fork(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork becomes the same program as a new interpreter would: ``python -m bridge …``, ``-m celery …`` or
    ``-c code …``.
    """
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/stat").exists():
        return False
    if arguments[0] != sys.executable or not (
        arguments[1] == "-c" or (arguments[1] == "-m" and arguments[2] in MODULES)
    ):
        return False
    if pool_of(arguments) == "eventlet":  # there is no server with its patches
        return False

    def read_early(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if not name.startswith(tuple(READ_LATER))}

    return env.get("PYTHONUNBUFFERED") == "1" and read_early(env) == read_early(STARTED_WITH)


def pool_of(arguments: Sequence[str]) -> str:
    """The pool that a worker's command line chooses, as Celery finds it before it imports anything: "" for none."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in ("-P", "--pool"):
            return value or following
    return ""


def uses_this_bridge(cwd: Path, env: Mapping[str, str]) -> bool:
    """Whether a program would import the bridge of this checkout, and not a copy of it."""
    for folder in (cwd, *map(Path, filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))):
        if (folder / "bridge").is_dir():
            return folder.resolve() == ROOT
    return True


def start(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], streams: Sequence[int]) -> Forked:
    """Starts a program from a preloaded parent."""
    own = server(with_bridge=uses_this_bridge(cwd, env), gevent=pool_of(arguments) == "gevent")
    return own.start(arguments, cwd=cwd, env=env, streams=streams)


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, as `subprocess.run` would: forked where that makes no difference.

    Raises:
        subprocess.TimeoutExpired: It did not end; it was killed.
    """
    given = {**env, "PYTHONUNBUFFERED": "1"}
    if not can_fork(arguments, given):
        return subprocess.run(
            arguments, cwd=cwd, env=given, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    with TemporaryFile("w+") as source, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        source.write(stdin)
        source.seek(0)
        forked = start(arguments, cwd=cwd, env=given, streams=(source.fileno(), out.fileno(), err.fileno()))
        try:
            code = forked.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(forked.pid, signal.SIGKILL)
            forked.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())
