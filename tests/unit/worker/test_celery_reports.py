"""When, and on which thread, the worker's main process notifies Celery of an attempt that was cut off."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery.exceptions import TimeLimitExceeded

from bridge.protocol.outcomes import Kind
from bridge.worker.main.ticket_requests import TicketRequest


@pytest.mark.parametrize("exc", [WorkerLostError("died"), TimeLimitExceeded(3)], ids=["lost", "time-limit"])
def test_celery_is_notified_on_the_thread_that_forks_and_before_the_outcome_is_written(
    exc: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If another thread notified Celery, a process that is forked at that moment would inherit the locks of that thread
    part: Any = TicketRequest.__new__(TicketRequest)
    part.member = SimpleNamespace(forks=True, waiting_threads=set())
    part.worker_pid = 7
    steps: list[tuple[str, threading.Thread]] = []

    def step(name: str) -> Any:
        return lambda *_: steps.append((name, threading.current_thread()))

    monkeypatch.setattr(TicketRequest, "_running", lambda _: 1)
    monkeypatch.setattr(TicketRequest, "_notify_celery", step("notified"))
    monkeypatch.setattr(TicketRequest, "_write_outcomes_when_ended", step("settled"))

    part.lost(Kind.LOST, exc)
    for thread in list(part.member.waiting_threads):
        thread.join(5)

    (first, teller), (second, settler) = steps
    assert (first, second) == ("notified", "settled")
    assert teller is threading.current_thread()
    assert settler is not teller
