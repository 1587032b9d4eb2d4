"""How soon a worker notices that a pool process has ended."""

from __future__ import annotations

from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool

from bridge.worker.celery_patches.pool_exits import LONGEST_S, notice_exits_soon


class Hub:
    """Keeps what it shall call later, and calls it when the time has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[tuple[float, Any]] = []

    def call_later(self, wait_s: float, call: Any, *args: Any) -> None:
        self.later.append((self.now + wait_s, lambda: call(*args)))

    def run(self) -> None:
        while self.later:
            self.later.sort(key=lambda one: one[0])
            self.now, call = self.later.pop(0)
            call()


class Process:
    """Can be reaped from ``ends`` on."""

    def __init__(self, hub: Hub, ends: float) -> None:
        self._hub = hub
        self._ends = ends

    @property
    def exitcode(self) -> int | None:
        return 3 if self._hub.now >= self._ends else None


class Pool(AsynPool):  # type: ignore[misc, unused-ignore]
    def __init__(self, hub: Hub, ends: float) -> None:
        self.process = Process(hub, ends)
        self._pool = [self.process]
        self._hub = hub
        self.looks = 0
        self.reaped_at: float | None = None
        self._cache: dict[int, Any] = {}

    def __del__(self) -> None:
        pass

    def _untrack_child_process(self, proc: Any, hub: Any) -> None:
        pass

    def maintain_pool(self) -> None:
        self.looks += 1
        if self.process.exitcode is not None and self._pool:
            self.reaped_at = self._hub.now
            self._pool.clear()


@pytest.mark.parametrize("ends", [0.0, 0.001, 0.004, 0.05, 0.3, 1.9])
def test_an_end_that_the_sentinel_announced_too_early_is_noticed_soon(ends: float) -> None:
    notice_exits_soon()
    hub = Hub()
    pool = Pool(hub, ends)
    pool._event_process_exit(hub, pool.process)
    hub.run()
    assert pool.reaped_at is not None
    assert pool.reaped_at <= 2 * ends + 0.002


def test_a_process_that_lives_on_without_its_sentinel_costs_few_looks() -> None:
    notice_exits_soon()
    hub = Hub()
    pool = Pool(hub, ends=1e9)
    asked: list[float] = []
    pool._event_process_exit(hub, pool.process)
    while hub.later:
        asked.append(hub.later[0][0])
        hub.now, call = hub.later.pop(0)
        call()
    assert len(asked) < 15
    assert hub.now < 3 * LONGEST_S
    assert pool.looks == 1
