"""The jobs as programs: started by this Python, submitted to Spark, or called in this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyspark
import pytest
from click.testing import Result

from bridge.spark.job.java import find_java
from bridge.testing.nodes.process import ROOT
from tests.commands import runner
from tests.integration.spark.spark_session import DEALT_OUT, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Said = list[dict[str, Any]]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
#: The options of a submit. With the default of 200 partitions, most tasks would have no rows.
CLUSTER = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false")


def command(job: str, *arguments: str | Path) -> list[str]:
    """``python -m spark.<job> …``."""
    return [sys.executable, "-m", f"bridge.spark.{job}", *map(str, arguments)]


class JobsHere:
    """Calls a job's command in this process. Its session is the one that the tests share, which it does not end.

    For all that is not about the process: a Java of its own costs each job some ten seconds of processor time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def shared(_name: str, *, conf: Mapping[str, str] | None = None, **_: object) -> SparkSession:
            made = session_of(conf={**DEALT_OUT, **(conf or {})})
            monkeypatch.setattr(made, "stop", lambda: None)
            return made

        monkeypatch.setattr("bridge.spark.job.session.local_session", shared)
        monkeypatch.setattr("bridge.spark.job.session.end_java", lambda: None)

    def __call__(self, main: click.Command, *arguments: str | Path) -> Said:
        """What the job said. Fails when the job does, and when it says anything else than JSON lines."""
        done = runner().invoke(main, [*map(str, arguments), "--progress", "json"])
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return [json.loads(line) for line in done.stdout.splitlines()]


def submit(job: str, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Said:
    """A job by ``spark-submit``, from elsewhere and with nothing on the path: what it said. Fails when the job does."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(SUBMIT), *CLUSTER, str(ROOT / "spark" / f"{job}.py"), *map(str, arguments), "--progress=json"],
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


def without_java(folder: Path) -> dict[str, str]:
    """A PATH that has everything but Java, and a cache of its own for the script that starts the wheel's Java."""
    programs = folder / "bin"
    programs.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = programs / program.name
            if program.name != "java" and not link.exists():
                link.symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    return {"PATH": str(programs), "JAVA_HOME": "", "XDG_CACHE_HOME": str(folder / "cache")}


def refused(main: click.Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Result:
    """A job that ends before Java is even looked for, with one line on standard error and nothing else."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("Java was started")

    monkeypatch.setattr("bridge.spark.job.session.find_java", never)
    done = runner().invoke(main, arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done
