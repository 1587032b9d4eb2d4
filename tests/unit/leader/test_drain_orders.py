"""How long an order to drain a consumer is kept: until its process has ended, or is missing for an hour."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.leader.consumers import membership
from bridge.leader.consumers.membership import DRAIN_KEPT_S, Consumers
from bridge.protocol.drain_orders import DrainOrder
from bridge.protocol.registration import ChangingFacts, Profile, Registrations, RunnableTasks
from tests.unit.leader.lane_world import LaneWorld

STARTED = 1.5


class Orders:
    """One leader, and the two hashes that it reads: the registration and the order of one consumer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = LaneWorld()
        self.registered: dict[bytes, bytes] = {}
        self.orders = {b"w1@h": DrainOrder(int(self.world.now), STARTED).text().encode()}
        monkeypatch.setattr(membership, "drain", lambda *_: self.orders.clear())
        hashes: Any = SimpleNamespace(hgetall=lambda _key: None, execute=lambda: [self.registered, self.orders])
        redis: Any = SimpleNamespace(pipeline=lambda **_: nullcontext(hashes))
        leases: Any = SimpleNamespace(know=lambda *_: None, ask=lambda *_: {})
        steps: Any = SimpleNamespace(on_notice={})
        traits: Any = SimpleNamespace(forget=lambda: None)
        term = replace(self.world.term, redis=redis)
        self.consumers = Consumers(term, self.world.lane, steps, leases, Registrations(), cast("Any", traits))

    def register(self, started: float = STARTED) -> None:
        facts = ChangingFacts(1, RunnableTasks([], [], {}, {}))
        profile = Profile("queue:w1", facts, "prefork", 7, started, {})
        self.registered = {b"w1@h": profile.text("life1", 2.5, 6000)}

    def after(self, seconds: float) -> bool:
        """Whether the order holds when the leader looks once more after so long."""
        self.world.now += int(seconds * 1000)
        self.consumers.find()
        return bool(self.orders)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    return Orders(monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_an_order_of_any_age_holds_while_its_process_is_missing_for_less_than_an_hour(
    orders: Orders, seed: int
) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        orders.register()
        assert orders.after(draw.choice([1, 3 * DRAIN_KEPT_S]))
        orders.registered = {}
        missing_s = draw.uniform(1, DRAIN_KEPT_S)
        assert orders.after(1)
        assert orders.after(missing_s)
    orders.registered = {}
    assert not orders.after(DRAIN_KEPT_S + 1)


def test_an_order_ends_with_its_process(orders: Orders) -> None:
    orders.register()
    assert orders.after(1)
    orders.register(started=STARTED + 1)
    assert not orders.after(1)


@pytest.mark.parametrize("act", ["drain", "resume", "transfer"])
def test_an_order_about_a_consumer_that_has_just_registered_is_carried_out(act: str) -> None:
    world = LaneWorld()
    world.join("w1@h")
    world.registered["life9"] = ("w9@h", 2)
    assert world.order(do=act, consumer="w9@h").get("ok")
    assert not world.order(do=act, consumer="w8@h").get("ok")


@pytest.mark.parametrize("to", ["w9@h", None])
def test_tickets_move_to_a_consumer_that_has_just_registered(to: str | None) -> None:
    world = LaneWorld()
    world.join("w1@h")
    world.push("T1")
    world.read()
    assert world.order(do="transfer", consumer="w1@h", to=to).get("error")
    world.registered["life9"] = ("w9@h", 2)
    assert world.order(do="transfer", consumer="w1@h", to=to) == {"ok": True, "moved": 0, "running": 1}
