"""What a pool process writes about a message that it ran."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.result import allow_join_result

from bridge.app import forked_children
from bridge.app.installation import install
from bridge.consumer.deadline import now_ns
from bridge.protocol.bundle_times import limits_of
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import PayloadError
from bridge.routing.return_codes import ReturnCode
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles
from bridge.worker.pool.bundles import run_bundle
from bridge.worker.pool.delivery import Delivery
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, Writer, heads


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


@pytest.mark.parametrize("code", [ReturnCode.ERR, ReturnCode.STALE])
@pytest.mark.parametrize("written_early", [False, True], ids=["at the end of the round", "in the middle of it"])
def test_a_ticket_does_not_go_on_behind_effects_that_were_refused(
    code: ReturnCode, written_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else depends on the time that the messages take.
    monkeypatch.setattr(bundles, "WRITE_AFTER_S", 0.005 if written_early else 3600.0)
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    app.conf.bridge_bundle_ms = 10_000
    begun: list[str] = []

    @app.task(bind=True, name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        begun.append(f"{ticket_id}:{payload}")
        self.ticket.effects.rpush(f"log:{ticket_id}", payload)
        if written_early and ticket_id == "T1":
            time.sleep(2 * bundles.WRITE_AFTER_S)

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


@pytest.mark.parametrize("limit_s", [None, 0.05, 0.1, 1.0])
def test_each_message_of_a_bundle_has_its_whole_time_limit(
    limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery counts the time of the whole bundle. So no message starts when less than its limit is left."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(bundles, "time", SimpleNamespace(monotonic=lambda: clock.now))
    begun: list[float] = []

    @app.task(bind=True, name="shop.pay", ignore_result=True, lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload
        begun.append(clock.now - 100.0)
        clock.now += 0.03

    app.finalize()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    writer = KeepingWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, cast("Any", writer), "w1@here")
    runs: list[Any] = [[f"T{n}", n, 1, [[f"1-{n}", pay.name, n]]] for n in range(100)]
    limits = limits_of(execution.lane.bundle_ms / 1000, [] if limit_s is None else [limit_s], [])
    request = {
        "id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE,
        "timelimit": limits,
    }  # fmt: skip

    run_bundle(execution, request, json.dumps(runs))

    assert 1 < len(begun) < 100
    if limit_s is not None:
        assert limits[0] is not None
        assert limits[0] - max(begun) >= limit_s
    # What was not started goes back.
    assert sum(one.kind is Kind.RETURNED for one in writer.written) == 100 - len(begun)
