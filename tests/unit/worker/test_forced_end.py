"""A stopping worker ends by itself when its server is silent, but not while a running task could still count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from celery.worker import state
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from bridge.consumer.deadline import now_ns
from bridge.protocol.names import HEADER_BASE
from bridge.testing.waiting import holds_for, wait_until
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.main import forced_end, new_layout, threads

LIFE = "1" * 32


class Request:
    """A request of Celery's, with the attributes that matter here."""

    def __init__(self, *headers: str) -> None:
        self.request_dict = dict.fromkeys(headers)


class Server:
    """A client that answers or not, as a test sets it."""

    def __init__(self) -> None:
        self.sign: Exception | None = Lost("gone")

    def ping(self) -> None:
        if self.sign is not None:
            raise self.sign


class Going:
    """A worker that was asked to stop; `ended` is set where the process would end."""

    def __init__(self) -> None:
        self.shared = SharedPage()
        self.shared.begin(LIFE, now_ns() + 60_000_000_000)
        self.server = Server()
        self.ended = False
        self.forced_end = forced_end.ForcedEnd("redis://localhost:1/0", [self.shared])
        self.forced_end._redis = self.server  # type: ignore[assignment]

    def end(self) -> None:
        self.ended = True
        raise SystemExit

    def assert_stays(self) -> None:
        holds_for(lambda: not self.ended, description="the worker to be let alone", duration_s=0.2)

    def assert_ends(self) -> None:
        wait_until(lambda: self.ended, description="the worker to end")


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> Iterator[Going]:
    monkeypatch.setattr(forced_end, "AWAY_S", 0.05)
    monkeypatch.setattr(forced_end, "ASK_S", 0.01)
    found = Going()
    monkeypatch.setattr(forced_end, "_end", found.end)
    yield found
    # Ends the threads of this test.
    found.server.sign = Lost("gone")
    found.shared.end()
    state.active_requests.clear()
    found.assert_ends()


def test_it_ends_when_the_server_is_silent_and_nothing_runs(going: Going) -> None:
    going.forced_end.start()
    going.assert_ends()


@pytest.mark.parametrize("sign", [None, ResponseError("NOPERM this user has no permissions")])
def test_it_does_not_end_while_the_server_answers(going: Going, sign: Exception | None) -> None:
    going.server.sign = sign
    going.forced_end.start()
    going.assert_stays()


def test_a_ticket_that_runs_counts_until_the_lease_is_over(going: Going) -> None:
    row = going.shared.take_row()
    going.shared.note_running(row, 5)
    request = Request(HEADER_BASE)
    state.active_requests.add(request)
    going.forced_end.start()
    going.assert_stays()
    going.shared.end()
    going.assert_ends()


def test_a_task_beside_the_bridges_counts_until_it_is_done(going: Going) -> None:
    going.shared.end()
    request = Request("id")
    state.active_requests.add(request)
    going.forced_end.start()
    going.assert_stays()
    state.active_requests.discard(request)
    going.assert_ends()


@pytest.mark.parametrize("starts_again", [False, True])
def test_it_starts_again_where_the_worker_was_to_do_so(monkeypatch: pytest.MonkeyPatch, starts_again: bool) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "execv", lambda *_: calls.append("again"))
    monkeypatch.setattr(os, "_exit", lambda _code: calls.append("end"))
    monkeypatch.delenv(new_layout.STARTED_AGAIN, raising=False)
    monkeypatch.setattr(new_layout, "_starts_again", os.getpid() if starts_again else 0)
    forced_end._end()
    # No other program runs in this process now
    assert calls == (["again", "end"] if starts_again else ["end"])
    # The process of a worker that starts again waits for its server
    assert new_layout.has_started_again() == starts_again


def test_with_gevent_it_can_be_started_where_nothing_may_wait() -> None:
    """A signal may arrive in gevent's event loop, where a blocking call raises."""
    script = f"""
from gevent import monkey; monkey.patch_all()
import os, signal, subprocess, threading
from {threads.__name__} import run_in_thread
ran = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: run_in_thread(ran.set))
subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -USR1 {{os.getpid()}}"])
assert ran.wait(10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
