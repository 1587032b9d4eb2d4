"""`bridge up`: the stack as a user starts it, how it ends, and its errors."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import redis

from bridge.stack.ports import HOST, free_port, port_is_taken
from bridge.testing.nodes.process import ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until

#: The smallest stack.
SMALLEST = ("--workers", "1", "--concurrency", "1", "--masters", "1")
#: The same, of an app that takes its lease from the command.
SMALL = (*SMALLEST, "--lease", "1")
UP = "Ctrl-C stops everything."

pytestmark = pytest.mark.slow


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[ProcessYard]:
    """No server: a stack starts its own."""
    made = ProcessYard(tmp_path, "redis://127.0.0.1:1/0")
    yield made
    made.close()


def bridge_up(yard: ProcessYard, *arguments: str, wait: bool = True, name: str = "up") -> ProcessNode:
    command = python_module("bridge", "up", "--dir", str(yard.folder / "stack"), *arguments)
    node = yard.process(name, command, ready_text=UP, wait=False)
    if wait:
        node.wait_ready(timeout_s=90)
    return node


def commands_of(node: ProcessNode) -> list[str]:
    """The command lines of the stack's processes."""
    found = []
    for process in node.survivors():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return found


def serves(up: ProcessNode) -> bool:
    """Whether the stack's server runs. It overwrites its environment, so the search for processes does not find it."""
    found = re.search(r"^server +redis://127\.0\.0\.1:(\d+)/0$", up.logs(), re.MULTILINE)
    assert found is not None
    return port_is_taken(int(found[1]))


def count(commands: Sequence[str], text: str) -> int:
    return sum(text in command for command in commands)


def assert_is_whole(up: ProcessNode, folder: Path) -> None:
    """A stack with two masters, two workers with a process each, and Flower runs, and says where."""
    assert re.search(r"^Redis +redis://127\.0\.0\.1:\d+/0$", up.logs(), re.MULTILINE)
    assert re.search(r"^Flower +http://127\.0\.0\.1:\d+$", up.logs(), re.MULTILINE)
    assert str(folder) in up.logs()
    assert serves(up)
    commands = commands_of(up)
    assert count(commands, "-A tasks run") == 2
    assert count(commands, "worker -n w1@%h") == 2  # the main process and its child
    assert count(commands, "worker -n w2@%h") == 2
    assert count(commands, "flower --address=127.0.0.1") == 1


def assert_goes_away(up: ProcessNode, number: signal.Signals) -> None:
    up.send(number)
    assert up.wait(timeout_s=90) == 0
    assert up.logs().splitlines()[-1] == "stopped"
    assert up.survivors() == []
    assert not serves(up)


# By SIGINT: at the end of `test_flower.py`.
@pytest.mark.long
def test_the_whole_stack_comes_up_and_goes_away_when_asked(yard: ProcessYard) -> None:
    up = bridge_up(yard, "--workers", "2", "--concurrency", "1")
    assert_is_whole(up, yard.folder / "stack")
    assert_goes_away(up, signal.SIGTERM)


def test_the_data_of_a_folder_outlives_the_stack_and_nothing_else_does(yard: ProcessYard) -> None:
    """The data has the layout of the stream, and the second stack comes up by that."""
    port = free_port()
    words = ("--dir", str(yard.folder / "stack"), *SMALLEST, "--no-flower", "--port", str(port))
    command = python_module("bridge", "-A", "tests.apps.counter", "up", *words)

    def come_up(partitions: int) -> ProcessNode:
        env = {"COUNTER_CONF": f'{{"bridge_partitions": {partitions}}}'}
        up = yard.process(f"up{partitions}", command, env=env, ready_text=UP, wait=False)
        up.wait_ready(timeout_s=90)
        assert "they share 2 lanes" in up.logs()
        assert count(commands_of(up), "flower --address") == 0
        return up

    first = come_up(2)
    with redis.Redis(host=HOST, port=port) as client:
        client.set("kept", "yes")
    first.send(signal.SIGINT)
    assert first.wait(timeout_s=90) == 0
    second = come_up(3)
    with redis.Redis(host=HOST, port=port) as client:
        assert client.get("kept") == b"yes"
    # Also when nobody can end what it started
    second.kill_main()
    wait_until(lambda: not second.survivors() and not serves(second), description="the orphans to end", timeout_s=90)


def test_a_stack_with_subscriptions_comes_up_and_a_worker_that_ends_by_itself_is_an_error_that_names_its_log(
    yard: ProcessYard,
) -> None:
    command = python_module(
        "bridge", "-A", "tests.apps.subscribers", "up", "--dir", str(yard.folder / "stack"), *SMALLEST
    )
    up = yard.process("up", [*command, "--no-flower"], env={"BRIDGE_SERVE": "billing"}, ready_text=UP, wait=False)
    up.wait_ready(timeout_s=180)
    assert "they share 3 lanes" in up.logs()
    [main] = [p for p in up.children() if "worker" in p.cmdline() and p.ppid() == up.pid]
    main.kill()
    assert up.wait(timeout_s=90) == 1
    assert "Error: w1 ended by signal SIGKILL; its log " in up.logs()
    assert str(yard.folder / "stack" / "w1.log") in up.logs()
    # They see the end of their worker by themselves.
    wait_until(lambda: up.survivors() == [], description="the pool process and the watcher of the worker to end")
    assert not serves(up)


def test_ctrl_c_while_it_comes_up_leaves_nothing(yard: ProcessYard) -> None:
    up = bridge_up(yard, *SMALL, wait=False)
    wait_until(
        lambda: count(commands_of(up), "-A tasks run") == 1, description="the master to be started", timeout_s=90
    )
    up.send(signal.SIGINT)
    assert up.wait(timeout_s=90) == 0
    assert up.survivors() == []
    assert not serves(up)


@pytest.mark.parametrize("option", ["--port", "--flower-port"])
def test_a_port_that_is_taken_is_one_clear_line(yard: ProcessYard, option: str) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = bridge_up(yard, *SMALL, option, str(port), wait=False)
        assert up.wait(timeout_s=90) == 1
        assert up.logs().strip() == (
            f"Error: port {port} on 127.0.0.1 is in use: stop what listens there, or choose another one with {option}"
        )


def test_a_folder_that_cannot_be_made_is_one_clear_line(yard: ProcessYard) -> None:
    (yard.folder / "file").write_text("")
    command = python_module("bridge", "up", "--dir", str(yard.folder / "file" / "stack"))
    up = yard.process("up", command, wait=False)
    assert up.wait(timeout_s=90) == 2
    assert up.logs().strip() == f"Error: cannot make {yard.folder / 'file' / 'stack'}: Not a directory"


def test_an_app_without_the_bridge_is_refused_before_anything_starts(yard: ProcessYard) -> None:
    (yard.folder / "plain.py").write_text("from celery import Celery\napp = Celery('plain')\n")
    command = python_module("bridge", "-A", "plain", "up", "--dir", str(yard.folder / "stack"))
    up = yard.process("up", command, cwd=yard.folder, wait=False)
    assert up.wait(timeout_s=90) == 2
    assert "call bridge.install(app)" in up.logs()
    assert len(up.logs().splitlines()) == 1
