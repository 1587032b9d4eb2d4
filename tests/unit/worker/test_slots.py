"""The slots of a worker: of the processes of its pool, those that hang while they start are not slots."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.worker.main.slots import Slots

PATIENCE = 3


class Pool:
    """Celery's pool of processes, as far as `Slots` looks at it."""

    def __init__(self, size: int) -> None:
        self._pool = [SimpleNamespace(pid=1000 + n, inqW_fd=10 + n) for n in range(size)]
        self._all_inqueues = {process.inqW_fd for process in self._pool}

    def replace(self, index: int) -> None:
        """The process of this place ended, and the next one starts. It has the same pipes."""
        self._all_inqueues.discard(self._pool[index].inqW_fd)
        self._pool[index].pid += 100

    def ready(self, index: int) -> None:
        self._all_inqueues.add(self._pool[index].inqW_fd)


class Stage:
    def __init__(self, size: int, autoscale: int | None = None) -> None:
        self.pool = Pool(size)
        self.begun = 0
        scaler = {} if autoscale is None else {"autoscaler": SimpleNamespace(max_concurrency=autoscale)}
        consumer: Any = SimpleNamespace(
            controller=SimpleNamespace(**scaler), pool=SimpleNamespace(num_processes=size, _pool=self.pool)
        )
        self.slots = Slots(consumer, "w1@host", PATIENCE, lambda: self.begun)

    def look(self, times: int = 1) -> int:
        for _ in range(times):
            self.slots.look_at_starts()
        return self.slots()


def test_a_process_that_hangs_is_no_slot_until_it_has_started(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(3)
    stage.pool.replace(0)
    assert stage.look(PATIENCE) == 3
    with caplog.at_level(logging.WARNING):
        assert stage.look() == 2
        assert stage.look(5) == 2
        assert len(caplog.records) == 1
        stage.pool.ready(0)
        assert stage.look() == 3
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "1 of 3 pool processes of w1@host have not started for 3 s, and take no messages",
        "all pool processes of w1@host have started",
    ]


def test_processes_that_celery_ends_and_starts_again_hang_when_none_gets_ready() -> None:
    stage = Stage(2)
    for _ in range(PATIENCE):
        stage.pool.replace(0)
        stage.pool.replace(1)
        assert stage.look() == 2
    stage.pool.replace(0)
    stage.pool.replace(1)
    assert stage.look() == 0
    stage.pool.ready(1)
    assert stage.look() == 2


def test_processes_that_end_after_each_message_do_not_hang() -> None:
    # With `worker_max_tasks_per_child`: each look finds a process that is starting.
    stage = Stage(1)
    for _ in range(5 * PATIENCE):
        stage.pool.replace(0)
        stage.begun += 1
        assert stage.look() == 1


def test_the_largest_size_of_an_autoscaled_pool_loses_what_hangs() -> None:
    stage = Stage(1, autoscale=4)
    stage.pool.replace(0)
    assert stage.look(PATIENCE + 1) == 3


def test_a_pool_that_cannot_tell_has_all_its_slots() -> None:
    stage = Stage(2)
    stage.pool.replace(0)
    del stage.pool._all_inqueues
    assert stage.look(PATIENCE + 1) == 2


@pytest.mark.parametrize("size", [0, 3])
def test_a_pool_of_greenlets_has_as_many_slots_as_may_run(size: int) -> None:
    # Celery 5.6 says how many run
    pool = SimpleNamespace(num_processes=1, _pool=SimpleNamespace(size=size))
    consumer: Any = SimpleNamespace(controller=SimpleNamespace(), pool=pool)
    assert Slots(consumer, "w1@host", PATIENCE, lambda: 0)() == size
