"""However the last attempt of a message ends, a caller that waits for its result gets an end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, WorkerLostError
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry

import bridge
from bridge.app.installation import install
from bridge.app.results import result_of
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool.bundles import run_bundle
from bridge.worker.pool.celery_reports import CeleryReport
from bridge.worker.pool.delivery import Delivery
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, heads

MAX_ATTEMPTS = 3
#: Other tests may use the same cache.
NUMBERS = count(1)

#: What a task does -> the outcomes and the states of the result, after an attempt before the last one and after the
#: last one. None: nothing is stored.
ENDS: dict[str, tuple[Callable[[Any], Any], tuple[Kind, str | None], tuple[Kind, str | None]]] = {}
AGAIN, GIVEN_UP = (Kind.FAILED, states.RETRY), (Kind.FAILED, states.FAILURE)
DEAD = (Kind.DEAD, states.FAILURE)
UNCHARGED = (Kind.NACKED, states.RETRY)


def end(name: str, before: tuple[Kind, str | None], last: tuple[Kind, str | None]) -> Callable[[Any], Any]:
    def add(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ENDS[name] = (body, before, last)
        return body

    return add


def raising(exc: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def body(task: Any) -> Any:
        raise exc()

    return body


class TwoArguments(bridge.Nack):
    """No exception with two required arguments can be pickled and read back. So Celery's `Retry` replaces it."""

    def __init__(self, bank: str, why: str) -> None:
        super().__init__(f"{bank} is {why}", delay=1, charge=False)


class ByName(bridge.Nack):
    def __init__(self, *, bank: str) -> None:
        super().__init__(bank, delay=1, charge=False)


class Holding(bridge.Nack):
    def __init__(self, lock: Any) -> None:
        super().__init__("held", delay=1, charge=False)
        self.lock = lock


def local_class() -> type[bridge.Nack]:
    class Local(bridge.Nack):
        pass

    return Local


end("an error", AGAIN, GIVEN_UP)(raising(lambda: ValueError("bad")))
end("a soft time limit", AGAIN, GIVEN_UP)(raising(SoftTimeLimitExceeded))
end("Retry", AGAIN, GIVEN_UP)(raising(lambda: Retry(when=1)))
end("Retry with its cause", AGAIN, GIVEN_UP)(raising(lambda: Retry(exc=ValueError("bad"), when=1)))
end("retry()", AGAIN, GIVEN_UP)(lambda task: task.retry(countdown=1))
end("retry(exc)", AGAIN, GIVEN_UP)(lambda task: task.retry(exc=ValueError("bad")))
end("retry(max_retries=0)", GIVEN_UP, GIVEN_UP)(lambda task: task.retry(max_retries=0))
end("a charged Nack", AGAIN, GIVEN_UP)(raising(lambda: bridge.Nack("later")))
end("an uncharged Nack", UNCHARGED, UNCHARGED)(raising(lambda: bridge.Nack("later", charge=False)))
end("an uncharged Nack of its own", UNCHARGED, UNCHARGED)(raising(lambda: TwoArguments("bank", "closed")))
end("one with a name", UNCHARGED, UNCHARGED)(raising(lambda: ByName(bank="A1")))
end("one that holds a lock", UNCHARGED, UNCHARGED)(raising(lambda: Holding(threading.Lock())))
end("one of a local class", UNCHARGED, UNCHARGED)(raising(lambda: local_class()("closed", charge=False)))
end("a charged one of a local class", AGAIN, GIVEN_UP)(raising(lambda: local_class()("closed")))
end("Dead", DEAD, DEAD)(raising(lambda: bridge.Dead("no")))
end("Drop", (Kind.DROPPED, states.SUCCESS), (Kind.DROPPED, states.SUCCESS))(raising(lambda: bridge.Drop("no")))
end("Reject", DEAD, DEAD)(raising(lambda: Reject("no")))
end("Reject(requeue)", (Kind.FAILED, None), GIVEN_UP)(raising(lambda: Reject("no", requeue=True)))
end("Ignore", (Kind.DONE, None), (Kind.DONE, None))(raising(lambda: Ignore("no")))
end("a success", (Kind.DONE, states.SUCCESS), (Kind.DONE, states.SUCCESS))(lambda _: 1)


@pytest.mark.parametrize("early", [False, True], ids=["in its body", "in before_start"])
@pytest.mark.parametrize("attempt", [1, MAX_ATTEMPTS])
@pytest.mark.parametrize("name", list(ENDS))
@pytest.mark.parametrize("in_bundle", [False, True], ids=["alone", "in a bundle"])
def test_the_result_says_how_the_attempt_ended(name: str, attempt: int, early: bool, in_bundle: bool) -> None:
    act, before, last = ENDS[name]
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    app.conf.bridge_max_attempts = MAX_ATTEMPTS

    class Early(app.Task):
        def before_start(self, *_: Any) -> None:
            act(self)

    @app.task(bind=True, base=Early if early else app.Task, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> Any:
        return act(self)

    app.finalize()
    writer = KeepingWriter()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, cast("Any", writer), "w1@here")
    message_id = f"{next(NUMBERS)}-77"
    request = {"id": message_id, "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    runs: list[Any] = [["T", 0, attempt, [[message_id, pay.name, 1]]]]
    common = {HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: heads(runs)}
    if in_bundle:
        run_bundle(execution, {**request, **common, "id": "b", "task": BUNDLE_TASK}, json.dumps(runs))
    else:
        execution.run_alone({**request, **common, "retries": attempt - 1}, pay.name, json.dumps([["T", 1], {}, {}]))

    kind, state = last if attempt == MAX_ATTEMPTS else before
    if name == "retry(max_retries=0)":
        kind = Kind.DEAD
    [outcome] = [*writer.applied, *writer.written]
    found = app.backend.get_task_meta(message_id)
    assert (outcome.kind, found["status"]) == (kind, state or states.PENDING)
    if kind in (Kind.DEAD, Kind.FAILED) and state == states.FAILURE:
        # A task that waits for it must not end as this one did
        error = app.AsyncResult(message_id).result
        assert not isinstance(error, Reject | Ignore | Retry), error


@pytest.mark.parametrize("ends", ["rejected", "expired", "lost", "revoked"])
def test_the_result_of_a_second_subscription_is_its_own(ends: str) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    app.conf.bridge_subscriptions = {"billing": {"task": "shop.bill"}, "search": {"task": "shop.index"}}

    @app.task(name="shop.bill", lazy=False, shared=False)
    def bill(ticket_id: str, payload: Any) -> None:
        pass

    @app.task(name="shop.index", expires=1 if ends == "expired" else None, lazy=False, shared=False)
    def index(ticket_id: str, payload: Any) -> None:
        raise Reject("no")

    app.finalize()
    search = app.bridge.settings.lane_of(index.name, None)
    message_id = f"{next(NUMBERS)}-78"
    if ends in ("lost", "revoked"):
        request = Context({"id": message_id, "args": ["T", 1], "kwargs": {}, "ignore_result": False})
        report = CeleryReport(index, request, WorkerLostError("died"), None, search)
        report.failed() if ends == "lost" else report.revoked(terminated=False)
    else:
        shared = SharedPage()
        shared.begin(LIFE, now_ns() + 60 * 10**9)
        execution = Execution(app, search, shared, cast("Any", KeepingWriter()), "w1@here")
        delivery = Delivery("T", message_id, 1000, 1, index.name, ["T", 1], {})
        request = {"id": message_id, "task": index.name, "delivery_info": {}, "hostname": "w1@here"}
        execution.trace(delivery, LIFE, request)

    state = states.REVOKED if ends in ("expired", "revoked") else states.FAILURE
    assert result_of(app, message_id, "search").state == state
    assert app.AsyncResult(message_id).state == states.PENDING
