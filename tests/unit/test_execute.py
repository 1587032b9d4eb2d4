"""What a pool process tells of a message that it ran."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from celery import Celery

from bridge.installation import install
from bridge.outcomes import Kind, Outcome
from bridge.worker.delivery import Delivery
from bridge.worker.execute import Execution
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
    shared: Any = SimpleNamespace(incarnation=LIFE)
    execution = Execution(app, app.bridge.settings, shared, writer, "w1@here")
    delivery = Delivery("T1", "5-0", 1000, 1, pay.name, ["T1", 3], {})

    before_us = time.time_ns() // 1000
    outcome, _ = execution.trace(delivery, {"id": "5-0", "task": pay.name, "delivery_info": {}, "hostname": "w1@here"})

    assert outcome.kind is Kind.DONE
    [told] = writer.applied
    assert told.kind is Kind.DONE
    assert before_us <= told.started_us == delivery.started_us
    assert told.service_ms >= 20
    assert told.started_us + told.service_ms * 1000 <= time.time_ns() // 1000
