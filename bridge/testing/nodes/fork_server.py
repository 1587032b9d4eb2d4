"""Starts Python programs by forking. The modules that most processes of a test import are imported once, here.

Run as a script, with the number of a connected socket, "with-bridge" or "without-bridge", and "gevent" for programs
that begin with its patches. Each request names a program (``python -m module …`` or ``python -c code …``), its folder
and its environment, and carries its three standard streams. The fork becomes that program: session, streams, folder,
environment, arguments and search path are those that a new interpreter would have. Other processes also see these under
``/proc``. Nothing of an app is imported before the fork.

A program that has ended stays a zombie until the test asks for its exit code, as a child of the test itself would. The
server ends with the test process, by the end of the socket.

A real worker starts its watcher as a new interpreter. Here the worker forks it, which saves the imports. Tests of the
watcher itself set `WATCHER_BY_EXEC`.

Only the standard library may be imported at the top.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
#: Bytes of one request at most.
REQUEST_SIZE = 1 << 18
#: The variable that tells a node's processes apart. ``/proc/PID/environ`` shows at most the size of the server's first
#: environment.
MARK = "TICKET_BRIDGE_TEST_NODE"
#: The module that a watcher runs, and the variable that lets a worker start it as a new interpreter.
WATCHER = "bridge.worker.guard.watcher"
WATCHER_BY_EXEC = "TICKET_BRIDGE_TEST_WATCHER_BY_EXEC"
#: What a worker and a master have imported when they are ready, without the bridge and the app.
LIBRARIES = (
    "billiard.managers", "billiard.pool", "billiard.popen_fork", "billiard.sharedctypes", "celery.app.amqp",
    "celery.app.annotations", "celery.app.builtins", "celery.app.control", "celery.app.events",
    "celery.app.log", "celery.app.task", "celery.app.trace", "celery.apps.worker", "celery.backends.redis",
    "celery.bin.base", "celery.bin.worker", "celery.concurrency.asynpool", "celery.concurrency.prefork",
    "celery.concurrency.solo", "celery.concurrency.thread", "celery.events.state", "celery.fixups.django",
    "celery.loaders.app", "celery.worker.autoscale", "celery.worker.components",
    "celery.worker.consumer.delayed_delivery", "celery.worker.control", "celery.worker.strategy",
    "celery.worker.worker", "hiredis", "kombu.transport.memory", "kombu.transport.redis", "orjson", "psutil",
    "pydantic", "redis.asyncio", "redis.sentinel",
)  # fmt: skip

#: The worker's part of the bridge, which Celery loads by name when a worker is made. Without the module that receives
#: Celery's signals: only the process of a worker may do that.
WORKERS_PART = (
    "bridge.worker.main.server_check", "bridge.worker.pool.execute", "bridge.worker.main.member",
    "bridge.worker.pool.calls", "bridge.worker.main.revoking", "bridge.worker.main.strategy",
)  # fmt: skip
#: The master's part, which `bridge run` imports when it is called.
MASTERS_PART = ("bridge.master.process",)
#: What `bridge run --http` imports, where the extra is installed.
HTTP_PART = ("bridge.http.serving", "encodings.idna", "uvicorn.lifespan.off", "uvicorn.loops.asyncio")
#: With it a process of billiard's pool ends with its parent, where it is installed.
CFFI = ("_cffi_backend", "cffi.cparser", "pycparser.c_parser")


def are_installed(*names: str) -> bool:
    """Whether all of these modules can be imported."""
    return all(importlib.util.find_spec(name) for name in names)


def preload(with_bridge: bool, with_http: bool) -> None:
    """Imports what programs need, and with the bridge what it imports for every app."""
    for name in LIBRARIES:
        importlib.import_module(name)
    if are_installed("cffi", "pycparser"):
        for name in CFFI:
            importlib.import_module(name)
    if with_bridge:
        sys.path.insert(0, str(ROOT))
        bridge = importlib.import_module("bridge")
        # By their public names: they import the modules behind them.
        for name in bridge.__all__:
            getattr(bridge, name)
        for name in (*WORKERS_PART, *MASTERS_PART):
            importlib.import_module(name)
        if with_http and are_installed("fastapi", "uvicorn"):
            for name in HTTP_PART:
                importlib.import_module(name)
        importlib.import_module("celery.bin.celery")
        commands = importlib.import_module("bridge.cli.main").COMMANDS
        for command in ("run", "status", "ticket", "consumer", "dead", "push"):
            importlib.import_module(commands[command].partition(":")[0])
        sys.path.remove(str(ROOT))
    else:
        assert "bridge" not in sys.modules
    remember_redis_version()
    assert threading.active_count() == 1, threading.enumerate()
    # Frozen for the collector, so forks share these pages.
    gc.collect()
    gc.freeze()


def remember_redis_version() -> None:
    """Let redis-py read its version once, and not for each connection that it makes: 0.5 ms of each."""
    utils: Any = importlib.import_module("redis.utils")
    if hasattr(utils, "get_lib_version"):
        utils.get_lib_version = functools.cache(utils.get_lib_version)


def own_area(first: int) -> tuple[int, int]:
    """Where the kernel reads the arguments (field 48 of proc(5)'s stat) or the environment (50) from, and its size."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[first - 3]), int(fields[first - 2])
    return start, end - start


def show(first: int, arguments: list[str]) -> None:
    """Lets others see ``arguments`` as this process's arguments or environment."""
    start, size = own_area(first)
    shown = b"".join(os.fsencode(word) + b"\0" for word in arguments)[: size - 1]
    ctypes.memset(start, 0, size)
    ctypes.memmove(start, shown, len(shown))


class Program:
    """What a fork becomes: ``python -m module …`` or ``python -c code …``."""

    def __init__(self, arguments: Sequence[str], env: dict[str, str]) -> None:
        self.arguments = list(arguments)
        self.env = env
        self.is_code = self.arguments[1] == "-c"

    def take_place(self, base_path: list[str]) -> None:
        """Makes this fork look as the program's own interpreter would."""
        # The library's own environment follows, so nothing points into the memory that is written over.
        for name in list(os.environ):
            del os.environ[name]
        os.environ.update(self.env)
        show(48, self.arguments)
        show(50, [f"{name}={self.env[name]}" for name in sorted(self.env, key=lambda name: name != MARK)])
        paths = [path for path in self.env.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = ["" if self.is_code else str(Path.cwd()), *paths, *base_path]
        sys.argv = ["-c", *self.arguments[3:]] if self.is_code else self.arguments[2:]
        sys.orig_argv = list(self.arguments)
        importlib.invalidate_caches()

    def run(self) -> None:
        if not self.is_code:
            runpy.run_module(self.arguments[2], run_name="__main__", alter_sys=True)
            return
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(self.arguments[2], "<string>", "exec"), vars(main))  # noqa: S102


def fork_watchers(base_path: list[str]) -> None:
    """Lets this program fork what it starts as a watcher. All else is started as before."""
    execute: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(execute)

    def execute_or_fork(*given: Any) -> None:
        asked = signature.bind(*given).arguments
        popen, arguments = asked["self"], asked["args"]
        if not isinstance(arguments, list) or arguments[:3] != [sys.executable, "-m", WATCHER]:
            execute(*given)
            return
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_watcher(Program(arguments, dict(asked["env"])), base_path, asked, tell)
        popen.pid = pid
        popen._child_created = True
        popen._close_pipe_fds(*(asked[name] for name in PIPES))
        os.close(tell)
        # Until the fork looks like a watcher, as `Popen` waits for an exec. Others would take it for a pool process.
        select.select([told], [], [], TAKES_PLACE_WITHIN_S)
        os.close(told)

    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]


#: Seconds that a fork may need until it looks like a watcher. It may have been killed before.
TAKES_PLACE_WITHIN_S = 60.0
#: How `subprocess.Popen` names the ends of its pipes.
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _be_watcher(program: Program, base_path: list[str], asked: dict[str, Any], tell: int) -> None:
    """Runs as a watcher to the end of this process, with no open file of the worker except those in the request.
    ``tell``: where it says that its process looks like one.
    """
    code = 1
    try:
        # No garbage collection here: a finaliser could close a file descriptor that is in use again.
        gc.freeze()
        os.setsid()
        os.dup2(asked["p2cread"], 0)
        os.dup2(asked["c2pwrite"], 1)
        for number in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
            if number > 2 and number not in (*asked["pass_fds"], tell):
                _close(number)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        # It must import its own module, and not use the one that the worker has imported.
        del sys.modules[WATCHER]
        program.take_place(base_path)
        os.write(tell, b"1")
        os.close(tell)
        program.run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:  # the descriptor that was used to list them
        return


def stand_alone(request: dict[str, Any], streams: list[int], tell: int) -> Program:
    """Gives this fork a session, and the streams and the folder of a program. Returns what the fork becomes. ``tell``:
    is closed when it has its session.
    """
    os.setsid()
    os.close(tell)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(request["cwd"])
    return Program(request["arguments"], request["env"])


def serve(control: socket.socket, fork: Callable[[], int]) -> Program:
    """Answers requests. Returns only in forks."""
    while True:
        data, streams, _, _ = socket.recv_fds(control, REQUEST_SIZE, 3)
        if not data:
            raise SystemExit
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        told, tell = os.pipe()
        pid = fork()
        if pid == 0:
            control.close()
            os.close(told)
            return stand_alone(request, streams, tell)
        for stream in (*streams, tell):
            os.close(stream)
        # As `Popen` waits for an exec: a signal to the process group of the fork may be the next thing.
        os.read(told, 1)
        os.close(told)
        control.send(json.dumps(pid).encode())


def main() -> None:
    """Preloads, and then forks for each request until the socket ends."""
    # Without the folder of this script.
    base_path = sys.path[1:]
    sys.path[:] = base_path
    number, bridge, patches = sys.argv[1:4]
    # Made before gevent's patches: the server uses no hub, so a fork inherits none.
    control, fork = socket.socket(fileno=int(number)), os.fork
    control.set_inheritable(False)
    # A worker's banner names the platform. Python asks a program for a part of that, and keeps the answer.
    platform.platform()
    if patches == "gevent":
        importlib.import_module("celery").maybe_patch_concurrency(["--pool=gevent"])
    # A worker of a gevent pool has no port, and its patches would open files for what this imports.
    preload(bridge == "with-bridge", with_http=patches != "gevent")
    control.send(b"ready")
    program = serve(control, fork)
    program.take_place(base_path)
    # gevent replaces `os.fork`: a watcher is started as a new interpreter then.
    if patches != "gevent" and WATCHER_BY_EXEC not in program.env:
        fork_watchers(base_path)
    run_to_the_end(program)


def run_to_the_end(program: Program) -> None:
    """Run the program, and end this process as an interpreter does, but for taking its modules apart.

    That would touch, and so copy, nearly every page that this fork shares with its parent: half of the processor time
    of a program that starts and ends. An end by an exception is left to the interpreter.
    """
    code = 0
    try:
        program.run()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise  # a text, which the interpreter prints
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
