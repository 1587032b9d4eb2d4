"""On what a table was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.stack import ROOT, Stack


def describe() -> dict[str, str]:
    """The machine, the versions and the state of the checkout."""
    with Stack("plain") as stack:
        info = stack.redis.info("server")
    assert isinstance(info, dict)
    name = info.get("server_name", "redis")
    server = f"{name} {info.get(f'{name}_version', info['redis_version'])}"
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("celery", "kombu", "redis", "hiredis")},
        "server": f"{server}, append-only file on, fsync everysec",
        "commit": _commit(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
