"""What a pool process tells of a message that it ran."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from celery import Celery, signals

from bridge.installation import install
from bridge.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.outcomes import Kind, Outcome
from bridge.worker.bundles import WRITE_AFTER_S
from bridge.worker.delivery import Delivery
from bridge.worker.execute import Execution
from bridge.worker.shared import Shared, now_ns
from routing.words import ReturnWord

LIFE = "1" * 32


class Writer:
    """Keeps what was applied."""

    def __init__(self) -> None:
        self.applied: list[Outcome] = []

    def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnWord, str]]:
        assert incarnation == LIFE
        self.applied += [outcome for _, outcome, _ in items]
        return [(ReturnWord.OK, "")] * len(items)


def test_a_success_that_is_committed_before_its_result_is_stored_says_when_it_began() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> int:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        # Longer than any clock's grain.
        time.sleep(0.02)
        return 1

    app.finalize()
    writer: Any = Writer()
    shared = Shared()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})

    before_us = time.time_ns() // 1000
    outcome, _ = execution.trace(
        delivery, LIFE, {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"}
    )

    assert outcome.kind is Kind.DONE
    [told] = writer.applied
    assert told.kind is Kind.DONE
    assert before_us <= told.started_us == delivery.started_us
    assert told.service_ms >= 20
    assert told.started_us + told.service_ms * 1000 <= time.time_ns() // 1000


def test_a_bundle_starts_nothing_when_the_lease_ended_while_it_wrote() -> None:
    """The server is away: what was done before cannot be written until the lease is over, and that is the end."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    begun: list[str] = []

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)
        # A write is due after it, in the middle of the round.
        time.sleep(2 * WRITE_AFTER_S)

    app.finalize()
    shared = Shared()
    shared.begin(LIFE, now_ns() + 60 * 10**9)

    class AwayWriter:
        def write(self, incarnation: str, outcomes: Any) -> bool:
            del incarnation, outcomes
            shared.end()
            return False

    writer: Any = AwayWriter()
    execution = Execution(app, app.bridge.settings, shared, writer, "w1@here")
    runs = [["T1", 0, 1, [["5-0", pay.name, 3]]], ["T2", 1, 1, [["5-1", pay.name, 4]]]]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: runs, HEADER_INCARNATION: LIFE}

    execution.run_bundle(request, json.dumps(runs))

    assert begun == ["T1"]
    assert shared.running_fences() == set()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_message_does_not_begin_when_the_lease_ends_on_the_way_to_its_body(bundled: bool) -> None:
    """Celery stores that the task has started, where that is asked for, and calls handlers: both may wait for long."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    begun: list[str] = []

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)

    app.finalize()
    shared = Shared()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    written: list[Outcome] = []

    class KeepingWriter:
        def write(self, incarnation: str, outcomes: Any) -> bool:
            assert incarnation == LIFE
            written.extend(outcomes)
            return True

    writer: Any = KeepingWriter()
    execution = Execution(app, app.bridge.settings, shared, writer, "w1@here")
    runs: list[Any] = [["T1", 0, 1, [["7-0", pay.name, 3]]]]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: runs, HEADER_INCARNATION: LIFE}

    def waits_for_long(**_: Any) -> None:
        shared.end()

    signals.task_prerun.connect(waits_for_long, sender=pay)
    try:
        if bundled:
            execution.run_bundle(request, json.dumps(runs))
        else:
            alone = {**request, "id": "7-0", "task": pay.name, "delivery_info": {}, HEADER_RUNS: [["T1", 0, 1, 1, 1]]}
            execution.run_alone(alone, pay.name, json.dumps([["T1", 3], {}, {}]))
    finally:
        signals.task_prerun.disconnect(waits_for_long, sender=pay)

    assert begun == []
    # Nothing was done, and nobody is told that it was: neither the leader nor whoever waits for the result.
    assert [(outcome.kind, outcome.started_us) for outcome in written] == [(Kind.RETURNED, 0)]
    assert app.AsyncResult("7-0").state == "PENDING"
