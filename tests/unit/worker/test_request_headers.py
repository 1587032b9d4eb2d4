"""What a task sees of its request's headers: none of the bridge's, so it may hand them to a call of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.testing import handle
from bridge.worker.pool import light_tracer
from tests.unit.worker.kept_outcomes import LIFE
from tests.unit.worker.test_results import Server, Shop

SEEN: list[Any] = []


def looks(self: Any, ticket: str, payload: Any) -> None:
    del ticket, payload
    # Celery 5.6 has the same headers there, and newer versions have a copy.
    options = dict(self.request.as_execution_options()["headers"])
    SEEN.append((dict(self.request.headers), self.request.headers, options))
    # A change is the message's own.
    self.request.headers["theirs"] = 1


def alone(shop: Shop) -> None:
    request = {
        "id": "0-0", "task": "shop.pay", HEADER_INCARNATION: LIFE, HEADER_BASE: 1000,
        HEADER_RUNS: [["T1", 0, 1, 1, 0]], "delivery_info": {}, "retries": 0,
    }  # fmt: skip
    shop.execution.run_alone(request, "shop.pay", json.dumps([["T1", {}], {}, {}]))


WAYS: dict[str, Callable[[Shop], Any]] = {
    "alone": alone,
    "bundled": lambda shop: shop.run(),
    "run": lambda shop: shop.task.run("T1", {}),
    "handled without a server": lambda shop: handle(shop.task, "T1", {}),
}


@pytest.mark.parametrize("light", [True, False], ids=["light", "celery"])
@pytest.mark.parametrize("way", WAYS)
def test_no_header_of_a_message_is_the_bridges(way: str, light: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_tracer, "is_light", lambda _: light)
    SEEN.clear()
    shop = Shop(looks, Server())
    WAYS[way](shop)
    assert len(SEEN) == (4 if way == "bundled" else 1)
    for found, left, options in SEEN:
        assert (found, left, options) == ({}, {"theirs": 1}, {})
