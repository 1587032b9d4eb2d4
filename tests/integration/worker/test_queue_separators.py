"""A worker reads its queues for tickets whatever separator the app has for the priorities of its Redis queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from tests.integration.lanes import LaneUnderTest


#: Celery's documentation has the first one. Each occurs in the names of the lane's queues.
@pytest.mark.parametrize("separator", [":", *(pytest.param(each, marks=pytest.mark.long) for each in ("_", "@", "w1"))])
def test_tickets_and_priorities_work_with_any_separator(
    separator: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    options = {"priority_steps": list(range(10)), "sep": separator, "queue_order_strategy": "priority"}
    conf = json.dumps({"broker_transport_options": options})
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_CONF=conf, CELERY_RESULT_BACKEND=own_server.url)
    client: Any = Celery(broker=own_server.url, backend=own_server.url, set_as_current=False)
    client.conf.broker_transport_options = options
    lane.push_many(4, 10)
    lane.master("m1")
    worker = lane.worker("w1")
    calls = [client.send_task("celery.accumulate", (n,), priority=n) for n in (0, 5, 9)]
    lane.wait_done(40)
    assert [call.get(timeout=30) for call in calls] == [[0], [5], [9]]
    # It finds its queues again with a new connection
    own_server.restart()
    lane.push_many(4, 10, first=10)
    lane.wait_done(80)
    assert [lane.log(f"T{ticket}") for ticket in range(4)] == [list(range(20))] * 4
    assert "undeliverable" not in worker.logs()
