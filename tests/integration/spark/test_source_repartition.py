"""Spark's tasks write while the stream is repartitioned, each by the layout that it knew: nothing is lost, no order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridge.operate.repartitioning import begin
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.operate.test_repartition import STREAM, TICKETS, Splitting
from tests.integration.spark.spark_writes import batch, cut, partition

#: Messages of each ticket in one step of a task.
EACH = 10
OPTIONS = {"stream": STREAM, "runId": "r", "fields": "payload", "chunkSize": "7", "window": "3"}


def rows(tickets: range, step: int) -> pa.RecordBatch:
    """The messages of a step: the next ones of each ticket."""
    numbers = range(step * EACH, (step + 1) * EACH)
    return batch(*((f"T{t}", n, json.dumps({"n": n})) for n in numbers for t in tickets))


@pytest.fixture
def splitting(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Splitting:
    made = Splitting(nodes, own_server, tmp_path)
    made.lane.env["COUNTER_CONF"] = json.dumps({"bridge_partitions": 2})
    return made


def test_tasks_that_hold_an_old_layout_lose_nothing_and_keep_the_order(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.worker("w1", wait=False)
    lane.master("m1", wait=False)
    wait_until(lambda: splitting.layout.partitions == 2, description="the first layout")
    begun, ended = threading.Event(), threading.Event()

    def written(number: int, tickets: range, waits: list[Callable[[], Any]]) -> int:
        """One task: its first rows, and the rows of another step after each wait."""

        def batches() -> Iterator[pa.RecordBatch]:
            yield from cut(rows(tickets, 0), 20)
            for step, wait in enumerate(waits, start=1):
                wait()
                yield from cut(rows(tickets, step), 20)

        return partition(splitting.server.url, batches(), (0, number), **OPTIONS).rows

    # One task goes on while both layouts are in use, the other only when the old partitions are gone.
    first, second = range(5), range(5, TICKETS)
    ways: list[tuple[range, list[Callable[[], Any]]]] = [(first, [begun.wait, ended.wait]), (second, [ended.wait] * 2)]
    with ThreadPoolExecutor() as pool:
        tasks = [pool.submit(written, number, *way) for number, way in enumerate(ways)]
        try:
            splitting.wait_handled(1)
            # The first step of the command alone: old and new partitions are in use until the command goes on.
            with splitting.server.client() as redis:
                begin(redis, STREAM, splitting.layout, 3)
            begun.set()
            wait_until(lambda: splitting.handled()[0] == 2 * EACH, description="the second step", timeout_s=180)
            splitting.repartition(3)
        finally:
            begun.set()
            ended.set()
        assert [task.result() for task in tasks] == [3 * EACH * len(tickets) for tickets, _ in ways]
    splitting.pushed = 3 * EACH
    splitting.check()
    # And the same tasks once more, which know neither layout, add nothing
    for number, (tickets, _) in enumerate(ways):
        again = iter([rows(tickets, step) for step in range(3)])
        assert partition(splitting.server.url, again, (0, number), **OPTIONS).found == 3 * EACH * len(tickets)
