"""The lane that users run in their own tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.testing.lane import Lane
from bridge.testing.waiting import wait_until


def make_app() -> Any:
    return bridge.install(Celery("shop", broker="redis://nowhere:1/0", set_as_current=False))


def test_a_lane_in_a_test_handles_messages_in_order_and_leaves_the_app_as_it_was(
    bridge_lane: Callable[..., Lane],
) -> None:
    app = make_app()
    app.conf.bridge_max_attempts = 2
    app.conf.bridge_backoff = {"base": 0.01}
    seen: list[Any] = []

    @app.task(bind=True, name="shop.apply", lazy=False, shared=False)
    def apply_update(self: bridge.TicketTask, ticket_id: str, payload: Any) -> int:
        seen.append((ticket_id, payload, self.ticket.attempt, threading.current_thread().name))
        self.ticket.effects.rpush(f"log:{ticket_id}", payload)
        if payload == "bad":
            raise ValueError("always")
        return len(str(payload))

    lane = bridge_lane(app)
    ids = apply_update.push_many([("A", 1), ("B", 1), ("A", "bad"), ("A", 2)])
    lane.wait()

    assert [(payload, attempt) for ticket, payload, attempt, _ in seen if ticket == "A"] == [
        (1, 1), ("bad", 1), ("bad", 2), (2, 1),
    ]  # fmt: skip
    assert lane.redis.lrange("log:A", 0, -1) == [b"1", b"2"]
    assert app.AsyncResult(ids[0]).get(timeout=60) == 1
    [letter] = lane.dead_letters()
    assert "ValueError: always" in letter["error"]


def test_lanes_of_two_tests_do_not_meet_and_nothing_of_them_stays() -> None:
    app = make_app()
    seen: list[Any] = []

    @app.task(name="shop.note", lazy=False, shared=False)
    def note(ticket_id: str, payload: Any) -> None:
        seen.append(payload)

    before = set(threading.enumerate())
    for n in range(2):
        with Lane(app) as lane:
            note.push("T", n)
            lane.wait()
            assert lane.redis.xlen("ticket_stream") <= 1
    assert seen == [0, 1]
    assert app.conf.broker_url == "redis://nowhere:1/0"
    left = {thread for thread in set(threading.enumerate()) - before if not thread.daemon}
    assert left == set()


def test_messages_that_do_not_end_are_named(bridge_lane: Callable[..., Lane]) -> None:
    app = make_app()
    go_on = threading.Event()

    @app.task(name="shop.waits", lazy=False, shared=False)
    def waits(ticket_id: str, payload: Any) -> None:
        go_on.wait(30)

    lane = bridge_lane(app)
    waits.push("T", 1)
    with pytest.raises(TimeoutError, match=r"after 0.5 s the lane has 1 pending messages|not read"):
        lane.wait(0.5)
    go_on.set()
    lane.wait()


def test_delayed_messages_can_be_made_due(bridge_lane: Callable[..., Lane]) -> None:
    app = make_app()
    app.conf.bridge_partitions = 2
    seen: list[Any] = []

    @app.task(name="shop.remind", lazy=False, shared=False)
    def remind(ticket_id: str, payload: Any) -> None:
        seen.append((ticket_id, payload))

    lane = bridge_lane(app)
    remind.push_many([("A", 1), ("A", 3, {"delay": 7200}), ("A", 2, {"delay": 3600}), ("B", 1, {"delay": 60})])
    remind.push_many([("C", 1, {"delay": 600, "hold": True}), ("C", 2)])

    def says_that_some_are_delayed() -> bool:
        with pytest.raises(TimeoutError) as raised:
            lane.wait(0.05)
        return "delayed" in str(raised.value)

    wait_until(says_that_some_are_delayed, description="the master to have read them")
    assert lane.make_due() == 4
    lane.wait()
    assert lane.make_due() == 0
    assert {ticket: [n for one, n in seen if one == ticket] for ticket in "ABC"} == {
        "A": [1, 2, 3],
        "B": [1],
        "C": [1, 2],
    }
