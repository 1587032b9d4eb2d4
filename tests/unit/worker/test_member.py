"""The worker's main process: it reports the end of an execution when that is certain, and obeys requests to its
incarnation.
"""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import get_implementation

from bridge.consumer.deadline import now_ns
from bridge.testing.waiting import holds_for, wait_until
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.main.member import Member, kind_of_pool
from tests.apps import pools
from tests.unit.worker.test_shared import LIFE, Child, runs


class Waiting:
    """Runs `Member.wait_for_end` in a thread, for a page without a worker."""

    def __init__(self, shared: SharedPage, pid: int, fences: set[int], *, killed: bool) -> None:
        self.said: list[bool] = []
        member: Any = SimpleNamespace(shared=shared)

        def wait() -> None:
            self.said.append(Member.wait_for_end(member, pid, fences, LIFE, killed=killed))

        threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def shared() -> SharedPage:
    page = SharedPage()
    page.begin(LIFE, now_ns() + 60_000_000_000)
    return page


def test_a_process_that_is_being_killed_is_waited_for_until_it_is_gone(shared: SharedPage) -> None:
    # Given a process that does not end, and that between two rounds of a bundle reports no running message
    child = Child(lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), runs(shared, 0)()))
    os.kill(child.pid, signal.SIGTERM)
    waiting = Waiting(shared, child.pid, {5}, killed=True)
    holds_for(lambda: not waiting.said, description="nobody to say that it is over", duration_s=0.2)
    child.end(reap=False)
    wait_until(lambda: waiting.said, description="its end to be seen, before anybody reaped it")
    assert waiting.said == [True]
    os.waitpid(child.pid, 0)


def test_waiting_ends_when_the_process_runs_another_message(shared: SharedPage) -> None:
    child = Child(runs(shared, 5))
    waiting = Waiting(shared, child.pid, {5}, killed=False)
    holds_for(lambda: not waiting.said, description="nobody to say that it is over", duration_s=0.2)
    other = Waiting(shared, child.pid, {6}, killed=False)
    wait_until(lambda: other.said, description="it to run nothing of that")
    assert other.said == [True]
    child.end()
    wait_until(lambda: waiting.said, description="its end to be seen")
    assert waiting.said == [True]


def test_when_the_lease_ends_first_there_is_nothing_to_say(shared: SharedPage) -> None:
    child = Child(runs(shared, 5))
    waiting = Waiting(shared, child.pid, {5}, killed=True)
    shared.end()
    wait_until(lambda: waiting.said, description="it to give up")
    assert waiting.said == [False]
    child.end()


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (get_implementation("prefork"), "prefork"),
        (get_implementation("solo"), "solo"),
        (get_implementation("threads"), "thread"),
        (pools.Processes, "prefork"),
        (pools.MoreProcesses, "prefork"),
        (pools.Threads, "thread"),
        (pools.Solo, "solo"),
        (pools.Own, "pools"),
    ],
)
def test_a_pool_is_of_the_kind_of_celerys_pool_that_it_derives_from(cls: type, kind: str) -> None:
    assert kind_of_pool(cls) == kind
