"""Exceptions are of the app's classes, and their methods may raise. That is the failure of their own message alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import Reject, Retry

import bridge
from bridge.app.installation import install
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.main.requests import CarriedMessage
from bridge.worker.main.ticket_requests import TicketRequest
from bridge.worker.pool.delivery import SHOWN_CHARS, failed
from bridge.worker.pool.exceptions import picklable, stand_in
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter
from tests.unit.worker.test_execute_defects import running_bundle

pytestmark = pytest.mark.filterwarnings("ignore:Exception raised outside body")


class NoRepr(Exception):
    def __repr__(self) -> str:
        raise AttributeError("no repr")


class NoText(Exception):
    def __str__(self) -> str:
        raise AttributeError("no text")


class Number(Exception):
    def __str__(self) -> str:
        return cast("str", 7)


class Endless(Exception):
    def __repr__(self) -> str:
        return repr(self)

    __str__ = __repr__


class Itself(Exception):
    """What its methods raise cannot be shown either."""

    def __repr__(self) -> str:
        raise Itself

    __str__ = __repr__


class Huge(Exception):
    def __repr__(self) -> str:
        return "x" * 100_000


class Holder(Exception):
    """Celery's `Retry` has such an attribute, and other classes may."""

    @property
    def exc(self) -> Exception:
        raise ValueError("nothing is held")


BROKEN: list[type[Exception]] = [NoRepr, NoText, Number, Endless, Itself, Huge, Holder]

#: How an attempt ends with such an exception.
ENDS: dict[str, tuple[Callable[[Any, Exception], None], Kind]] = {}


def end(name: str, kind: Kind) -> Callable[[Callable[[Any, Exception], None]], None]:
    def add(act: Callable[[Any, Exception], None]) -> None:
        ENDS[name] = (act, kind)

    return add


@end("raised", Kind.FAILED)
def raised(_task: Any, exc: Exception) -> None:
    raise exc


@end("retry", Kind.FAILED)
def retried(task: Any, exc: Exception) -> None:
    task.retry(exc=exc, countdown=1)


@end("Retry", Kind.FAILED)
def retry_with_message(_task: Any, exc: Exception) -> None:
    raise Retry(message=exc, when=1)


@end("Reject", Kind.DEAD)
def rejected(_task: Any, exc: Exception) -> None:
    raise Reject(exc)


@end("Dead", Kind.DEAD)
def dead(_task: Any, exc: Exception) -> None:
    class Closed(bridge.Dead):
        __str__, __repr__ = type(exc).__str__, type(exc).__repr__

    raise Closed("closed")


@contextmanager
def nothing_raised() -> Iterator[None]:
    """Pytest cannot show such an exception either."""
    try:
        yield
    except Exception as exc:
        raised = type(exc).__name__
    else:
        return
    pytest.fail(f"{raised} was raised")


@pytest.fixture(params=[False, True], ids=["no result", "result"])
def app(request: pytest.FixtureRequest) -> Any:
    made: Any = Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False)
    made.conf.task_ignore_result = not request.param
    return install(made)


def task_of(app: Any, name: str, kind: type[Exception]) -> Any:
    act, _ = ENDS[name]

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        if payload == "broken":
            act(self, kind("broken"))

    app.finalize()
    return pay


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name", list(ENDS))
def test_the_mates_of_such_a_message_are_done_once(app: Any, name: str, kind: type[Exception]) -> None:
    writer = KeepingWriter()
    pay = task_of(app, name, kind)
    with nothing_raised():
        events = running_bundle(app, writer, pay.name, tickets=3, each=2, payload="broken")
    found = sorted((one.message_id, one.kind) for one in writer.written)
    assert found == [("0-0", ENDS[name][1]), *((id_, Kind.DONE) for id_ in ("0-1", "0-2", "1-1", "1-2"))]
    assert all(len(str(shown)) <= SHOWN_CHARS for _, _, shown, _ in events)


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name", list(ENDS))
def test_such_a_message_alone_has_its_outcome_from_its_pool_process(app: Any, name: str, kind: type[Exception]) -> None:
    pay = task_of(app, name, kind)
    writer, shared = KeepingWriter(), SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, cast("Any", writer), "w1@here")
    request = {"id": "1-77", "task": pay.name, "delivery_info": {}, "hostname": "w1@here", "retries": 0}
    common = {HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: [["T", 0, 1, 1, 0]]}
    with nothing_raised():
        picklable(execution.run_alone({**request, **common}, pay.name, json.dumps([["T", "broken"], {}, {}])))
    assert [one.kind for one in writer.written] == [ENDS[name][1]]


def test_a_retry_without_a_cause_says_when_it_comes(app: Any) -> None:
    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        raise Retry(when=5)

    app.finalize()
    writer = KeepingWriter()
    running_bundle(app, writer, pay.name, tickets=1, each=1)
    assert [one.error for one in writer.written] == ["Retry in 5s"]


@pytest.mark.parametrize("kind", BROKEN)
def test_the_main_process_can_name_such_an_error(kind: type[Exception]) -> None:
    with nothing_raised():
        assert len(repr(stand_in(kind("x")))) <= SHOWN_CHARS
    _, einfo, _ = failed(kind("x"))
    assert isinstance(einfo, ExceptionInfo)
    part: Any = TicketRequest.__new__(TicketRequest)
    part._request_dict = {}
    reported: list[Any] = []
    part.messages = lambda: [CarriedMessage("1-77", "shop.pay", "T", 1, 1000, 1)]
    part.report, part.finish = reported.extend, lambda: None
    with nothing_raised():
        part._write_outcomes(Kind.FAILED, kind("x"), 1000)
    assert reported[0].error.startswith(f"{kind.__name__}: ")
