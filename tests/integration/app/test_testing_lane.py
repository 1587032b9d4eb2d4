"""The lane that users run in their own tests."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, _state, current_app, shared_task
from celery._state import task_join_will_block
from celery.worker import state

import bridge
from bridge.routing.errors import ConfigurationError
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.lane import Lane
from bridge.testing.lane_worker import worker_on_thread
from bridge.testing.pointing import pointed_at
from bridge.testing.waiting import wait_until
from bridge.worker.main.server_check import ServerStep, end_worker


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


def test_lanes_of_two_apps_leave_the_apps_and_the_log_of_the_process_alone(
    bridge_lane: Callable[..., Lane], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shared tasks are of every app that is made after them: their functions are forgotten with the test.
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state._tls, "current_app", None)
    log = logging.getLogger("shop.lane")
    apps = {name: bridge.install(Celery(name, broker="redis://nowhere:1/0", set_as_current=False)) for name in "ab"}
    for name, app in apps.items():
        app.conf.bridge_stream = "orders"
        app.conf.bridge_subscriptions = {name: {"task": "shop.says"}}

    @shared_task(bind=True, name="shop.says")
    def says(self: bridge.TicketTask, ticket_id: str, payload: Any) -> None:
        log.warning("%s in the task of %s", current_app.main, self.app.main)

    apps["a"].set_current()
    assert current_app.main == "a"
    before = (_state.default_app, logging.getLogger().level, logging.getLogger().handlers[:])
    first = bridge_lane(apps["a"])
    second = bridge_lane(apps["b"], url=first.url)
    message_id = says.push("T", 1)
    first.wait()
    second.wait()

    assert message_id, "the app of the shared task was replaced"
    assert current_app.main == "a"
    assert (_state.default_app, logging.getLogger().level, logging.getLogger().handlers) == before
    said = [record.getMessage() for record in caplog.records if record.name == log.name]
    assert sorted(said) == ["a in the task of a", "b in the task of b"]


def test_messages_that_do_not_end_are_named(bridge_lane: Callable[..., Lane]) -> None:
    app = make_app()
    go_on = threading.Event()

    @app.task(name="shop.waits", lazy=False, shared=False)
    def waits(ticket_id: str, payload: Any) -> None:
        go_on.wait(30)

    lane = bridge_lane(app)
    waits.push("T", 1)
    with pytest.raises(TimeoutError, match=r"after 0.5 s the lane has 1 pending message$|not read"):
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


def refuses(_step: ServerStep, worker: Any) -> None:
    end_worker(worker, ConfigurationError("it refuses to start"))


def fails(_step: ServerStep, _worker: Any) -> None:
    raise ValueError("it cannot start")


@pytest.mark.parametrize(("start", "why"), [(refuses, "it refuses to start"), (fails, "it cannot start")])
def test_a_block_does_not_begin_when_its_worker_does_not_start(
    start: Callable[[ServerStep, Any], None], why: str, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    monkeypatch.setattr(ServerStep, "start", start)
    with (
        pointed_at(app, own_server.url),
        pytest.raises(RuntimeError, match=why) as raised,
        worker_on_thread(app, concurrency=1),
    ):
        pytest.fail("the block ran without a worker")
    assert str(raised.value.__cause__) == why
    assert not task_join_will_block(), "nobody could wait for a result in this process any more"


def test_ctrl_c_ends_a_worker_that_is_not_ready(own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()

    def waits_for_ever(_step: ServerStep, _worker: Any) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        turn = threading.Event()
        while not turn.wait(0.01):
            state.maybe_shutdown()

    monkeypatch.setattr(ServerStep, "start", waits_for_ever)
    with pointed_at(app, own_server.url), pytest.raises(KeyboardInterrupt), worker_on_thread(app, concurrency=1):
        pytest.fail("the block ran without a worker")
    assert not [thread for thread in threading.enumerate() if thread.name == "bridge-worker"]
    assert not task_join_will_block(), "nobody could wait for a result in this process any more"
