"""What a pool process writes when the lease or the process ends around a message."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery, signals

from bridge.app.installation import install
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import StaleFence
from bridge.routing.return_codes import ReturnCode
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool.bundles import WRITE_AFTER_S, run_bundle
from bridge.worker.pool.delivery import Delivery
from bridge.worker.pool.execute import ASKED_TO_END, Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, Writer, heads


def test_a_bundle_starts_nothing_when_the_lease_ended_while_it_wrote() -> None:
    """The server is away. Earlier outcomes cannot be written until the lease is over, and the bundle ends.

    A ticket without an outcome on its way does not wait for the server: its first message runs.
    """
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    # It does not end since it takes long.
    app.conf.bridge_bundle_ms = 10_000
    begun: list[str] = []

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        begun.append(ticket_id)
        # A write is due after it, in the middle of the round.
        time.sleep(2 * WRITE_AFTER_S)

    app.finalize()
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)

    class AwayWriter(Writer):
        def write(self, incarnation: str, outcomes: Any) -> bool:
            del incarnation, outcomes
            shared.end()
            return False

    writer: Any = AwayWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    runs: list[Any] = [
        [ticket, offset, 1, [[f"5-{offset + n}", pay.name, 3] for n in range(2)]]
        for ticket, offset in (("T1", 0), ("T2", 2))
    ]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}

    run_bundle(execution, request, json.dumps(runs))

    assert begun == ["T1", "T2"]
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

    class KeepingWriter(Writer):
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


def test_the_home_of_a_ticket_is_asked_for_once_and_not_after_the_lease() -> None:
    """A task asks for it when it compares fences in a store of its own."""
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    app.conf.update(bridge_stream="orders:v2", bridge_follows=[{"stream": "orders"}])
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    found: list[object] = []

    @app.task(bind=True, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        try:
            found.append(self.ticket.home)
        except StaleFence as stale:
            found.append(type(stale))

    app.finalize()
    asked: list[Sequence[Sequence[Any]]] = []

    class AskedWriter(KeepingWriter):
        def ask(self, incarnation: str, commands: Sequence[Sequence[Any]]) -> list[Any] | None:
            assert incarnation == LIFE
            asked.append(commands)
            # Another worker has named the home at the same moment.
            return None if len(asked) == 1 else [None, None] if commands[0][0] == "GET" else [None, b"orders:v0"]

    writer: Any = AskedWriter()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    for n in range(3):
        execution.trace(Delivery("T1", f"{n}-0", n, 1, pay.name, ["T1", 3], {}), LIFE, {"id": f"{n}-0"})
    assert found == [StaleFence, "orders:v0", "orders:v0"]
    assert len(asked) == 3


class Refusing(KeepingWriter):
    """The ticket was taken over: no success is applied."""

    def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
        assert incarnation == LIFE
        return [(ReturnCode.STALE, "")] * len(items)


@pytest.mark.parametrize("bundled", [False, True])
@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("after_lease", [False, True])
@pytest.mark.parametrize(
    "raises", [None, StaleFence("the table has a newer one"), ValueError("no connection")], ids=repr
)
def test_a_failure_after_the_ticket_was_taken_over_is_not_reported(
    bundled: bool, attempt: int, after_lease: bool, raises: Exception | None
) -> None:
    """The message runs again under another fence, and a caller waits for that result. As a failure of this one counts
    only what was raised while the lease held.
    """
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False))
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    told: list[str] = []

    class Telling(app.Task):
        def on_failure(self, *_: Any) -> None:
            told.append("on_failure")

        def on_retry(self, *_: Any) -> None:
            told.append("on_retry")

    @app.task(bind=True, base=Telling, name="shop.pay", lazy=False, shared=False, bridge_max_attempts=3)
    def pay(self: Any, ticket_id: str, payload: Any) -> int:
        self.ticket.effects.incrby(f"sum:{ticket_id}", payload)
        if after_lease:
            shared.end()
        if raises is not None:
            raise raises
        return 1

    app.finalize()
    # All apps of a process have one backend of this kind.
    app.backend.forget("7-0")
    writer: Any = Refusing()
    execution = Execution(app, app.bridge.settings.lane, shared, writer, "w1@here")
    runs: list[Any] = [["T1", 0, attempt, [["7-0", pay.name, 3], ["8-0", pay.name, 3]]]]
    request = {"id": "b", "task": BUNDLE_TASK, HEADER_BASE: 1000, HEADER_RUNS: heads(runs), HEADER_INCARNATION: LIFE}

    def failed(**_: Any) -> None:
        told.append("task_failure")

    signals.task_failure.connect(failed, sender=pay)
    try:
        if bundled:
            run_bundle(execution, request, json.dumps(runs))
        else:
            own = {"id": "7-0", "task": pay.name, "delivery_info": {}, HEADER_RUNS: [["T1", 0, 1, attempt, 0]]}
            execution.run_alone({**request, **own}, pay.name, json.dumps([["T1", 3], {}, {}]))
    finally:
        signals.task_failure.disconnect(failed, sender=pay)

    [kind] = [outcome.kind for outcome in writer.written if outcome.fence == 1000]
    if raises is None or after_lease:
        # If the outcome counts all the same, the message was cut off, and is not charged for it.
        assert (kind, told, app.AsyncResult("7-0").state) == (Kind.INTERRUPTED, [], "PENDING")
    elif attempt < 3:
        assert (kind, told, app.AsyncResult("7-0").state) == (Kind.FAILED, ["on_retry"], "RETRY")
    else:
        assert (kind, told, app.AsyncResult("7-0").state) == (Kind.FAILED, ["on_failure", "task_failure"], "FAILURE")
