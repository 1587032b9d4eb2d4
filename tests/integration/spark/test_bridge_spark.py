"""`bridge spark`: the process becomes the job, and options that the user omits come from the app."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import psutil
import pytest

from bridge.routing.keys import layout_key
from bridge.routing.layouts import find_layout
from bridge.spark import archive, push, replay, report
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.process import ROOT, ProcessNode
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.commands import CommandLine, command_line, runner
from tests.integration.spark.spark_clusters import python_with
from tests.integration.spark.spark_jobs import command, said, submit

SECRET = "hunter2"
URL = f"redis://user:{SECRET}@127.0.0.1:1/3"
APP = "tests.apps.counter"


@dataclass
class Became:
    """What a command became."""

    program: str
    arguments: list[str]
    env: dict[str, str]


class Commands:
    """`bridge spark …` in this process, of an app of this test's, and what it would have become."""

    def __init__(self, shell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shell = shell
        self._became: Became | None = None
        monkeypatch.setattr(os, "execve", self._exec)
        monkeypatch.delenv("TICKET_BRIDGE_URL", raising=False)

    def _exec(self, program: str, command: list[str], env: dict[str, str]) -> NoReturn:
        assert (program, command[0]) == (sys.executable, sys.executable)
        self._became = Became(command[1], command[2:], env)
        raise SystemExit(0)

    def become(self, *arguments: str) -> Became:
        """What ``bridge -A APP spark …`` becomes."""
        done = self._shell("spark", *arguments)
        assert (done.exit_code, done.output) == (0, "")
        assert self._became is not None
        return self._became

    def refused(self, *arguments: str) -> str:
        """The line with which it is refused as wrong usage."""
        done = self._shell("spark", *arguments)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        return done.stderr

    def forget_app(self) -> None:
        """From now on the app that is named is not there."""
        self._shell.app = "no_such_app"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    with command_line(tmp_path, monkeypatch, URL) as shell:
        yield Commands(shell, monkeypatch)


@pytest.fixture
def of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """Commands of an app with two subscriptions."""
    subscriptions = {"billing": {"task": "shop.update"}, "search": {"task": "shop.once"}}
    with command_line(tmp_path, monkeypatch, URL, bridge_subscriptions=subscriptions) as shell:
        yield Commands(shell, monkeypatch)


@pytest.mark.parametrize(
    "given",
    [
        ("-s", "search", "out"),
        ("out", "-s", "search"),
        ("--only", "dead", "--subscription=search", "out"),
        ("out", "--subscription", "search"),
    ],
    ids=" ".join,
)
def test_an_archive_of_one_subscription_is_that_of_its_group(of_several: Commands, given: tuple[str, ...]) -> None:
    arguments = of_several.become("archive", *given).arguments
    assert arguments[:4] == ["--stream", "ticket_stream", "--group", "search"]
    assert "out" in arguments
    assert not any(one == "-s" or one.startswith("--subscription") for one in arguments)


def test_an_archive_of_an_app_with_several_names_them_without_one(of_several: Commands) -> None:
    assert "this app has 2 subscriptions: name one with -s: billing, search" in of_several.refused("archive", "out")
    assert "there is no subscription 'mail'" in of_several.refused("archive", "-s", "mail", "out")
    assert "-s needs the name of a subscription" in of_several.refused("archive", "out", "-s")
    assert "both name the lane" in of_several.refused("archive", "-s", "search", "--group", "billing", "out")


def test_a_report_may_name_the_subscription_that_its_archive_must_be_of(of_several: Commands) -> None:
    became = of_several.become("report", "out", "--out", "r", "-s", "search")
    assert became.arguments == ["--stream", "ticket_stream", "--group", "search", "out", "--out", "r"]
    assert "TICKET_BRIDGE_URL" not in became.env
    assert "there is no subscription 'mail'" in of_several.refused("report", "out", "--out", "r", "-s", "mail")
    # Without a name it needs no app
    of_several.forget_app()
    assert of_several.become("report", "out", "--out", "r").arguments == ["out", "--out", "r"]


def test_the_other_jobs_are_about_the_stream_and_get_their_arguments_unchanged(of_several: Commands) -> None:
    arguments = of_several.become("push", "-s", "what", "log.csv").arguments
    assert arguments[-3:] == ["-s", "what", "log.csv"]
    assert arguments[:2] == ["--stream", "ticket_stream"]


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        ("push", ["--stream", "ticket_stream", "--max-payload", "1048576"]),
        ("archive", ["--stream", "ticket_stream", "--group", "concurrency_stream_group"]),
        ("replay", ["--stream", "ticket_stream", "--max-payload", "1048576"]),
    ],
)
def test_the_lane_comes_from_the_app_and_its_password_through_the_environment(
    commands: Commands, job: str, arguments: list[str]
) -> None:
    became = commands.become(job, "log.csv", "--key", "x y")
    assert became.program == str(ROOT / "spark" / f"{job}.py")
    assert became.arguments == [*arguments, "log.csv", "--key", "x y"]
    assert became.env["TICKET_BRIDGE_URL"] == URL
    assert SECRET not in " ".join(became.arguments)


def test_a_push_stores_the_layout_of_the_app_before_it_becomes_the_job(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf: dict[str, Any] = {"bridge_partitions": 4, "bridge_follows": ["orders"]}
    with (
        command_line(tmp_path, monkeypatch, valkey.url, **conf) as shell,
        valkey.client(decode_responses=True) as client,
    ):
        commands = Commands(shell, monkeypatch)
        # Of another stream, and beside an older version that is not split
        assert "elsewhere" in commands.become("push", "--stream", "elsewhere", "log.csv").arguments
        client.xadd("orders", {"ticket_id": "T"})
        assert "stream orders has 1 partition" in commands.refused("push", "log.csv")
        assert client.keys("*") == ["orders"]
        client.delete("orders")
        commands.become("push", "log.csv")
        assert find_layout(client, "ticket_stream", 1).partitions == 4
        client.set(layout_key("ticket_stream"), "x")
        assert "cannot be read: 'x' in the key {ticket_stream}/layout" in commands.refused("push", "log.csv")


def test_a_push_stores_the_layout_where_the_environment_says_that_the_server_is(
    valkey: EmbeddedServer, redis6: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        command_line(tmp_path, monkeypatch, valkey.url, bridge_partitions=4) as shell,
        valkey.client() as of_the_app,
        redis6.client() as of_the_job,
    ):
        commands = Commands(shell, monkeypatch)
        monkeypatch.setenv("TICKET_BRIDGE_URL", redis6.url)
        assert commands.become("push", "log.csv").env["TICKET_BRIDGE_URL"] == redis6.url
        assert of_the_app.keys("*") == []
        assert find_layout(of_the_job, "ticket_stream", 1).partitions == 4
        for wrong in ("http://here", "redis://a/0?nonsense=1", "redis://u:a@b@c/0?x@y", "redis://here:x"):
            monkeypatch.setenv("TICKET_BRIDGE_URL", wrong)
            # The job refuses it
            assert commands.become("push", "log.csv").env["TICKET_BRIDGE_URL"] == wrong
        monkeypatch.setenv("TICKET_BRIDGE_URL", URL)
        away = shell("spark", "push", "log.csv")
        assert (away.exit_code, away.stderr.count("\n"), SECRET in away.stderr) == (1, 1, False)
        assert "127.0.0.1:1" in away.stderr


def test_a_push_whose_rows_would_name_no_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stream that is split is left alone, too: nobody connects to the server.
    with command_line(tmp_path, monkeypatch, URL, bridge_default_task=None, bridge_partitions=4) as shell:
        commands = Commands(shell, monkeypatch)
        line = commands.refused("push", "log.csv")
        assert line == "Error: no row names a task: add --task or --task-column, or set bridge_default_task\n"


@pytest.mark.parametrize(
    "given",
    [
        ["--task", "shop.update"], ["--task=shop.update"], ["--task-column", "what"], ["--task-column=what"],
        ["--stream", "of another app"], ["--url", "redis://elsewhere"], ["--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_push_that_names_tasks_needs_no_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    with command_line(tmp_path, monkeypatch, URL, bridge_default_task=None) as shell:
        commands = Commands(shell, monkeypatch)
        assert commands.become("push", "log.csv", *given).arguments[-len(given) :] == given
        # A replay has the task of each message.
        commands.become("replay", "archive")


def test_options_of_the_user_win_over_the_app(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["f", "--stream=mine", "--max-payload", "9", "--url", "redis://else"]
    became = commands.become("push", *arguments)
    assert became.arguments == arguments
    # An explicit address leaves nothing of the app's in the environment.
    assert "TICKET_BRIDGE_URL" not in became.env
    monkeypatch.setenv("TICKET_BRIDGE_URL", "redis://other")
    assert commands.become("push", "f").env["TICKET_BRIDGE_URL"] == "redis://other"


def test_an_address_in_the_environment_that_is_empty_is_not_set(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKET_BRIDGE_URL", "")
    assert commands.become("push", "f").env["TICKET_BRIDGE_URL"] == URL
    # Nothing but the address comes from the app
    assert commands.become("archive", "f", "--stream=s", "--group=g").env["TICKET_BRIDGE_URL"] == URL


def test_an_app_is_needed_only_where_something_is_left_to_say(commands: Commands) -> None:
    commands.forget_app()
    assert commands.become("push", "f", "--url", "u", "--stream", "s").arguments[:1] == ["f"]
    assert commands.become("report", "archive").arguments == ["archive"]
    assert commands.become("archive", "--help").arguments == ["--help"]
    for arguments in (["push", "f", "--url", "u"], ["archive", "out", "--url", "u", "--stream", "s"]):
        line = commands.refused(*arguments)
        assert line.startswith("Error: cannot load the Celery app 'no_such_app'")
        assert "no app is needed" in line


def test_without_spark_it_says_what_to_install(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    expected = "Error: bridge spark needs PySpark: pip install 'ticket-bridge[spark]'\n"
    assert commands.refused("push", "f") == expected


def test_a_folder_of_the_users_that_is_named_spark_is_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "__init__.py").write_text("")
    (tmp_path / "spark" / "push.py").write_text("print('not me')\n")
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "spark", "push", "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0
    assert "the rows of FILE into a stream" in done.stdout


#: Stands for a job: says who it is, and ends as it is told.
SHOW = """
    import os, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    sys.stdout.write(f"waits as {os.getpid()}\\n")
    sys.stdout.flush()
    signal.pause()
"""


def test_exit_code_process_and_signals_are_the_jobs_own(tmp_path: Path) -> None:
    (tmp_path / "push.py").write_text(textwrap.dedent(SHOW))
    code = (
        "import sys, pathlib, bridge.cli.main, bridge.cli.commands.spark as s\n"
        f"s.JOBS = pathlib.Path({str(tmp_path)!r})\n"
        "sys.argv = ['bridge', *sys.argv[1:]]\nbridge.cli.main.main()"
    )
    yard = ProcessYard(tmp_path, URL)
    try:
        arguments = [sys.executable, "-c", code, "-A", APP, "spark", "push", "f"]
        node = yard.process("job", arguments, env={"CELERY_BROKER_URL": URL}, ready_text="waits")
        # There is no process in between that could be killed alone.
        assert node.logs() == f"waits as {node.pid}\n"
        assert node.terminate() == 7
    finally:
        yard.close()


@pytest.mark.parametrize("job", [push, archive, report, replay])
def test_every_job_says_how_it_is_used(job: ModuleType) -> None:
    done = runner().invoke(job.main, ["--help"])
    assert (done.exit_code, done.stderr) == (0, "")
    for option in ("--master", "--progress", "--spark-log"):
        assert option in done.stdout


def starts_spark(node: ProcessNode, program: str) -> bool:
    """Whether a process that this one started is to be Spark's Java, and is this program now: first it is a shell."""
    for child in node.children():
        with suppress(psutil.Error):
            arguments = child.cmdline()
            if child.ppid() == node.pid and "org.apache.spark.deploy.SparkSubmit" in arguments:
                return Path(arguments[0]).name == program
    return False


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
class TestWithSpark:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        path = tmp_path / "log.csv"
        path.write_text("ticket_id,seq,x\n" + "".join(f"T{n % 5},{n},v{n}\n" for n in range(100)))
        return path

    def test_the_same_file_runs_under_spark_submit(self, valkey: EmbeddedServer, log: Path, tmp_path: Path) -> None:
        # The workers' Python does not have the packages: they come from the driver.
        workers = str(python_with(tmp_path / "env"))
        pythons = {"PYSPARK_PYTHON": workers, "PYSPARK_DRIVER_PYTHON": sys.executable}
        lines = submit("push", log, cwd=tmp_path, env={"TICKET_BRIDGE_URL": valkey.url, **pythons})
        assert (lines[-1]["event"], lines[-1]["rows"]) == ("done", 100)
        with valkey.client() as client:
            assert client.xlen("ticket_stream") == 100

    def test_an_error_that_spark_finds_is_one_line_and_leaves_nothing_behind(
        self, valkey: EmbeddedServer, log: Path, tmp_path: Path
    ) -> None:
        with log.open("a") as file:
            file.write("T1,1\n")
        yard = ProcessYard(tmp_path, valkey.url)
        try:
            arguments = command("push", log, "--url", valkey.url, "--master", "local[2]", "--progress", "none")
            node = yard.process("push", arguments, wait=False)
            assert node.wait(timeout_s=400) == 1
            assert node.survivors() == []
            assert node.logs().startswith("error: the input cannot be read: ")
            assert node.logs().count("\n") == 1
        finally:
            yard.close()

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"])
    @pytest.mark.parametrize("program", ["bash", "java"])
    def test_a_signal_while_java_starts_leaves_neither_it_nor_a_file(
        self, valkey: EmbeddedServer, log: Path, tmp_path: Path, program: str, number: signal.Signals, code: int
    ) -> None:
        files = tmp_path / "files"
        files.mkdir()
        env = {"TMPDIR": str(files), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={files}"}
        yard = ProcessYard(tmp_path, valkey.url)
        try:
            arguments = command("push", log, "--url", valkey.url, "--master", "local[2]", "--progress", "json")
            node = yard.process("push", arguments, env=env, wait=False)
            wait_until(lambda: starts_spark(node, program), description=f"{program} to run", timeout_s=600)
            assert node.pid is not None
            os.kill(node.pid, number)
            assert node.wait(timeout_s=180) == code
            assert said(node.logs())[-1]["event"] == "failed"
            assert "Traceback" not in node.logs()
            # What the script runs to find its command ends by itself.
            wait_until(lambda: not node.survivors(), description="the end of all", timeout_s=300)
            assert [path.name for path in files.iterdir()] == []
        finally:
            yard.close()

    def test_ctrl_c_ends_the_job_and_java_with_one_line(
        self, valkey: EmbeddedServer, log: Path, tmp_path: Path
    ) -> None:
        yard = ProcessYard(tmp_path, valkey.url)
        try:
            # Given a push that waits, since the stream is full
            with valkey.client() as client:
                client.xadd("ticket_stream", {"ticket_id": "other", "payload": "{}"})
            arguments = ["spark", "push", str(log), "--high-water", "1", "--master", "local[2]", "--progress", "json"]
            node = yard.process(
                "push",
                [sys.executable, "-m", "bridge", "-A", APP, *arguments],
                env={"CELERY_BROKER_URL": valkey.url},
                wait=False,
            )
            node.wait_for_log('"event": "waiting"', timeout=400)
            # When Ctrl-C goes to the whole group, as a terminal sends it
            assert node.pid is not None
            os.killpg(node.pid, signal.SIGINT)
            # Then it ends as stopped, with a line, and leaves nobody behind
            assert node.wait(timeout_s=180) == 130
            assert said(node.logs())[-1] == {"event": "failed", "error": "stopped"}
            assert "Traceback" not in node.logs()
            wait_until(lambda: not node.survivors(), description="the end of all")
        finally:
            yard.close()
