"""A process counts as gone when it runs nothing any more, and no other process is mistaken for it."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.testing.waiting import wait_until
from bridge.worker.guard import processes
from bridge.worker.guard.processes import gone, handle_of, kill, start_time


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def is_zombie(pid: int) -> bool:
    return b") Z " in Path(f"/proc/{pid}/stat").read_bytes()


def test_a_living_process_is_not_gone(sleeper: subprocess.Popen[bytes]) -> None:
    assert not gone(sleeper.pid, start_time(sleeper.pid))


def test_a_stopped_process_is_not_gone(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    assert not gone(sleeper.pid, start_time(sleeper.pid))


def test_a_process_is_gone_before_anybody_has_reaped_it(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    sleeper.kill()
    wait_until(lambda: is_zombie(sleeper.pid), description="a zombie")
    assert gone(sleeper.pid, started)
    sleeper.wait()
    assert gone(sleeper.pid, started)


def test_another_process_of_the_same_number_is_another_one(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    assert gone(sleeper.pid, started - 1)
    assert not kill(sleeper.pid, started - 1)
    assert sleeper.poll() is None
    assert kill(sleeper.pid, started)
    assert sleeper.wait() == -signal.SIGKILL
    assert not kill(sleeper.pid, started)


def test_a_zombie_whose_threads_run_on_is_not_gone() -> None:
    # Given a process whose first thread ends while another one runs on
    code = """
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        print("running", flush=True)
        ctypes.CDLL(None).syscall(60 if ctypes.sizeof(ctypes.c_long) == 8 else 1, 0)
    """
    assert ctypes.sizeof(ctypes.c_long) == 8
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the system call is that of x86_64")
    code = "\n".join(line.strip() for line in code.splitlines())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        started = start_time(process.pid)
        wait_until(lambda: is_zombie(process.pid), description="the first thread to end")
        assert not gone(process.pid, started)
        process.kill()
        wait_until(lambda: gone(process.pid, started), description="all of it to end")


def test_names_with_parentheses_do_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "a) Z (b\n", description="the exec")
        assert start_time(process.pid) > 0
        assert not gone(process.pid, start_time(process.pid))
        process.kill()


def test_without_proc_a_process_is_gone_only_when_its_number_is(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert start_time(sleeper.pid) == 0
    assert not gone(sleeper.pid, 0)
    sleeper.kill()
    # Not even that of a zombie, which cannot be distinguished from a running process
    assert not gone(sleeper.pid, 0)
    sleeper.wait()
    assert gone(sleeper.pid, 0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no handles of processes")
def test_a_handle_is_readable_when_its_process_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    assert handle_of(sleeper.pid, started - 1) is None
    held = handle_of(sleeper.pid, started)
    assert held is not None
    poll = select.poll()
    poll.register(held, select.POLLIN)
    assert not poll.poll(0)
    sleeper.kill()
    assert poll.poll(60_000)
    os.close(held)
    sleeper.wait()
    assert handle_of(sleeper.pid, started) is None
