"""Starts Python programs by forking: what most of a test's processes import is imported once, here.

Run as a script, with the number of a connected socket and "with-bridge" or "without-bridge". Each request names a
program (``python -m module …``), its folder and its environment, and carries its three standard streams. The fork
becomes that program: session, streams, folder, environment, arguments and search path are those that a new interpreter
would have, and so is what other processes read of it under ``/proc``. Nothing of an app is imported before the fork.

A program that has ended stays a zombie until the test asks for its exit code, as a child of the test itself would. The
server ends with the test process, by the end of the socket.

Only the standard library may be imported at the top.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Bytes of one request at most.
REQUEST_SIZE = 1 << 18
#: What tells a node's processes apart. The kernel shows as much of an environment as the server's own took.
MARK = "TICKET_BRIDGE_TEST_NODE"
#: What a worker and a master have imported when they are ready, but for the bridge and the app.
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

#: The worker's part of the bridge, which Celery loads by name when a worker is made; all but the module that hears
#: Celery's signals, which only a worker's process does.
WORKERS_PART = (
    "bridge.worker.main.server_check", "bridge.worker.pool.execute", "bridge.worker.main.member",
    "bridge.worker.pool.calls", "bridge.worker.main.revoking", "bridge.worker.main.strategy",
)  # fmt: skip


def preload(with_bridge: bool) -> None:
    """Import what programs need; with the bridge, what it imports for every app."""
    for name in LIBRARIES:
        importlib.import_module(name)
    if with_bridge:
        sys.path.insert(0, str(ROOT))
        bridge = importlib.import_module("bridge")
        # By their public names: they import the modules behind them.
        for name in bridge.__all__:
            getattr(bridge, name)
        for name in WORKERS_PART:
            importlib.import_module(name)
        importlib.import_module("celery.bin.celery")
        commands = importlib.import_module("bridge.cli.main").COMMANDS
        for command in ("run", "status", "ticket", "consumer", "dead", "push"):
            importlib.import_module(commands[command].partition(":")[0])
        sys.path.remove(str(ROOT))
    else:
        assert "bridge" not in sys.modules
    assert threading.active_count() == 1, threading.enumerate()
    # Kept out of the collector's sight, and so on pages that forks share.
    gc.collect()
    gc.freeze()


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
    """What a fork becomes: ``python -m module …``."""

    def __init__(self, request: dict[str, Any], streams: list[int]) -> None:
        self.arguments: list[str] = request["arguments"]
        self.cwd: str = request["cwd"]
        self.env: dict[str, str] = request["env"]
        self.streams = streams

    def take_place(self, base_path: list[str]) -> None:
        """Makes this fork look as the program's own interpreter would."""
        os.setsid()
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
        for stream in self.streams:
            os.close(stream)
        os.chdir(self.cwd)
        # The library's own environment follows, so nothing points into the memory that is written over.
        for name in list(os.environ):
            del os.environ[name]
        os.environ.update(self.env)
        show(48, self.arguments)
        show(50, [f"{name}={self.env[name]}" for name in sorted(self.env, key=lambda name: name != MARK)])
        paths = [path for path in self.env.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [str(Path.cwd()), *paths, *base_path]
        sys.argv = self.arguments[2:]
        sys.orig_argv = list(self.arguments)
        importlib.invalidate_caches()

    def run(self) -> None:
        runpy.run_module(self.arguments[2], run_name="__main__", alter_sys=True)


def serve(control: socket.socket) -> Program:
    """Answers requests; returns in forks only."""
    while True:
        data, streams, _, _ = socket.recv_fds(control, REQUEST_SIZE, 3)
        if not data:
            raise SystemExit
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            return Program(request, streams)
        for stream in streams:
            os.close(stream)
        control.send(json.dumps(pid).encode())


def main() -> None:
    # Without the folder of this script.
    base_path = sys.path[1:]
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    preload(sys.argv[2] == "with-bridge")
    control.send(b"ready")
    program = serve(control)
    program.take_place(base_path)
    program.run()


if __name__ == "__main__":
    main()
