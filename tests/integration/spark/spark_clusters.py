"""Spark masters other than ``local``: executors are separate processes, whose Python does not have this project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark
import pytest

from bridge.spark.job.java import find_java
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ProcessNode
from tests.spark_java import java_options

#: In Spark's own folder; what it brings is enough for a cluster of processes.
SPARK_HOME = Path(pyspark.__file__).parent
#: Two executors of one core, started by the driver's Java; and a single one, which is a Java less.
LOCAL_CLUSTER, ONE_EXECUTOR = "local-cluster[2,1,1024]", "local-cluster[1,1,1024]"
#: What an executor must bring, as the page says; PySpark itself comes with Spark. redis-py brings the last one before
#: Python 3.11.3.
NEEDED = ("pyarrow", "redis", "async_timeout")
#: Small, and quick to start.
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": java_options(),
    "spark.sql.shuffle.partitions": "2",
}


def python_with(folder: Path, packages: Sequence[str] = NEEDED, base: str | None = None) -> Path:
    """An environment whose Python has these packages of this one's, and nothing else; ``base`` makes it."""
    made_by = base or str(Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name)
    subprocess.run([made_by, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    there = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    here = Path(sysconfig.get_path("purelib"))
    for package in packages:
        for name in (package, f"{package}.libs"):
            if (here / name).exists():
                (there / name).symlink_to(here / name)
    return python


def other_python(folder: Path) -> Path:
    """The same of another version of Python; skips the test where there is none."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in ("3.13", "3.12", "3.11", "3.10"):
        places = (
            shutil.which(f"python{version}"),
            *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
        )
        for place in filter(None, places):
            if version != own and has(Path(place), "ensurepip"):
                return python_with(folder, (), base=place)
    pytest.skip("no Python of another version here")


#: On another machine there would be no files of the driver's.
_AWAY = """#!/bin/sh
case $PWD in
*/work/*)
    PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : "\\n" | grep -v ticket-bridge | paste -sd : -)
    export PYTHONPATH ;;
esac
exec {python} "$@"
"""


def away(python: Path) -> Path:
    """The same Python, which finds nothing of the driver's where an executor starts it: in the folder ``work``."""
    script = python.parent / "python-away"
    script.write_text(_AWAY.format(python=python))
    script.chmod(0o755)
    return script


def has(python: Path, module: str) -> bool:
    """Whether a Python can import a module from nowhere in particular."""
    arguments = [str(python), "-c", f"import {module}"]
    return subprocess.run(arguments, cwd="/", env={}, capture_output=True, check=False).returncode == 0


class StandaloneCluster:
    """Spark's own master and two workers, each a process, that know nothing of this project."""

    def __init__(self, yard: NodeYard, folder: Path) -> None:
        self._yard = yard
        self._folder = folder
        self.url = ""

    def start(self) -> None:
        """Returns when both workers are there."""
        master = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        master.wait_for_log("New state: ALIVE", timeout=120)
        found = re.search(r"Starting Spark master at (spark://\S+)", master.logs())
        assert found is not None, master.log_tail()
        self.url = found[1]
        place = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / "work"))
        arguments = ("org.apache.spark.deploy.worker.Worker", *place, self.url)
        for worker in [self._start(name, *arguments) for name in ("worker1", "worker2")]:
            worker.wait_for_log("Successfully registered with master", timeout=120)

    def _start(self, name: str, *arguments: str) -> ProcessNode:
        env = {
            **find_java().env,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            # Executors inherit it, and here it would name this project.
            "PYTHONPATH": "",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments[:1], "--webui-port", "0", *arguments[1:]]
        return self._yard.process(name, command, env=env, cwd=self._folder, wait=False)


def conf_arguments(conf: Mapping[str, str]) -> list[str]:
    """As a job's command line takes it."""
    return [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
