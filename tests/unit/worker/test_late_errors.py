"""What a task decided stays the end of its message, whatever fails behind it, such as a result backend that is away."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import ResponseError

from bridge.app.refusing import Dead, Drop, Nack
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind
from tests.unit.worker.kept_outcomes import LIFE
from tests.unit.worker.test_results import Server, Shop

pytestmark = pytest.mark.filterwarnings("ignore:Exception raised outside body")


def raises(exc: Exception) -> Callable[..., None]:
    def body(self: Any, ticket: str, payload: Any) -> None:
        raise as_new(exc)

    return body


def raises_alone(exc: Exception) -> Callable[[Any], None]:
    def end(_: Any) -> None:
        raise as_new(exc)

    return end


def as_new(exc: Exception) -> Exception:
    """``exc`` without what earlier tests left on it: each raise makes its traceback longer."""
    exc.__cause__ = exc.__context__ = None
    return exc.with_traceback(None)


def retries(self: Any, ticket: str, payload: Any) -> None:
    self.retry(exc=ValueError("not yet"), countdown=7)


def asks_for_a_retry(end: Callable[[Any], Any]) -> Callable[..., Any]:
    """``retry(throw=False)`` does not end the body: ``end`` does."""

    def body(self: Any, ticket: str, payload: Any) -> Any:
        return end(self.retry(exc=ValueError("not yet"), countdown=7, throw=False))

    return body


#: Name -> the body of a task, and what becomes of its message: kind, error, ms until it comes again.
DECISIONS: dict[str, tuple[Callable[..., None], tuple[Kind, str, int | None]]] = {
    "drop": (raises(Drop("old")), (Kind.DROPPED, "old", None)),
    "dead": (raises(Dead("no account")), (Kind.DEAD, "Dead: no account", None)),
    "nack": (raises(Nack("busy", delay=7)), (Kind.FAILED, "Nack: busy", 7000)),
    "uncharged nack": (raises(Nack("busy", delay=7, charge=False)), (Kind.NACKED, "busy", 7000)),
    "retry": (retries, (Kind.FAILED, "ValueError: not yet", 7000)),
    "error": (raises(ValueError("no")), (Kind.FAILED, "ValueError: no", 1000)),
    "retry without throw": (asks_for_a_retry(lambda _: 7), (Kind.FAILED, "ValueError: not yet", 7000)),
    "retry without throw, returned": (asks_for_a_retry(lambda made: made), (Kind.FAILED, "ValueError: not yet", 7000)),
    "retry without throw, ignored": (
        asks_for_a_retry(raises_alone(Ignore())),
        (Kind.FAILED, "ValueError: not yet", 7000),
    ),
    "retry without throw, rejected": (
        asks_for_a_retry(raises_alone(Reject("no"))),
        (Kind.FAILED, "ValueError: not yet", 7000),
    ),
    "retry without throw, dropped": (asks_for_a_retry(raises_alone(Drop("old"))), (Kind.DROPPED, "old", None)),
}
#: What comes behind the decision, where the result is stored.
LATE: dict[str, Exception | None] = {
    "stored": None,
    "away": Unreachable("away"),
    "refused": ResponseError("MISCONF no"),
    "no broker": OperationalError("away"),
    "soft time limit": SoftTimeLimitExceeded(1),
}


class Failing(Server):
    """A result backend that fails with ``error``, ``times`` times."""

    def __init__(self, error: Exception | None, times: int = 10**6) -> None:
        super().__init__()
        self._error = error
        self._times = times

    def _ask(self, command: str) -> None:
        super()._ask(command)
        if self._error is not None and self._times:
            self._times -= 1
            raise as_new(self._error)


def run(shop: Shop, way: str) -> None:
    """Runs a bundle, or one message that travels alone."""
    if way == "bundled":
        shop.run(messages=1)
        return
    request = {
        "id": "0-0", "task": "shop.pay", HEADER_INCARNATION: LIFE, HEADER_BASE: 1000,
        HEADER_RUNS: [["T1", 0, 1, 1, 0]], "delivery_info": {}, "retries": 0,
    }  # fmt: skip
    shop.execution.run_alone(request, "shop.pay", json.dumps([["T1", {}], {}, {}]))


def shop_of(decision: str, server: Server) -> Shop:
    again = {"retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}}
    shop = Shop(DECISIONS[decision][0], server, result_backend_transport_options=again)
    shop.execution.lane = shop.execution.lane.model_copy(update={"max_attempts": 5})
    return shop


@pytest.mark.parametrize("times", [1, 10**6], ids=["once", "always"])
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("way", ["bundled", "alone"])
@pytest.mark.parametrize("decision", DECISIONS)
def test_what_the_task_decided_is_the_outcome(
    decision: str, way: str, late: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = LATE[late]
    shop = shop_of(decision, Failing(error, times))
    with caplog.at_level(logging.ERROR, "bridge.worker.pool.execute"):
        run(shop, way)
    found = shop.writer.written
    assert [(one.kind, one.error, one.delay_ms) for one in found] == [DECISIONS[decision][1]] * len(found)
    assert len(found) == (2 if way == "bundled" else 1)
    assert shop.writer.applied == []
    # The traceback, where there is one, is that of the task.
    assert all("raise" in one.traceback or "self.retry" in one.traceback for one in found if one.traceback)
    said = [record.getMessage() for record in caplog.records if record.name == "bridge.worker.pool.execute"]
    assert all("\n" not in line and "does not change how it ended" in line for line in said)
    if error is not None and times > 1:
        assert len(said) == len(found)
        assert all(type(error).__name__ in line for line in said)
    if error is None:
        assert said == []
