"""The connections that outcomes are written on."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as ConnectionLost

from bridge.app.installation import install
from bridge.consumer import writer as writers
from bridge.consumer.deadline import now_ns
from bridge.consumer.writer import OutcomeWriter
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.keys import layout_key
from bridge.routing.layouts import Retired, text_of_layout
from bridge.routing.partitions import Layout
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import WaitTimeout, wait_until
from bridge.worker.guard.shared_page import SharedPage

LIFE = "1" * 32


class Writing:
    """A writer under a lease that holds, and how many connections it has made."""

    def __init__(self, server: EmbeddedServer) -> None:
        app = Celery("shop", broker=server.url, set_as_current=False)
        settings = install(app).bridge.settings
        shared = SharedPage()
        shared.begin(LIFE, now_ns() + 60_000_000_000)
        self.writer = OutcomeWriter(settings.redis_url, settings.lane, shared)
        self.outcomes = settings.lane.keys.outcomes
        self.redis = server.client(decode_responses=True)
        # The registration of a worker makes the stream
        self.redis.xdel(self.outcomes, self.redis.xadd(self.outcomes, {"i": LIFE, "joined": "w1"}))
        self.made_before = self._accepted()

    def _accepted(self) -> int:
        found: Any = self.redis.info("stats")["total_connections_received"]
        return int(found)

    @property
    def made(self) -> int:
        return self._accepted() - self.made_before

    def write(self, n: int) -> None:
        assert self.writer.write(LIFE, [Outcome(f"{n}-0", n, Kind.RETURNED)])

    def on_a_thread(self, n: int) -> threading.Thread:
        thread = threading.Thread(target=self.write, args=(n,))
        thread.start()
        return thread


@pytest.fixture
def writing(valkey: EmbeddedServer) -> Iterator[Writing]:
    found = Writing(valkey)
    yield found
    found.redis.delete(found.outcomes)


def test_threads_that_come_and_go_share_a_connection(writing: Writing) -> None:
    for n in range(1, 21):
        writing.on_a_thread(n).join()
    assert writing.made == 1
    assert writing.redis.xlen(writing.outcomes) == 20


def test_threads_that_write_at_once_never_share_one(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    # None gets its answer before all have asked. None may take that for an outage and write again.
    monkeypatch.setattr("bridge.consumer.writer.TIMEOUT_S", 60.0)
    writing.redis.client_pause(50_000, all=False)
    try:
        threads = [writing.on_a_thread(n) for n in range(1, 9)]
        wait_until(lambda: writing.made == 8, description="each thread to have a connection of its own")
    finally:
        writing.redis.client_unpause()
    for thread in threads:
        thread.join()
    assert writing.made == 8
    assert writing.redis.xlen(writing.outcomes) == 8


def test_a_process_that_is_forked_while_a_thread_logs_an_outage_writes_and_says_nothing(writing: Writing) -> None:
    # Given a thread that stands in the log, with the locks of the outage
    logs, goes_on, lines = threading.Event(), threading.Event(), []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            logs.set()
            goes_on.wait()

    log = Slow()
    writers.logger.addHandler(log)
    thread = threading.Thread(target=lambda: writing.writer._outage.met(ConnectionLost("gone")))
    thread.start()
    try:
        assert logs.wait(10)
        pid = os.fork()
        if pid == 0:
            try:
                goes_on.set()
                writing.write(1)
                os._exit(0 if len(lines) == 1 else 1)
            finally:
                os._exit(2)

        def status() -> list[int]:
            found, ended = os.waitpid(pid, os.WNOHANG)
            return [ended] if found else []

        try:
            assert wait_until(status, description="the end of the process", timeout_s=10) == [0]
        except WaitTimeout:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    finally:
        goes_on.set()
        thread.join()
        writers.logger.removeHandler(log)


def test_after_cut_connections_writing_goes_on(writing: Writing) -> None:
    for n in range(1, 4):
        writing.write(n)
        writing.redis.client_kill_filter(_type="normal", skipme=True)
    assert writing.redis.xlen(writing.outcomes) == 3


def test_an_idle_connection_that_the_server_closed_is_no_outage(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.link.connections.IDLE_S", 0.0)
    for n in range(1, 4):
        writing.write(n)
        assert writing.made == n
        writing.redis.client_kill_filter(_type="normal", skipme=True)
    assert writing.writer._outage.count == 0


@pytest.mark.parametrize("state", ["there", "retired", "left"])
def test_an_outcome_that_comes_late_makes_no_key_of_a_deleted_lane(writing: Writing, state: str) -> None:
    writing.redis.delete(writing.outcomes)
    layout = text_of_layout(Layout(2, 1, leaving=Layout()))
    if state != "there":
        text = layout if state == "left" else Retired(1, "newer", layout).text
        writing.redis.set(layout_key("ticket_stream"), text)
    writing.write(1)
    assert writing.redis.exists(writing.outcomes) == (state == "there")
    writing.write(2)
    writing.redis.delete(layout_key("ticket_stream"))
    # One that somebody deleted by hand comes again
    writing.write(3)
    assert writing.redis.xlen(writing.outcomes) == (3 if state == "there" else 1)
