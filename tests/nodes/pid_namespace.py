"""A node in a process namespace of its own, as in a container: the end of its first process ends all of them."""

from __future__ import annotations

import shutil
import subprocess

import psutil

from bridge.testing.nodes.process import ProcessNode
from bridge.testing.waiting import wait_until

#: The network, the files and the user stay the test's.
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not() -> str:
    """Why this machine lets nobody make such a namespace; empty when it does."""
    if shutil.which("unshare") is None:
        return "no unshare here (util-linux)"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no process namespace for this user: {done.stderr.strip()}" if done.returncode else ""


def contained(node: ProcessNode, *init: str) -> None:
    """Makes ``node``, before its start, run in a namespace of its own, as the child of the program ``init`` if any."""
    node.command = [*UNSHARE, *init, *node.command]


def first_process(node: ProcessNode) -> psutil.Process:
    """The one that is number 1 to those inside."""
    assert node.pid is not None
    [first] = wait_until(psutil.Process(node.pid).children, description="the first process")
    return first


def worker_process(node: ProcessNode) -> psutil.Process:
    """Celery's main process: the first one, or its child."""
    first = first_process(node)
    for process in (first, *first.children()):
        arguments = process.cmdline()
        if "celery" in arguments and "bridge.worker.init" not in arguments and "-c" not in arguments:
            return process
    raise AssertionError(f"no worker in {node!r}")
