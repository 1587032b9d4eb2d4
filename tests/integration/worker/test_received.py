"""Celery's signals from a worker's main process come for each message, also in bundles: received, expired."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

TICKETS = 30
EACH = 10
TASK = "counter.expires"


@pytest.mark.parametrize("bundle_ms", WITH_AND_WITHOUT_BUNDLES)
def test_each_message_has_its_own_signals(
    bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms, COUNTER_RECEIVED="1")
    begun_ms = time.time_ns() // 1_000_000
    late: dict[str, tuple[str, Any]] = {}
    in_time: dict[str, tuple[str, Any]] = {}
    for n in range(EACH):
        for ticket in range(TICKETS):
            fields: dict[Any, Any] = {"ticket_id": f"T{ticket}", "payload": json.dumps({"n": n}), "task": TASK}
            # The first half was added so long ago that it has expired.
            id_: Any = f"{begun_ms - 60_000}-{n * TICKETS + ticket + 1}" if n < EACH // 2 else "*"
            found: Any = lane.redis.xadd(lane.keys.stream, fields, id=id_)
            (late if n < EACH // 2 else in_time)[str(found)] = (f"T{ticket}", {"n": n})
    lane.master("m1")
    lane.worker("w1", "--concurrency=2", "-E")
    lane.wait_done(TICKETS * EACH)

    assert [lane.log(f"T{ticket}") for ticket in range(TICKETS)] == [list(range(EACH // 2, EACH))] * TICKETS
    assert {letter["message_id"] for letter in lane.dead_letters()} == late.keys()
    app = Celery(broker=own_server.url, backend=own_server.url)
    for id_, (ticket_id, payload) in (late | in_time).items():
        noted = lane.ledger / f"noted-{id_}"
        # One that a bundle gave back was received twice.
        received = json.dumps(["task_received", TASK, [ticket_id, payload], TASK, id_])
        expected = {received, "task_revoked expired"} if id_ in late else {received}
        wait_until(lambda: set(noted.read_text().splitlines()) == expected, description=f"the signals of {id_}")  # noqa: B023
    # The task has no results, as a revoked one of plain Celery.
    assert {app.AsyncResult(id_).state for id_ in late} == {"PENDING"}
