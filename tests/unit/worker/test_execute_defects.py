"""A defect outside of a task is the failure of its own message, and takes back nothing that was written."""

from __future__ import annotations

import errno
import inspect
import json
import os
import sys
from typing import Any

import orjson
import pytest
from celery import Celery
from redis.exceptions import ResponseError

from bridge.app.installation import install
from bridge.consumer.deadline import now_ns
from bridge.protocol.headers import readable_runs
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind
from bridge.routing.return_codes import ReturnCode
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles
from bridge.worker.pool.bundles import run_bundle
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, heads


def running_bundle(app: Any, writer: Any, task: str, tickets: int, each: int, payload: Any = 1) -> list[Any]:
    """Runs a bundle of ``tickets`` times ``each`` messages with this payload. Returns its events."""
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    # However slow the machine is, the bundle gives nothing back.
    lane = app.bridge.settings.lane.model_copy(update={"bundle_ms": 10_000.0})
    execution = Execution(app, lane, shared, writer, "w1@here")
    runs: list[Any] = [
        [f"T{t}", t * each, 1, [[f"{n}-{t}", task, payload if (n, t) == (0, 0) else 1] for n in range(each)]]
        for t in range(tickets)
    ]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}
    failed, events, _ = run_bundle(execution, request, json.dumps(runs))
    assert not failed
    return list(events)


def test_a_result_that_cannot_be_stored_takes_back_nothing_that_was_written() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> Any:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        return object()

    app.finalize()
    writer = KeepingWriter()
    running_bundle(app, writer, pay.name, tickets=1, each=3)

    # All ran, in order, without a failure.
    assert [(outcome.fence, outcome.kind) for outcome in writer.applied] == [(1000 + n, Kind.DONE) for n in range(3)]
    assert writer.written == []


def test_an_error_outside_of_a_task_is_the_failure_of_that_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))

    @app.task(name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None: ...

    app.finalize()
    writer = KeepingWriter()
    running_bundle(app, writer, pay.name, tickets=1, each=1)
    sound = pay.__trace__

    def tracer(id_: str, *args: Any) -> Any:
        if id_ == "1-0":
            raise RuntimeError("the tracer broke")
        return sound(id_, *args)

    monkeypatch.setattr(pay, "__trace__", tracer)
    writer.written.clear()
    events = running_bundle(app, writer, pay.name, tickets=2, each=3)

    written = [(outcome.message_id, outcome.kind) for outcome in writer.written]
    done = ["0-0", "0-1", "1-1", "2-1"]
    assert sorted(written) == sorted([*((id_, Kind.DONE) for id_ in done), ("1-0", Kind.FAILED)])
    assert {id_: kind for id_, kind, *_ in events}["1-0"] == "failed"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the parser has a limit of its own, which no payload reaches")
def test_a_payload_that_python_cannot_read_is_its_own_messages_failure() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))

    @app.task(name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None: ...

    app.finalize()
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        text = orjson.dumps([["T", 0, 1, [["1-0", "a", deep], ["2-0", "b", 2]]]]).decode()
        [[_, _, _, messages]] = readable_runs(text, bundles.UNREADABLE)
    finally:
        sys.setrecursionlimit(limit)
    assert [payload is bundles.UNREADABLE for _, _, payload in messages] == [True, False]


def test_effects_that_the_server_refuses_after_all_are_their_own_messages_failure() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))

    @app.task(bind=True, name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)

    app.finalize()

    class Server(KeepingWriter):
        def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
            if any(ticket == "T1" for ticket, _, _ in items):
                raise ResponseError("ERR the script broke")
            return super().apply(incarnation, items)

    writer = Server()
    running_bundle(app, writer, pay.name, tickets=3, each=2)
    assert sorted(outcome.message_id for outcome in writer.applied) == ["0-0", "0-2", "1-0", "1-2"]
    assert [(outcome.message_id, outcome.kind) for outcome in writer.written] == [("0-1", Kind.FAILED)]
    assert "the script broke" in writer.written[0].error


class Ended(BaseException):
    """Instead of the end of this process."""


@pytest.fixture
def pool_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a pool process, whose end raises `Ended`."""

    def end(code: int) -> None:
        assert code == os.EX_OSERR
        raise Ended

    monkeypatch.setattr(SharedPage, "in_main", property(lambda _: False))
    monkeypatch.setattr("bridge.worker.pool.execute.os._exit", end)


@pytest.mark.usefixtures("pool_process")
def test_a_pool_process_without_a_descriptor_ends_before_it_begins_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has taken them all. What the next message needs may be a connection."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    begun: list[str] = []

    @app.task(name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)

    app.finalize()

    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("bridge.worker.pool.execute.os.dup", none_left)
    with pytest.raises(Ended):
        running_bundle(app, KeepingWriter(), pay.name, tickets=1, each=1)
    assert begun == []


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
@pytest.mark.usefixtures("pool_process")
def test_a_pool_process_that_has_no_descriptor_for_a_result_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each later message with a result would fail in it."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        raise ValueError("as it was told")

    app.finalize()

    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pay.backend, "mark_as_retry", none_left)
    with pytest.raises(Ended):
        running_bundle(app, KeepingWriter(), pay.name, tickets=1, each=1)
