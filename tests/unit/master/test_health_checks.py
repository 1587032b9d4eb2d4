"""Pings of HTTP consumers: what a good answer is, and that they end in their time."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bridge.master import health_checks
from bridge.master.health_checks import HealthChecks, ping
from bridge.protocol.health_url import checked_health_url
from bridge.testing.waiting import wait_until

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"
NETWORKS = ("127.0.0.0/8",)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Endpoint:
    """Answers each connection with `serve`, and keeps what it was asked."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.serve = serve
        self.asked: list[bytes] = []
        self._socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}/health"
        threading.Thread(target=self._run, name="test-endpoint", daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                dialled, _ = self._socket.accept()
                with dialled, suppress(OSError):
                    self.asked.append(dialled.recv(4096))
                    self.serve(dialled)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def endpoint(answer: bytes | Callable[[socket.socket], None] = OK) -> Iterator[Endpoint]:
    made = Endpoint((lambda dialled: dialled.sendall(answer)) if isinstance(answer, bytes) else answer)
    try:
        yield made
    finally:
        made.close()


def turned(checks: HealthChecks, there: Endpoint) -> bool:
    checks.turn({"c1": there.url})
    return True


def test_a_ping_is_one_plain_request() -> None:
    with endpoint() as there:
        ping(checked_health_url(there.url + "?a=1", NETWORKS))
        [asked] = there.asked
    assert asked.startswith(b"GET /health?a=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert asked.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Broken\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"",
        b"x" * 10_000,
        b"HTTP/1.1 2000 OK\r\n\r\n",
    ],
)
def test_another_answer_is_a_failure(answer: bytes) -> None:
    with endpoint(answer) as there, pytest.raises((OSError, ValueError)):
        ping(checked_health_url(there.url, NETWORKS))


def test_an_answer_that_drips_ends_in_the_time_of_the_whole_ping() -> None:
    stopped = threading.Event()

    def drip(dialled: socket.socket) -> None:
        while not stopped.wait(0.05):
            dialled.sendall(b"H")

    # It drips for as long as it is asked.
    with endpoint(drip) as there, pytest.raises(TimeoutError):
        ping(checked_health_url(there.url, NETWORKS), time_s=0.4)
    stopped.set()


def test_the_leader_looks_after_two_failures_and_not_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "INTERVAL_S", 0.02)
    answers = [OK, b"", OK, b"", b"", OK]
    looked: list[list[str]] = []
    with endpoint(lambda dialled: dialled.sendall(answers.pop(0) if answers else OK)) as there:
        checks = HealthChecks(NETWORKS, lambda names: looked.append(list(names)))
        try:
            wait_until(lambda: turned(checks, there) and len(there.asked) > 6, description="seven pings")
        finally:
            checks.stop()
    assert looked == [["c1"]]


def test_a_url_outside_of_the_list_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "INTERVAL_S", 0.02)
    looked: list[list[str]] = []
    with endpoint() as there:
        # As if the registration had been written by hand, or the setting had been changed since.
        checks = HealthChecks(("10.0.0.0/8",), lambda names: looked.append(list(names)))
        try:
            wait_until(lambda: turned(checks, there) and looked, description="the leader to look")
        finally:
            checks.stop()
        assert there.asked == []


def test_a_consumer_that_is_gone_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "INTERVAL_S", 0.02)
    with endpoint() as there:
        checks = HealthChecks(NETWORKS, lambda _names: None)
        try:
            wait_until(lambda: turned(checks, there) and there.asked, description="a ping")
            checks.turn({})
            assert checks._due == {}
        finally:
            checks.stop()


@pytest.mark.parametrize("consumers", [0, 1, 3, 30])
def test_its_threads_end_with_it(consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "INTERVAL_S", 0.02)
    before = set(threading.enumerate())
    looked: list[str] = []
    # Given consumers of which none may be asked
    checks = HealthChecks((), looked.extend)
    urls = {f"c{n}": f"http://{HOST}:1/{n}" for n in range(consumers)}

    def turned() -> bool:
        checks.turn(urls)
        return set(looked) == set(urls)

    wait_until(turned, description="the leader to look at all of them")
    assert len(set(threading.enumerate()) - before) <= min(consumers, health_checks.THREADS)
    checks.stop()
    wait_until(lambda: set(threading.enumerate()) <= before, description="the threads to end")


#: A process that stops while the name of a consumer's URL is resolved, which takes for ever.
STOPS = """
import socket, threading
from bridge.master.health_checks import HealthChecks
asked = threading.Event()
def hang(*_args, **_more):
    asked.set()
    threading.Event().wait()
socket.getaddrinfo = hang
checks = HealthChecks(["10.0.0.0/8"], print)
checks.turn({"c1": "http://consumer.example/health"})
assert asked.wait(60)
checks.stop()
print("stopped")
"""


def test_a_master_ends_while_a_name_is_resolved() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STOPS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
