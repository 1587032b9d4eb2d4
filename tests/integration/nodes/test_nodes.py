"""The nodes of the integration tests: they have pytest-celery's interface, and none survives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery
from celery.exceptions import TimeoutError as ResultTimeout
from pytest_celery import CeleryTestSetup
from pytest_celery.vendors.worker.tasks import add

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.local_containers import ServerContainer
from bridge.testing.nodes.node import NodeYard, signal_number
from bridge.testing.nodes.plugin import in_containers
from bridge.testing.nodes.process import HOME, ROOT, ProcessNode
from bridge.testing.nodes.roles import ProcessWorker
from bridge.testing.nodes.setup import BridgeSetup
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.pytest_command import pytest_command

RESULT_TIMEOUT_S = 60


def sleeper(*, ignore_term: bool = False, session: bool = False, children: int = 1) -> list[str]:
    """A program with sleeping children, which may ignore SIGTERM or start sessions of their own."""
    code = f"""
        import signal, subprocess, sys, time
        if {ignore_term}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range({children}): subprocess.Popen(["sleep", "600"], start_new_session={session})
        print("sleeping", flush=True)
        time.sleep(600)
    """
    return [sys.executable, "-c", textwrap.dedent(code)]


def answers(app: Celery, workers: int) -> dict[str, Any]:
    """What so many workers answer to a ping. One that is ready hears it from its first read of its queues on."""

    def asked() -> dict[str, Any] | None:
        replies: dict[str, Any] = app.control.inspect(timeout=1, limit=workers).ping() or {}
        return replies if len(replies) >= workers else None

    found = wait_until(asked, description=f"{workers} workers to answer")
    assert found is not None
    return found


class TestPytestCelery:
    """Written for pytest-celery's interface alone."""

    @pytest.fixture
    def bridge_workers(self) -> Sequence[str]:
        return ("w1",)

    def test_a_plain_task_runs_through_a_set_up_and_the_worker_has_its_name_and_runs_commands(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        assert celery_setup.ready(ping=True, control=True, docker=True)
        assert len(celery_setup) == 3
        assert add.s(2, 3).apply_async().get(timeout=RESULT_TIMEOUT_S) == 5
        app: Celery = celery_setup.app
        replies = app.control.inspect(timeout=5, destination=[celery_setup.worker.hostname()]).ping()
        assert replies == {celery_setup.worker.hostname(): {"ok": "pong"}}
        # A command runs where the worker runs
        code, output = celery_setup.worker.container.exec_run("python -c 'import app; print(app.app.main)'")
        assert (code, output.decode().strip()) == (0, celery_setup.app.main)

    def test_a_worker_that_was_killed_runs_tasks_again_in_other_processes_after_a_restart(
        self, celery_setup: CeleryTestSetup, pytestconfig: pytest.Config
    ) -> None:
        worker = celery_setup.worker

        def pids() -> set[int]:
            if in_containers(pytestconfig):
                # They are the same in each life of a container, and the image would need psutil.
                return set()
            return {info["pid"] for info in worker.get_running_processes_info(["pid"])}

        assert add.s(1, 1).apply_async().get(timeout=RESULT_TIMEOUT_S) == 2
        before = pids()

        worker.kill()

        assert worker.container.status == "exited"
        waiting = add.s(20, 22).apply_async()
        with pytest.raises(ResultTimeout):
            waiting.get(timeout=0.5)

        worker.restart()

        assert waiting.get(timeout=RESULT_TIMEOUT_S) == 42
        after = pids()
        assert in_containers(pytestconfig) or (before and after)
        assert not before & after

    def test_sigterm_lets_a_worker_shut_down_in_order(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker
        worker.kill(signal="SIGTERM")
        worker.wait_for_log("Warm shutdown", timeout=10)

        def status() -> str:
            worker.container.reload()
            return str(worker.container.status)

        wait_until(lambda: status() == "exited", description="the worker to end by itself")

    def test_a_broker_restart_keeps_what_is_queued(self, celery_setup: CeleryTestSetup) -> None:
        celery_setup.worker.kill()
        queued = add.s(3, 4).apply_async()

        celery_setup.broker.kill()
        assert celery_setup.broker.container.status == "exited"
        celery_setup.broker.restart()
        celery_setup.worker.restart()

        # Celery's client loses a result that comes while it subscribes again. So the key of the result is asked.
        wait_until(queued.ready, timeout_s=RESULT_TIMEOUT_S, description="the result")
        assert queued.result == 7
        queued.forget()


class TestSeveralWorkers:
    @pytest.fixture
    def bridge_workers(self) -> Sequence[str]:
        return ("w1", "w2")

    @pytest.fixture
    def bridge_worker_arguments(self) -> Sequence[str]:
        return ("--pool=solo",)

    def test_each_name_is_a_worker_and_one_goes_on_when_the_other_is_lost(self, celery_setup: CeleryTestSetup) -> None:
        names = {worker.hostname() for worker in celery_setup.worker_cluster}
        assert set(answers(celery_setup.app, 2)) == names
        assert len(names) == 2
        celery_setup.worker_cluster[0].kill()
        assert add.s(2, 2).apply_async().get(timeout=RESULT_TIMEOUT_S) == 4


class TestArguments:
    @pytest.fixture
    def bridge_app(self) -> str:
        return "tests.apps.counter"

    @pytest.fixture
    def bridge_worker_arguments(self) -> Sequence[str]:
        return ("--pool=threads", "--concurrency=7")

    def test_a_worker_that_the_test_adds_has_them_unless_it_has_its_own(self, bridge_nodes: NodeYard) -> None:
        assert bridge_nodes.worker("w2", start=False).command[-2:] == ["--pool=threads", "--concurrency=7"]
        own = bridge_nodes.worker("w3", arguments=(), start=False)
        assert not any("=7" in argument or "threads" in argument for argument in own.command)


class TestBridge:
    """The nodes as a user asks for them: by name, before the test."""

    @pytest.fixture
    def bridge_app(self) -> str:
        return "tests.apps.counter"

    @pytest.fixture
    def bridge_workers(self) -> Sequence[str]:
        return ("w1", "w2")

    @pytest.fixture
    def bridge_masters(self) -> Sequence[str]:
        return ("m1", "m2")

    @pytest.fixture
    def bridge_node_env(self, tmp_path: Path) -> Mapping[str, str]:
        (tmp_path / "ledger").mkdir()
        return {"COUNTER_LEDGER": str(tmp_path / "ledger"), "COUNTER_LEASE": "3", "COUNTER_LEADER_LEASE": "2"}

    def test_messages_are_done_over_the_loss_of_a_worker_and_of_a_master(
        self, celery_setup: BridgeSetup, pytestconfig: pytest.Config
    ) -> None:
        assert len(celery_setup) == 6
        assert [node.name() for node in celery_setup.worker_cluster or ()] == ["w1", "w2"]
        assert [node.name() for node in celery_setup.master_cluster or ()] == ["m1", "m2"]
        if not in_containers(pytestconfig):
            assert all(isinstance(node._process, preloaded.Forked) for node in celery_setup.nodes.nodes)
            assert celery_setup.app.conf.broker_url == celery_setup.server.url
        append = celery_setup.app.tasks["counter.append"]
        append.push_many([(f"T{i % 5}", {"n": i // 5}) for i in range(50)])

        celery_setup.worker.kill()
        celery_setup.master.kill()
        celery_setup.wait()

        with celery_setup.client() as redis:
            assert [redis.lrange(f"log:T{i}", 0, -1) for i in range(5)] == [[b"%d" % n for n in range(10)]] * 5
        assert celery_setup.dead_letters() == []
        assert celery_setup.worker.exit_code == celery_setup.master.exit_code == -signal.SIGKILL


class TestProcessNodes:
    def test_a_long_host_name_is_not_cut_to_a_container_s_id(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "host-with-a-long-name")
        node = ProcessWorker("w1", app="app", broker_url="redis://127.0.0.1:1/0", log_file=tmp_path / "log")
        assert node.hostname() == "w1@host-with-a-long-name"

    @pytest.mark.parametrize("theirs", [None, "", "/theirs", "/theirs{0}/and{0}more"])
    def test_a_program_imports_from_the_folder_of_the_tests_and_then_as_its_caller(
        self, theirs: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        folders = (theirs or "").format(os.pathsep)
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if theirs is not None:
            monkeypatch.setenv("PYTHONPATH", folders)
        node = ProcessNode("program", ["true"], log_file=tmp_path / "log")
        assert node.environment()["PYTHONPATH"].split(os.pathsep) == [
            str(HOME),
            *filter(None, folders.split(os.pathsep)),
        ]
        node.env["PYTHONPATH"] = "/own"
        assert node.environment()["PYTHONPATH"] == "/own"

    def test_a_worker_of_the_yard_is_ready_when_it_is_returned(
        self, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
    ) -> None:
        (tmp_path / "small_app.py").write_text("from celery import Celery\napp = Celery('small')\n")
        worker = nodes.worker("w1", app="small_app", env={"PYTHONPATH": str(tmp_path)})
        app = Celery("small", broker=own_server.url)
        assert answers(app, 1) == {worker.hostname(): {"ok": "pong"}}
        assert len(worker.children()) >= 2
        assert worker.terminate() == 0
        app.close()

    def test_a_node_that_ends_early_fails_at_once_with_its_log(self, nodes: NodeYard) -> None:
        with pytest.raises(AssertionError, match=r"bad ended with 3 before it was ready:\n.*alas"):
            nodes.process("bad", [sys.executable, "-c", "print('alas'); raise SystemExit(3)"], ready_text="ready")

    def test_a_program_without_a_ready_text_may_end_before_anybody_looks(self, nodes: NodeYard) -> None:
        node = nodes.process("quick", [sys.executable, "-c", ""], wait=False)
        assert node.wait() == 0
        node.wait_ready()

    def test_kill_strikes_the_main_process_only(self, nodes: NodeYard) -> None:
        node = nodes.process("parent", sleeper(children=2), ready_text="sleeping")
        node.kill_main()
        assert node.exit_code == -signal.SIGKILL
        assert len(node.survivors()) == 2

    def test_vanish_leaves_no_process_not_even_in_another_session(self, nodes: NodeYard) -> None:
        node = nodes.process("parent", sleeper(session=True, children=2), ready_text="sleeping")
        assert len(node.survivors()) == 3
        node.vanish()
        assert node.survivors() == []

    def test_a_stubborn_node_is_gone_when_the_yard_closes(self, tmp_path: Path) -> None:
        yard = ProcessYard(tmp_path, "redis://127.0.0.1:1/0")
        node = yard.process("stubborn", sleeper(ignore_term=True, session=True), ready_text="sleeping")
        node.send(signal.SIGTERM)
        with pytest.raises(AssertionError, match=r"stubborn did not end within 0\.3 s"):
            node.wait(timeout_s=0.3)
        yard.close()
        assert node.survivors() == []
        assert not node.running

    def test_children_of_a_killed_node_are_gone_when_the_yard_closes(self, tmp_path: Path) -> None:
        yard = ProcessYard(tmp_path, "redis://127.0.0.1:1/0")
        node = yard.process("parent", sleeper(session=True), ready_text="sleeping")
        node.kill_main()
        assert len(node.survivors()) == 1
        yard.close()
        assert node.survivors() == []

    def test_a_server_that_a_node_started_is_gone_when_the_yard_closes(
        self, tmp_path: Path, valkey_binary: Path
    ) -> None:
        yard = ProcessYard(tmp_path, "redis://127.0.0.1:1/0")
        code = f"""
            import pathlib, time
            from bridge.stack.embedded import EmbeddedServer
            server = EmbeddedServer(binary=pathlib.Path({str(valkey_binary)!r}), data_dir=pathlib.Path("data"))
            server.start()
            print("serving", flush=True)
            time.sleep(600)
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        node = yard.process("parent", command, cwd=tmp_path, ready_text="serving")
        pids = [process.pid for process in node.survivors() if "server" in process.name()]
        yard.close()
        assert len(pids) == 1
        wait_until(lambda: not _is_alive(pids[0]), description="the server to end")

    def test_a_paused_node_does_not_move_until_it_is_resumed(self, nodes: NodeYard) -> None:
        tick = "import time\nwhile True: print('tick', flush=True); time.sleep(0.01)"
        node = nodes.process("clock", [sys.executable, "-c", tick], ready_text="tick")
        node.pause()
        assert node.pid is not None
        process = psutil.Process(node.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, description="the clock to stand still")
        stood_at = node.logs().count("tick")
        node.resume()
        wait_until(lambda: node.logs().count("tick") > stood_at, description="the clock to go on")

    def test_a_restarted_node_waits_for_the_log_of_its_new_life(self, nodes: NodeYard) -> None:
        node = nodes.process("parent", sleeper(), ready_text="sleeping")
        node.kill_main()
        node.start()
        node.wait_ready()
        assert node.logs().count("sleeping") == 2
        assert node.logs(this_life=True).count("sleeping") == 1

    @pytest.mark.parametrize("forked", [False, pytest.param(True, marks=pytest.mark.long)])
    def test_nothing_outlives_a_test_run_that_is_killed(self, forked: bool, tmp_path: Path) -> None:
        run = textwrap.dedent(f"""
            from pathlib import Path
            from bridge.testing.nodes.process import ProcessNode
            from bridge.testing.nodes.yard import ProcessYard
            ProcessNode.preload = {forked}
            yard = ProcessYard(Path({str(tmp_path)!r}), "redis://127.0.0.1:1/0")
            node = yard.process("parent", {sleeper()!r}, ready_text="sleeping")
            print(*[process.pid for process in node.survivors()], flush=True)
            node.wait(600)
        """)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True, env=env) as killed:
            assert killed.stdout is not None
            pids = [int(word) for word in killed.stdout.readline().split()]
            assert len(pids) == 2
            killed.kill()
        wait_until(lambda: not any(_is_alive(pid) for pid in pids), description="the orphans of a killed run to end")


#: A project with one test, which needs a worker. A parent to fork that from would take longer than the worker itself.
CONFTEST = """
from bridge.testing.nodes.process import ProcessNode

pytest_plugins = ["bridge.testing.nodes.plugin"]
ProcessNode.preload = False
"""
PROJECT = """
from pytest_celery.vendors.worker.tasks import add


def test_a_plain_task(celery_setup):
    assert add.s(2, 3).apply_async().get(timeout=60) == 5
"""


def run_project(folder: Path, *options: str) -> str:
    """What a run of the project's test prints, where the address of the engine is wrong."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_project.py").write_text(PROJECT)
    wrong = "os.environ['DOCKER_HOST'] = 'tcp://127.0.0.1:1'"
    command = pytest_command("-q", "-p", "no:cacheprovider", *options, str(folder), first=wrong)
    done = preloaded.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_collecting_and_running_needs_no_engine(tmp_path: Path) -> None:
    assert "1 passed" in run_project(tmp_path)


def test_without_an_engine_the_choice_of_containers_skips_and_says_why(tmp_path: Path) -> None:
    said = run_project(tmp_path, "--bridge-nodes=containers", "-rs")
    assert "--bridge-nodes=containers needs a Docker engine: Error while fetching server API version" in said
    assert "1 skipped" in said


def test_without_pytest_celery_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['bridge.testing.nodes.plugin']\n")
    code = (
        "import os, sys; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'; import pytest; "
        "sys.modules['pytest_celery'] = None; sys.exit(pytest.main(['-q']))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = preloaded.run([sys.executable, "-c", code], cwd=tmp_path, env=env)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert said == ["ERROR: bridge.testing.nodes needs pytest-celery: pip install 'ticket-bridge[testing]'"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, signal.SIGKILL), ("SIGTERM", signal.SIGTERM), ("term", signal.SIGTERM), (2, signal.SIGINT)],
)
def test_signals_are_understood_as_an_engine_does(given: str | int | None, expected: signal.Signals) -> None:
    assert signal_number(given) is expected


def test_a_server_container_offers_a_client_and_its_log(own_server: EmbeddedServer) -> None:
    container = ServerContainer(own_server)
    with container.client as client:
        client.set("key", "value")
        assert client.get("key") == "value"
    assert "Ready to accept connections" in container.logs()


def test_marks_distinguish_nodes(nodes: NodeYard) -> None:
    one = nodes.process("one", sleeper(), ready_text="sleeping")
    two = nodes.process("two", sleeper(), ready_text="sleeping")
    one.close()
    assert len(two.survivors()) == 2


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
