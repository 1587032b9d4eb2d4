"""A broker that answers, and refuses what Celery's consumer needs: how the worker waits for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from celery.bootsteps import RUN, TERMINATE
from celery.exceptions import WorkerShutdown
from celery.worker import state
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

import bridge.worker.celery_patches.broker
from bridge.routing.errors import TicketBridgeError
from bridge.worker.celery_patches.broker import take_error_replies


class Clock:
    """Time that only moves in a sleep, and when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        #: Called in each sleep.
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


class Consumer:
    """Celery's consumer, as far as the patch knows it. ``serves_s``: how long each start lasts."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.error: Exception = ResponseError("NOREPLICAS Not enough good replicas to write.")
        self.serves_s = 0.0
        #: When it was started.
        self.starts: list[float] = []
        self.blueprint = SimpleNamespace(start=self._start, state=RUN)
        take_error_replies(self, _end)

    def _start(self, _parent: Any) -> None:
        self.starts.append(self.clock.now_s)
        self.clock.now_s += self.serves_s
        raise self.error

    def run(self, times: int = 1) -> None:
        """Celery starts it again each time that the connection is lost."""
        for _ in range(times):
            with pytest.raises(Lost, match="cannot serve now"):
                self.blueprint.start(self)


def _end(_: TicketBridgeError) -> NoReturn:
    raise AssertionError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bridge.worker.celery_patches.broker, "time", clock, raising=False)
    return clock


@pytest.fixture
def consumer(clock: Clock) -> Consumer:
    return Consumer(clock)


@pytest.mark.parametrize("error", [ResponseError("NOREPLICAS x"), ReadOnlyError("x"), ResponseError("OOM x")], ids=repr)
def test_a_worker_asks_a_broker_that_refuses_it_ever_less_often(error: Exception, consumer: Consumer) -> None:
    """It asked several times a second, and logged a stack trace each second."""
    consumer.error = error
    consumer.run(8)
    pauses = [later - earlier for earlier, later in zip(consumer.starts, consumer.starts[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 3, 4, 5, 5, 5])


def test_a_worker_that_was_served_for_a_while_asks_again_at_once(consumer: Consumer) -> None:
    consumer.run(3)
    consumer.serves_s = 60.0
    consumer.run(2)
    assert consumer.starts[-1] == pytest.approx(consumer.starts[-2] + 60)


def test_a_lost_connection_is_no_reason_for_a_pause(consumer: Consumer) -> None:
    """Celery waits by itself until it can connect."""
    consumer.run(3)
    refusal, consumer.error = consumer.error, Lost("reset")
    with pytest.raises(Lost, match="reset"):
        consumer.blueprint.start(consumer)
    consumer.error = refusal
    consumer.run()
    assert consumer.starts[-1] == consumer.starts[-2]


def test_a_pause_ends_when_the_worker_is_told_to_stop(
    consumer: Consumer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.run(6)
    began = clock.now_s
    monkeypatch.setattr(state, "should_stop", None)
    clock.meanwhile = lambda: monkeypatch.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        consumer.blueprint.start(consumer)
    assert clock.now_s - began < 1
    assert len(consumer.starts) == 6


def test_a_consumer_that_was_stopped_in_a_pause_does_not_start_again(consumer: Consumer, clock: Clock) -> None:
    consumer.run(6)
    clock.meanwhile = lambda: setattr(consumer.blueprint, "state", TERMINATE)
    consumer.blueprint.start(consumer)
    assert len(consumer.starts) == 6


def test_a_script_of_celery_that_the_server_forgot_twice_does_not_end_the_worker(consumer: Consumer) -> None:
    """`SCRIPT FLUSH` while the worker connects, between the loading of a script and its call."""
    consumer.error = NoScriptError("No matching script.")
    consumer.run()
