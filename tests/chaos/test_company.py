"""What a run knows of its processes."""

from __future__ import annotations

from pathlib import Path

from bridge.testing.nodes.yard import ProcessYard
from tests.chaos.company import consumer_of
from tests.chaos.facts import Notes
from tests.chaos.seats import Seat


def test_orders_name_a_worker_as_the_lane_does(tmp_path: Path) -> None:
    node = ProcessYard(tmp_path, "redis://localhost:1/0").worker("w1", app="tests.chaos.app", start=False)
    name = consumer_of(Seat(node, "worker", "prefork", Notes()))
    assert name == node.hostname()
    assert name.startswith("w1@")
