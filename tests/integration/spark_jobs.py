"""The jobs as programs: started by this Python, submitted to Spark, or called where they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
from click.testing import CliRunner, Result

from bridge.spark.job.java import find_java
from tests.nodes.process import ROOT

Said = list[dict[str, Any]]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
#: What whoever submits says of the cluster. Of 200 partitions, which is the default, each would be a task without rows.
CLUSTER = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false")


def command(job: str, *words: str | Path) -> list[str]:
    """``python -m spark.<job> …``."""
    return [sys.executable, "-m", f"bridge.spark.{job}", *map(str, words)]


def run(job: str, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A job, to its end; ``env`` on top of this process's."""
    return subprocess.run(
        command(job, *words), capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **(env or {})}
    )


def submit(job: str, *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Said:
    """A job by ``spark-submit``, from elsewhere and with nothing on the path: what it said. Fails when the job does."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(SUBMIT), *CLUSTER, str(ROOT / "spark" / f"{job}.py"), *map(str, words), "--progress=json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**clean, **find_java().env, "PYSPARK_PYTHON": sys.executable, **(env or {})},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Of Spark's own words, which here are as Spark is configured, some may come between.
    return said(done.stdout)


def said(text: str) -> Said:
    """The JSON lines of a job's output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def refused(main: click.Command, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Result:
    """A job that ends before Java is even looked for, with one line on standard error and nothing else."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("Java was started")

    monkeypatch.setattr("bridge.spark.job.session.find_java", never)
    done = CliRunner().invoke(main, words)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done
