"""A Spark worker keeps imported modules out of garbage collection, once for each process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from bridge.spark.wire import worker


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the garbage collector is asked for, in order, and not done: this process is pytest's."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    worker._keep_modules.cache_clear()
    # Its one instance stays with the class: whatever comes after would be taken for a task.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    monkeypatch.setattr(TaskContext, "get", TaskContext)
    yield calls
    worker._keep_modules.cache_clear()


def test_modules_are_spared_once_a_process_and_no_garbage_with_them(calls: list[str]) -> None:
    worker.begin_task()
    worker.begin_task()
    assert calls == ["collect", "freeze"]


def test_a_process_that_runs_no_task_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    worker.begin_task()
    assert calls == []
