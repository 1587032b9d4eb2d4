"""Requests that go first at a worker, in the line of kombu's own semaphore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from bridge.worker.celery_patches.waiting_requests import put_first


def request(name: str) -> Any:
    return SimpleNamespace(name=name)


def test_a_request_that_goes_first_is_behind_others_that_do_and_before_the_rest() -> None:
    # Given one pool process that is busy, and requests that wait
    began: list[str] = []
    line = LaxBoundedSemaphore(1)

    def give(name: str, *, first: bool = False) -> None:
        one = request(name)
        line.acquire(lambda given: began.append(given.name), one)
        if first:
            put_first(line, one)

    for name, first in (("busy", False), ("a", False), ("x", True), ("b", False), ("y", True)):
        give(name, first=first)
    assert began == ["busy"]
    # When the process is free again and again
    for _ in range(4):
        line.release()
    # Then those that go first went first, in their order
    assert began == ["busy", "x", "y", "a", "b"]
    # And one that a free process took at once stays where it is
    line.release()
    give("z", first=True)
    assert began[-1] == "z"


def test_a_pool_without_a_line_is_left_alone() -> None:
    put_first(None, request("x"))
