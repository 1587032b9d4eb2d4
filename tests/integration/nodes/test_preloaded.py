"""A program that is forked from a preloaded parent is the one that a new interpreter would run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.fork_server import MARK, WATCHER_BY_EXEC
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.nodes.process import ROOT, ProcessNode, python_module
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: What an app sees of its process while it is imported.
PROBE = """
import gc, json, logging, multiprocessing, os, random, signal, sys, threading
from pathlib import Path
import billiard
import kombu.common
from celery import _state
import bridge

status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
main = sys.modules["__main__"]
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags), "cwd": os.getcwd(),
    "environ": dict(os.environ), "warnoptions": sys.warnoptions, "executable": sys.executable,
    "shown arguments": [word for word in Path("/proc/self/cmdline").read_text().split("\\0") if word],
    "shown environment": sorted(word for word in Path("/proc/self/environ").read_text().split("\\0") if word),
    "leads its session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "name": status["Name"], "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "umask": os.umask(0o22), "descriptors": [n for n in range(256) if Path(f"/proc/self/fd/{n}").exists()],
    "threads": [thread.name for thread in threading.enumerate()],
    "streams": [[s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
    "main": [main.__name__, main.__file__, main.__spec__.name, main.__package__],
    "collector": [gc.isenabled(), gc.get_threshold()],
    "log": [logging.root.level, [str(one) for one in logging.root.handlers]],
    "processes": [multiprocessing.current_process().name, billiard.current_process()._name],
    "apps": len(_state._apps), "node": kombu.common._node_id, "bridge": bridge.__file__,
}
print(json.dumps([facts, random.random()]), flush=True)
os._exit(7)
"""

WORDS = python_module("celery", "-A", "probe", "worker")


def seen(yard: NodeYard, folder: Path, program: str, *, preload: bool, **env: str) -> tuple[dict[str, Any], float]:
    """What the probe reports as the app of ``python -m program``, and its first random number."""
    module, *words = program.split()
    name = f"{module}-{len(yard.nodes)}"
    command = python_module(module, "-A", "probe", *(words or ["run"]))
    node = ProcessNode(name, command, log_file=folder / f"{name}.log", cwd=folder, env=env)
    node.preload = preload
    yard.add(node, wait=False)
    assert node.wait(60) == 7, node.log_tail()
    facts, number = json.loads(node.logs())
    mark = facts["environ"].pop("TICKET_BRIDGE_TEST_NODE")
    facts["shown environment"].remove(f"TICKET_BRIDGE_TEST_NODE={mark}")
    return facts, number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "probe.py").write_text(PROBE)
    return folder


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


@pytest.mark.parametrize("program", ["bridge", "celery worker", "celery worker --pool gevent"])
def test_an_app_sees_the_process_that_it_would_see(nodes: NodeYard, folder: Path, program: str) -> None:
    env = {"SHOP": "a b=c", "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    fresh, _ = seen(nodes, folder, program, preload=False, **env)
    forked, number = seen(nodes, folder, program, preload=True, **env)
    another, other_number = seen(nodes, folder, program, preload=True, **env)
    if program.endswith("gevent") and sys.version_info >= (3, 13):
        # There, gevent in a fork lists the first thread twice.
        forked["threads"], another["threads"] = fresh["threads"], fresh["threads"]
    assert forked == fresh
    assert another == fresh
    assert number != other_number


def test_a_copy_of_the_bridge_is_not_taken_for_the_one_of_this_checkout(nodes: NodeYard, folder: Path) -> None:
    copy = folder / "bridge"
    copy.mkdir()
    (copy / "__init__.py").write_text("")
    (copy / "__main__.py").write_text("import probe")
    found, _ = seen(nodes, folder, "bridge", preload=True)
    assert found["bridge"] == str(copy / "__init__.py")


def of_its_watcher(worker: WorkerNode) -> dict[str, Any]:
    """What other processes see of a watcher."""
    watcher = worker.watcher_at_work()
    told = Path(f"/proc/{watcher.pid}")
    status = dict(line.split(":\t", 1) for line in (told / "status").read_text().splitlines() if ":\t" in line)
    shown = sorted(word for word in (told / "environ").read_text().split("\0") if word)
    assert worker.pid is not None

    def opened() -> list[str]:
        names = []
        for path in (told / "fd").iterdir():
            # One that it closes just now is not open.
            with suppress(FileNotFoundError):
                names.append(path.readlink().name.partition(":")[0])
        # A newer libffi keeps its own file open, where it was loaded in this process.
        return sorted(name for name in names if "libffi" not in name)

    if hasattr(os, "pidfd_open"):
        wait_until(lambda: "anon_inode" in opened(), description="the watcher to hold its worker's main process")
    return {
        "parent": watcher.ppid() == worker.pid,
        "leads its session": os.getsid(watcher.pid) == watcher.pid == os.getpgid(watcher.pid),
        "arguments": [word for word in watcher.cmdline() if word],
        "environment": [word for word in shown if not word.startswith((MARK, WATCHER_BY_EXEC))],
        "cwd": watcher.cwd(),
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "threads": watcher.num_threads(),
        "open": opened(),
        "children": worker.children() == [],
    }


@pytest.mark.parametrize("pool", [pytest.param("solo", marks=pytest.mark.long), "prefork"])
def test_a_watcher_that_its_worker_forked_is_the_one_that_it_would_start(lane: LaneUnderTest, pool: str) -> None:
    found = []
    for by_exec in (False, True):
        lane.env |= {WATCHER_BY_EXEC: "1"} if by_exec else {}
        worker = lane.worker("w1", f"--pool={pool}", "--concurrency=1")
        found.append(of_its_watcher(worker))
        assert worker.terminate() == 0
        wait_until(lambda worker=worker: not worker.survivors(), description="the watcher to end")  # type: ignore[misc]
    assert found[0] == found[1]


class TestForked:
    @pytest.fixture
    def node(self, nodes: NodeYard, folder: Path) -> ProcessNode:
        (folder / "sleepy.py").write_text(
            "import multiprocessing, time\n"
            "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)).start()\n"
            "print('sleeping', flush=True)\ntime.sleep(600)\n"
        )
        return nodes.process("sleepy", python_module("celery", "-A", "sleepy", "worker"), cwd=folder, wait=False)

    @pytest.fixture(autouse=True)
    def _asleep(self, node: ProcessNode) -> None:
        node.wait_for_log("sleeping")
        assert isinstance(node._process, preloaded.Forked)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
    def test_a_signal_is_its_exit_code(self, node: ProcessNode, number: signal.Signals) -> None:
        node.send(number)
        assert node.wait() == -number
        assert node.exit_code == -number
        assert not node.running

    def test_it_stays_a_zombie_until_its_exit_code_is_read(self, node: ProcessNode) -> None:
        assert node.pid is not None
        process = psutil.Process(node.pid)
        process.kill()
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, description="the process to end")
        assert node.exit_code == -signal.SIGKILL
        assert not process.is_running()

    def test_its_children_carry_its_mark(self, node: ProcessNode) -> None:
        assert len(node.survivors()) == 2
        node.kill_main()
        assert len(node.survivors()) == 1
        node.vanish()
        assert node.survivors() == []

    def test_waiting_for_a_running_task_is_limited(self, node: ProcessNode) -> None:
        with pytest.raises(AssertionError, match=r"did not end within 0\.1 s"):
            node.wait(0.1)
        assert node.running


def test_what_the_tests_start_is_forked(nodes: NodeYard) -> None:
    """A variable that a conftest sets, or one of the apps of the tests, does not cost a start from nothing."""
    node = nodes.worker("w1", app="tests.apps.counter", env={"COUNTER_LEASE": "4"}, start=False)
    assert preloaded.can_fork(node.command, node.environment())
    assert not preloaded.can_fork(node.command, {**node.environment(), "UNKNOWN": "1"})


def test_a_fork_leads_its_process_group_when_it_is_there() -> None:
    # It waits for the signal. A program that ends by itself would be there first on a busy machine.
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    with Path(os.devnull).open("r+b") as nothing:
        for _ in range(20):
            streams = (nothing.fileno(),) * 3
            process = preloaded.start(program, cwd=ROOT, env=dict(os.environ), streams=streams)
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["/usr/bin/env", *WORDS], {}),
        (["/other/python", *WORDS[1:]], {}),
        (python_module("http.server"), {}),
        ([sys.executable, "program.py"], {}),
        ([sys.executable, "-c", "pass"], {"PYTHONHASHSEED": "1"}),
        ([*WORDS, "--pool=eventlet"], {}),
        (WORDS, {"LD_PRELOAD": "x.so"}),
        (WORDS, {"PYTHONHASHSEED": "1"}),
        (WORDS, {"REMAP_SIGTERM": "SIGQUIT"}),
        (WORDS, {"PYTHONUNBUFFERED": ""}),
    ],
)
def test_a_command_of_another_interpreter_is_not_forked(arguments: list[str], change: dict[str, str]) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    assert preloaded.can_fork(WORDS, env)
    assert not preloaded.can_fork(arguments, {**env, **change})


CODE = """
import os, sys
import probe
print(__name__, sys.argv, sys.orig_argv, sys.path, os.getcwd(), sys.modules["__main__"].probe is probe)
class Odd(Exception): pass
print(Odd.__module__, file=sys.stderr)
sys.exit(f"asked for {sys.stdin.read()}")
"""


def test_code_of_a_command_line_runs_as_in_a_new_interpreter(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("")
    command = [sys.executable, "-c", CODE, "a word"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(tmp_path / "none")}
    assert preloaded.can_fork(command, env)
    forked = preloaded.run(command, cwd=tmp_path, env=env, stdin="it")
    new = subprocess.run(
        command, cwd=tmp_path, env=env, input="it", capture_output=True, text=True, check=False, timeout=60
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)
    assert (new.returncode, new.stderr) == (1, "__main__\nasked for it\n")


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal; from bridge.testing.nodes import preloaded; "
        "print(preloaded.server(with_bridge=False)._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=60)
    pid = int(ended.stdout)
    wait_until(lambda: not psutil.pid_exists(pid), description="the server to end")
