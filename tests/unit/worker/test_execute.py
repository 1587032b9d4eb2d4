"""What a pool process writes about a message that it ran."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from celery import Celery, signals
from celery.result import allow_join_result
from redis.exceptions import ResponseError

from bridge.app import forked_children
from bridge.app.installation import install
from bridge.consumer.deadline import now_ns
from bridge.protocol.headers import RunHead, readable_runs
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import PayloadError
from bridge.routing.return_codes import ReturnCode
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles
from bridge.worker.pool.bundles import WRITE_AFTER_S, run_bundle
from bridge.worker.pool.delivery import Delivery
from bridge.worker.pool.execute import ASKED_TO_END, Execution

LIFE = "1" * 32


class Writer:
    """Keeps what was applied."""

    def __init__(self) -> None:
        self.applied: list[Outcome] = []

    def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
        assert incarnation == LIFE
        self.applied += [outcome for _, outcome, _ in items]
        return [(ReturnCode.OK, "")] * len(items)


def heads(runs: list[Any]) -> list[RunHead]:
    """The headers' rows of a bundle whose body is ``runs``."""
    return [RunHead(ticket, offset, len(messages), attempt, 0) for ticket, offset, attempt, messages in runs]


def test_a_success_that_is_written_before_its_result_is_stored_says_when_it_began() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> int:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        # Longer than any clock's grain.
        time.sleep(0.02)
        return 1

    app.finalize()
    writer: Any = Writer()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})

    before_us = time.time_ns() // 1000
    outcome, _ = execution.trace(
        delivery, LIFE, {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    )

    assert outcome.kind is Kind.DONE
    [applied] = writer.applied
    assert applied.kind is Kind.DONE
    assert before_us <= applied.started_us == delivery.started_us
    assert applied.service_ms >= 20
    assert applied.started_us + applied.service_ms * 1000 <= time.time_ns() // 1000


@pytest.mark.parametrize("has_effects", [True, False], ids=["effects", "no effects"])
@pytest.mark.parametrize("has_result", [True, False], ids=["result", "no result"])
def test_an_effect_that_comes_after_the_success_was_written_is_refused(has_effects: bool, has_result: bool) -> None:
    """A handler that is called after the result was stored, or a thread that the task left behind."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    tickets: list[Any] = []
    refused: list[str] = []

    class Notified(app.Task):
        def on_success(self, *_: Any) -> None:
            try:
                self.ticket.effects.set("handler", 1)
            except PayloadError as exc:
                refused.append(str(exc))

    @app.task(bind=True, base=Notified, name="shop.pay", ignore_result=not has_result, lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        tickets.append(self.ticket)
        if has_effects:
            self.ticket.effects.incrby(f"sum:{ticket_id}", payload)

    app.finalize()

    class Keeps(Writer):
        """Keeps the effects, too."""

        def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
            keys.extend(str(effect.arguments[1]) for _, _, effects in items for effect in effects)
            return super().apply(incarnation, items)

        def write(self, incarnation: str, outcomes: Any) -> None:
            assert incarnation == LIFE
            self.applied += outcomes

    keys: list[str] = []
    writer: Any = Keeps()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})
    request = {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    outcome, _ = execution.trace(delivery, LIFE, request)
    execution.write(LIFE, [(delivery, outcome)])
    assert [outcome.kind for outcome in writer.applied] == [Kind.DONE]
    # The handler's effects were applied with the success, or refused.
    assert len([key for key in keys if "handler" in key]) + len(refused) == 1
    assert len(refused) == (has_effects and has_result)
    [ticket] = tickets
    with pytest.raises(PayloadError, match=r"effects\.set: the success of this message is written already"):
        ticket.effects.set("thread", 1)


@pytest.mark.parametrize("itself", [False, True], ids=["another", "itself"])
@pytest.mark.parametrize("way", ["run", "apply"])
def test_an_effect_of_a_task_that_a_task_calls_is_refused(way: str, itself: bool) -> None:
    """There is no message whose success could apply it."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))

    def save(self: Any, ticket_id: str, payload: Any) -> None:
        if payload != "inner":
            with allow_join_result():
                called = self if itself else inner
                called.run("T2", "inner") if way == "run" else called.apply(("T2", "inner")).get()
        self.ticket.effects.set(f"log:{ticket_id}", payload)

    inner = app.task(bind=True, name="shop.inner", lazy=False, shared=False)(save)
    outer = app.task(bind=True, name="shop.outer", max_retries=0, lazy=False, shared=False)(save)
    app.finalize()
    writer: Any = Writer()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, outer.name, ["T1", "outer"], {})
    request = {"id": "5-0", "task": outer.name, "delivery_info": {}, "hostname": "w1@here"}
    outcome, _ = execution.trace(delivery, LIFE, request)
    if way == "run" and itself:
        # A call of the running task's body: it is a part of this message.
        assert outcome.kind is Kind.DONE
        return
    assert outcome.kind is Kind.FAILED
    assert "effects.set: this task was called by apply or run, and is no message" in outcome.error
    assert writer.applied == []


@pytest.mark.parametrize(
    ("way", "code", "said"),
    [
        ("returns", 1, "forked, and the child process came back from the task: it ends here"),
        ("raises", 1, "came back from the task with ValueError('in the copy'): it ends here"),
        ("exits", 3, ""),
        ("exits plainly", 0, ""),
        ("exits with a word", 1, "came back from the task with SystemExit('a word'): it ends here"),
        ("is retried", 1, "came back from the task with Retry"),
    ],
)
def test_a_copy_that_a_task_forked_ends_where_it_comes_back(
    way: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    copies: list[int] = []
    lines = tmp_path / "lines"
    monkeypatch.setattr(forked_children.logger, "error", lambda text, *args: lines.write_text(text % args))

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        copy = os.fork()
        if copy:
            copies.append(copy)
        elif way == "raises":
            raise ValueError("in the copy")
        elif way.startswith("exits"):
            sys.exit({"exits": 3, "exits plainly": None, "exits with a word": "a word"}[way])
        elif way == "is retried":
            self.retry(countdown=1)

    app.finalize()
    writer: Any = Writer()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})
    request = {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    here = os.getpid()
    try:
        outcome, _ = execution.trace(delivery, LIFE, request)
    finally:
        if os.getpid() != here:
            # Else the copy would run the tests that follow
            os._exit(77)
    assert outcome.kind is Kind.DONE
    [copy] = copies
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == code
    assert said in (lines.read_text() if lines.exists() else "")
    assert bool(said) == lines.exists()


def test_a_bundle_starts_nothing_when_the_lease_ended_while_it_wrote() -> None:
    """The server is away. Earlier outcomes cannot be written until the lease is over, and the bundle ends."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    begun: list[str] = []

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)
        # A write is due after it, in the middle of the round.
        time.sleep(2 * WRITE_AFTER_S)

    app.finalize()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)

    class AwayWriter:
        def write(self, incarnation: str, outcomes: Any) -> bool:
            del incarnation, outcomes
            shared.end()
            return False

    writer: Any = AwayWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    runs = [["T1", 0, 1, [["5-0", pay.name, 3]]], ["T2", 1, 1, [["5-1", pay.name, 4]]]]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}

    run_bundle(execution, request, json.dumps(runs))

    assert begun == ["T1"]
    assert shared.running_fences() == set()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_message_does_not_begin_when_the_lease_ends_on_the_way_to_its_body(bundled: bool) -> None:
    """Celery may store that the task has started, and calls handlers. Both may take long."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    begun: list[str] = []

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)

    app.finalize()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    written: list[Outcome] = []

    class KeepingWriter:
        def write(self, incarnation: str, outcomes: Any) -> bool:
            assert incarnation == LIFE
            written.extend(outcomes)
            return True

    writer: Any = KeepingWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    runs: list[Any] = [["T1", 0, 1, [["7-0", pay.name, 3]]]]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}

    def waits_for_long(**_: Any) -> None:
        shared.end()

    signals.task_prerun.connect(waits_for_long, sender=pay)
    try:
        if bundled:
            run_bundle(execution, request, json.dumps(runs))
        else:
            alone = {**request, "id": "7-0", "task": pay.name, "delivery_info": {}, HEADER_RUNS: [["T1", 0, 1, 1, 1]]}
            execution.run_alone(alone, pay.name, json.dumps([["T1", 3], {}, {}]))
    finally:
        signals.task_prerun.disconnect(waits_for_long, sender=pay)

    assert begun == []
    # Nothing was done, and neither the outcome nor the result says that it was.
    assert [(outcome.kind, outcome.started_us) for outcome in written] == [(Kind.RETURNED, 0)]
    assert app.AsyncResult("7-0").state == "PENDING"


def test_an_early_commit_is_in_the_name_of_the_life_that_the_message_was_dispatched_to() -> None:
    """In a pool within the main process, a task may outlive its lease. Then the worker has a new incarnation, and the
    leader looks for outcomes of the first one when it takes the tickets back.
    """
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> int:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        shared.begin("2" * 32, now_ns() + 60 * 10**9)
        return 1

    app.finalize()
    # It asserts the incarnation of each write.
    writer: Any = Writer()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})

    request = {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    outcome, _ = execution.trace(delivery, LIFE, request)

    assert outcome.kind is Kind.DONE
    assert [(outcome.message_id, outcome.fence) for outcome in writer.applied] == [("5-0", 1000)]


@pytest.mark.parametrize("code", [ReturnCode.ERR, ReturnCode.STALE])
@pytest.mark.parametrize("written_early", [False, True], ids=["at the end of the round", "in the middle of it"])
def test_a_ticket_does_not_go_on_behind_effects_that_were_refused(code: ReturnCode, written_early: bool) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    begun: list[str] = []

    @app.task(bind=True, name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        begun.append(f"{ticket_id}:{payload}")
        self.ticket.effects.rpush(f"log:{ticket_id}", payload)
        if written_early and ticket_id == "T1":
            time.sleep(2 * WRITE_AFTER_S)

    app.finalize()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    written: list[Outcome] = []

    class RefusingWriter(Writer):
        """Refuses the second message of T1."""

        def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
            super().apply(incarnation, items)
            return [(code, "RPUSH") if outcome.fence == 1001 else (ReturnCode.OK, "") for _, outcome, _ in items]

        def write(self, incarnation: str, outcomes: Any) -> bool:
            assert incarnation == LIFE
            written.extend(outcomes)
            return True

    writer: Any = RefusingWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    runs: list[Any] = [
        [ticket, offset, 1, [[f"{n}-{offset}", pay.name, n] for n in range(4)]]
        for ticket, offset in (("T1", 0), ("T2", 4))
    ]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}

    failed, events, _ = run_bundle(execution, request, json.dumps(runs))

    assert not failed
    assert begun == ["T1:0", "T2:0", "T1:1", "T2:1", "T2:2", "T2:3"]
    # The outcomes of a ticket that was taken away are not written.
    refused = [(1001, Kind.FAILED)] if code is ReturnCode.ERR else []
    assert [(outcome.fence, outcome.kind) for outcome in written] == refused
    # Flower gets no event of a success that did not happen.
    assert [kind for id_, kind, *_ in events if id_ == "1-0"] == (["retried"] if refused else [])


@pytest.mark.parametrize(("asked", "kind"), [(True, Kind.INTERRUPTED), (False, Kind.LOST)])
def test_a_message_is_charged_for_the_end_of_its_process_unless_that_was_asked_to_end(asked: bool, kind: Kind) -> None:
    """Celery gives a message to another process when the first one died before it reported the start."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    written: list[Outcome] = []

    class Keeping(Writer):
        def write(self, incarnation: str, outcomes: list[Outcome]) -> bool:
            assert incarnation == LIFE
            written.extend(outcomes)
            return True

    writer: Any = Keeping()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    pid = os.fork()
    if pid == 0:
        try:
            with execution.row(1000) as row:
                shared.note_running(row, 1000)
                raise SystemExit(ASKED_TO_END if asked else 1)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    request = {HEADER_BASE: 1000, HEADER_RUNS: [["T1", 0, 1, 1, 0]], HEADER_INCARNATION: LIFE, "id": "5-0"}

    # The main process never runs what a pool process was given
    pid = os.fork()
    if pid == 0:
        try:
            execution.run_alone(dict(request), "shop.pay", '[["T1", {}], {}, {}]')
            os._exit(0 if [outcome.kind for outcome in written] == [kind] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class KeepingWriter(Writer):
    """Keeps what was written, too."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Outcome] = []

    def write(self, incarnation: str, outcomes: Any) -> bool:
        assert incarnation == LIFE
        self.written.extend(outcomes)
        return True


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
