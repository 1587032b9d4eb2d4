"""The jobs on masters whose executors are other processes, with a Python that has pyarrow and redis-py but not this
project. All are long: `test_source_executor.py` has what tasks do in such a Python, and `test_spark_packages.py` that
it gets the archive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bridge.spark.job.java import find_java
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.process import ROOT
from bridge.testing.nodes.yard import ProcessYard
from tests.integration.spark.spark_clusters import (
    EXECUTORS,
    LOCAL_CLUSTER,
    NEEDED,
    ONE_EXECUTOR,
    StandaloneCluster,
    away,
    conf_arguments,
    has,
    other_python,
    python_with,
)
from tests.integration.spark.spark_inputs import MORE, ROWS, TICKETS, write_inputs
from tests.integration.spark.spark_jobs import command, said
from tests.integration.spark.spark_round import AGAIN, STREAM

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executors' Python."""
    made = python_with(tmp_path_factory.mktemp("executors") / "env")
    # Or no test of this file could fail.
    assert not has(made, "bridge")
    assert has(made, "redis")
    return away(made)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with closing(ProcessYard(folder, "redis://nowhere")) as yard:
        cluster = StandaloneCluster(yard, folder)
        cluster.start()
        yield cluster


def environment(python: Path, folder: Path) -> dict[str, str]:
    """Of a driver. What it starts on its own machine must not find this project by accident, either."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **find_java().env, "PYSPARK_PYTHON": str(python), "SPARK_WORKER_DIR": str(folder / "work")}


def per_ticket(server: EmbeddedServer, stream: str) -> dict[str, list[int]]:
    """The sequences of each ticket's entries, in stream order."""
    found: dict[str, list[int]] = defaultdict(list)
    with server.client() as client:
        for _, fields in client.xrange(stream):
            found[fields[b"ticket_id"].decode()].append(int(json.loads(fields[b"payload"])["seq"]))
    return found


class Round:
    """Jobs one after the other on one master, and what must have come of it."""

    def __init__(self, server: EmbeddedServer, python: Path, folder: Path) -> None:
        self._server, self._python, self._folder = server, python, folder
        write_inputs(folder)

    def run(self, master: str, *jobs: str) -> None:
        conf = [f"{key}={value}" for key, value in EXECUTORS.items()]
        program = [sys.executable, str(ROOT / "tests" / "integration" / "spark" / "spark_round.py")]
        done = subprocess.run(
            [*program, master, self._server.url, str(self._folder), ",".join(jobs), *conf],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
            env=environment(self._python, self._folder),
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        ends = [event for event in said(done.stdout) if event["event"] == "done"]
        rows = dict(zip([job for job in jobs if job != "report"], (end["rows"] for end in ends), strict=True))
        count = ROWS + (MORE if "follow" in jobs else 0)
        archived = {"history": 0, "dead": 0, "messages": count}
        wanted = {"push": ROWS, "follow": MORE, "archive": archived, "messages": {"messages": count}, "replay": count}
        assert rows == {job: wanted[job] for job in rows}
        expected = {f"T{n}": list(range(n, count, TICKETS)) for n in range(TICKETS)}
        assert per_ticket(self._server, STREAM) == expected
        assert per_ticket(self._server, AGAIN) == (expected if "replay" in jobs else {})
        assert pq.read_table(self._folder / "archive" / "messages").num_rows == count
        assert (self._folder / "report" / "report.html").exists() == ("report" in jobs)


@pytest.fixture
def a_round(valkey: EmbeddedServer, python: Path, tmp_path: Path) -> Round:
    return Round(valkey, python, tmp_path / "round")


def test_a_push_and_an_archive_on_an_executor_that_the_driver_starts(a_round: Round) -> None:
    # One that writes and one that reads: replay writes as push does, and the other tables are read as messages are.
    a_round.run(ONE_EXECUTOR, "push", "messages")


class TestMatrix:
    """Every master with every job and every kind of Python that executors may have."""

    @pytest.fixture(params=["local-cluster", "standalone"])
    def master(self, request: pytest.FixtureRequest) -> str:
        if request.param == "local-cluster":
            return LOCAL_CLUSTER
        cluster: StandaloneCluster = request.getfixturevalue("standalone")
        return cluster.url

    @pytest.mark.parametrize("packages", [NEEDED, (*NEEDED, "hiredis")], ids=["needed", "hiredis"])
    def test_every_job_works(
        self, valkey: EmbeddedServer, master: str, packages: tuple[str, ...], tmp_path: Path
    ) -> None:
        python = away(python_with(tmp_path / "env", packages))
        Round(valkey, python, tmp_path / "round").run(master, "push", "follow", "archive", "report", "replay")

    def job(self, server: EmbeddedServer, python: Path, master: str, folder: Path, *arguments: str) -> tuple[int, str]:
        """A job as a user starts it: its exit code and the line that it ends with."""
        done = subprocess.run(
            [*command(*arguments), "--master", master, "--progress=none", *conf_arguments(EXECUTORS)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**environment(python, folder), "TICKET_BRIDGE_URL": server.url},
        )
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return done.returncode, done.stderr

    @pytest.mark.parametrize("job", ["push", "follow", "archive", "replay"])
    @pytest.mark.parametrize(
        ("python", "said"),
        [("empty", "has no module "), ("nowhere", "which does not exist"), ("other", "and the driver's is 3.")],
    )
    def test_a_python_that_does_not_do_is_one_line(
        self, valkey: EmbeddedServer, job: str, python: str, said: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "round"
        write_inputs(folder)
        with valkey.client() as client:
            client.xadd(STREAM, {"ticket_id": "T", "payload": "{}"})
        following = ("landing", "--format=csv", "--follow", "--available-now", "--checkpoint", str(folder / "kept"))
        arguments = {
            "push": ("push", "log.csv"),
            "follow": ("push", *following),
            "archive": ("archive", "archive"),
            "replay": ("replay", "lives", "--stream", AGAIN, "--allow-missing"),
        }[job]
        where = {"empty": lambda: python_with(tmp_path / "env", ()), "other": lambda: other_python(tmp_path / "env")}
        chosen = where.get(python, lambda: tmp_path / "nowhere" / "python")()
        code, line = self.job(valkey, chosen, LOCAL_CLUSTER, folder, *arguments)
        assert (code, said in line) == (2, True), line
        with valkey.client() as client:
            assert (client.xlen(STREAM), client.xlen(AGAIN)) == (1, 0)

    def test_a_bad_row_that_an_executor_finds_is_one_line(
        self, valkey: EmbeddedServer, python: Path, master: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "round"
        write_inputs(folder)
        with (folder / "log.csv").open("a") as log:
            log.write("T0,0,again\n")
        code, line = self.job(valkey, python, master, folder, "push", "log.csv")
        assert code == 1
        assert "T0" in line

    def test_a_server_that_an_executor_may_not_write_to_is_one_line(
        self, python: Path, master: str, tmp_path: Path, own_server: EmbeddedServer
    ) -> None:
        folder = tmp_path / "round"
        write_inputs(folder)
        with own_server.client() as client:
            # The driver may look at the stream, and the executors may not write.
            client.execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "+@connection", "+info")
        url = own_server.url.replace("://", "://reader:x@")
        code, line = self.job(own_server, python, master, folder, "push", "log.csv", "--url", url)
        assert code == 1
        assert "x@" not in line
