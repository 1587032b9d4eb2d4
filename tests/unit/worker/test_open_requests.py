"""Requests that Celery may have forgotten, and whose pool process has ended (`bridge.worker.main.open_requests`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import bridge.worker.main.open_requests
from bridge.worker.guard.shared_page import Row, SharedPage
from bridge.worker.main.open_requests import REPORTED_AFTER_S, OpenRequests


class Request:
    """A request with two messages, whose fences follow each other."""

    def __init__(self, open_: OpenRequests, first: int) -> None:
        self.first_fence = first
        self.gone: list[int] = []
        self._open = open_
        open_.add(self)

    def fences(self) -> set[int]:
        return {self.first_fence, self.first_fence + 1}

    def cut_off(self, pid: int) -> None:
        self.gone.append(pid)
        self._open.remove(self.first_fence)


class Pool:
    """Pool processes that only note what they run."""

    def __init__(self) -> None:
        self.page = SharedPage()
        self.pids: list[int] = []

    def run(self, fence: int) -> int:
        """A process that runs this fence, until it is killed."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.page.note_running(self.page.take_row(), fence)
            os.write(writing, b"!")
            signal.pause()
            os._exit(0)
        assert os.read(reading, 1) == b"!"
        os.close(reading)
        os.close(writing)
        self.pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    for pid in list(made.pids):
        made.kill(pid)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(bridge.worker.main.open_requests, "time", made)
    return made


def test_a_request_that_no_process_had_accepted_is_reported_at_once(pool: Pool, clock: Any) -> None:
    open_ = OpenRequests(pool.page)
    waits, runs, dies = (Request(open_, first) for first in (10, 20, 30))
    open_.connection_lost()
    pool.run(20)
    dead = pool.run(31)
    open_.report_cut_off()
    assert (waits.gone, runs.gone, dies.gone) == ([], [], [])
    pool.kill(dead)
    open_.report_cut_off()
    open_.report_cut_off()
    assert (waits.gone, runs.gone, dies.gone) == ([], [], [dead])


def test_celery_reports_first_what_a_process_had_accepted(pool: Pool, clock: Any) -> None:
    open_ = OpenRequests(pool.page)
    told, untold = (Request(open_, first) for first in (10, 20))
    open_.accepted(10)
    open_.accepted(20)
    open_.connection_lost()
    dead = [pool.run(10), pool.run(20)]
    for pid in dead:
        pool.kill(pid)
    open_.report_cut_off()
    # Celery reports one of them.
    clock.now += REPORTED_AFTER_S - 1
    open_.report_cut_off()
    open_.remove(10)
    clock.now += 1
    open_.report_cut_off()
    assert (told.gone, untold.gone) == ([], [dead[1]])


def test_one_look_at_the_rows_serves_all_requests(pool: Pool, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of greenlets may have a thousand of each, and Celery's loop waits."""
    open_ = OpenRequests(pool.page)
    for first in range(10, 2010, 2):
        Request(open_, first)
        pool.page.note_running(pool.page.take_row(), first)
    open_.connection_lost()
    looks: list[int] = []
    rows = pool.page.rows

    def counted() -> Iterator[Row]:
        looks.append(1)
        return rows()

    monkeypatch.setattr(pool.page, "rows", counted)
    open_.report_cut_off()
    assert len(looks) == 1


def test_without_a_lost_connection_celery_knows_all(pool: Pool, clock: Any) -> None:
    open_ = OpenRequests(pool.page)
    known = Request(open_, 10)
    pool.kill(pool.run(10))
    for _ in range(3):
        open_.report_cut_off()
        clock.now += REPORTED_AFTER_S
    assert known.gone == []


def test_what_the_pool_may_have_after_a_failure_is_reported_too(pool: Pool, clock: Any) -> None:
    open_ = OpenRequests(pool.page)
    doubted = Request(open_, 10)
    open_.in_doubt(doubted)
    dead = pool.run(10)
    pool.kill(dead)
    open_.report_cut_off()
    assert doubted.gone == [dead]
