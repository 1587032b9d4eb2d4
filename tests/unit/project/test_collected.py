"""Tests are collected once for the processes that run them, and nothing of a run is lost by that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes of tests are forks on Linux only")

ONE = """
import os
import sys
import warnings

open(os.environ["COLLECTED_BY"], "a").write(f"{os.getpid()}\\n")
warnings.warn("seen while tests were collected")


def test_fails(tmp_path, worker_id):
    print("output of", worker_id, tmp_path.parent.name, os.environ["PYTEST_XDIST_WORKER"])
    print("an error", file=sys.stderr)
    assert not os.environ["COLLECTED_BY"]
"""
KILLED = """
import os
import signal

import pytest


def test_kills_its_process():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forks_report_what_processes_of_their_own_would(tmp_path: Path) -> None:
    for name, text in {"one": ONE, "killed": KILLED, "broken": "import no_such_module"}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    collected_by = tmp_path / "collected by"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.collected", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(tmp_path), "-n", "2", "--dist", "load", str(tmp_path),
        ],
        cwd=ROOT,
        # Of the plugins only that which distributes tests: to import the others takes most of the time.
        env={**outside, "COLLECTED_BY": str(collected_by), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(collected_by.read_text().splitlines()) == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stdout
    assert "crashed while running 'test_killed.py::test_kills_its_process'" in done.stdout
    worker = next(word for word in ("gw0", "gw1", "gw2") if f"output of {word}" in done.stdout)
    assert f"output of {worker} popen-{worker} {worker}" in done.stdout
    assert "an error" in done.stdout
    assert done.stdout.count("UserWarning: seen while tests were collected") == 1
    assert "2 failed" in done.stdout
    assert "1 error" in done.stdout
