"""Collects the tests once for all processes of ``pytest -n``: they are forks of one that has collected.

A plugin. Otherwise each of them would import and collect all tests for itself, 11 seconds of a processor.

`Collected` is the part of the process that distributes the tests. It starts the collecting process
(`tests.collecting`), and lets xdist start `enter.py` wherever it would start an interpreter. That small program hands
its streams to the collecting process, which forks, and the fork (`tests.forks`) speaks with xdist through them.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import execnet

ROOT = Path(__file__).resolve().parents[1]
#: Hands its streams over. It imports nothing that an interpreter does not have.
ENTER = Path(__file__).with_name("enter.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    """Lets the processes of xdist be forks, where a fork without an exec is sound."""
    if sys.platform == "linux":
        collected = Collected([str(argument) for argument in config.invocation_params.args])
        collected.take(specs)
        config.add_cleanup(collected.close)


class Collected:
    """The collecting process, as the one that distributes the tests sees it."""

    def __init__(self, arguments: list[str]) -> None:
        self._folder = TemporaryDirectory(prefix="ticket-bridge-tests-")
        self._address = f"{self._folder.name}/collected"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(self._address)
            listening.listen(64)
            # It ends with its standard input, which ends with this process.
            self._process = subprocess.Popen(
                [
                    sys.executable, "-c", "from tests.collecting import collect; collect()",
                    str(listening.fileno()), json.dumps(arguments),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
            )  # fmt: skip

    def take(self, specs: list[execnet.XSpec]) -> None:
        """Lets the processes that xdist starts by these specifications be forks."""
        program = shlex.join([sys.executable, "-S", "-E", str(ENTER), self._address])
        for spec in specs:
            if spec.popen and not spec.python:
                spec.python = program

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()
