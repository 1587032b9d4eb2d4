"""A rollback is owed until it has returned: whatever ends an attempt before that, the outcome says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.exceptions import Reject, Retry

import bridge
from bridge.app.adoption import adopt_all
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_LOST, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.records import LostAttempt, lost_row
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.main.member import Member
from bridge.worker.main.ticket_requests import TicketRequest
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter

LOST = LostAttempt(1, 900, "w1@a", "died")

#: What an attempt raises, and its outcome without and with a rollback that is owed.
ENDS: dict[str, tuple[Callable[[], Exception], Kind, Kind]] = {
    "an error": (lambda: ValueError("no"), Kind.FAILED, Kind.FAILED_OWING),
    "Retry": (lambda: Retry(when=1), Kind.FAILED, Kind.FAILED_OWING),
    "Reject(requeue)": (lambda: Reject("no", requeue=True), Kind.FAILED, Kind.FAILED_OWING),
    "a charged Nack": (lambda: bridge.Nack("later"), Kind.FAILED, Kind.FAILED_OWING),
    "an uncharged Nack": (lambda: bridge.Nack("later", charge=False), Kind.NACKED, Kind.NACKED_OWING),
    "Dead": (lambda: bridge.Dead("no"), Kind.DEAD, Kind.DEAD),
}
#: Where it raises that, and whether the rollback has returned by then.
PLACES = {"before_start": False, "call": False, "rollback": False, "body": True, "behind": True}


def headers(lost: LostAttempt | None = LOST) -> dict[str, Any]:
    common = {HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: [["T", 0, 1, 2, 0]]}
    return common if lost is None else {**common, HEADER_LOST: lost_row(lost)}


def outcome_of(app: Any, task: Any, lost: LostAttempt | None = LOST, body: str = '[["T", 1], {}, {}]') -> Outcome:
    """The outcome of the second attempt of a message."""
    writer, shared = KeepingWriter(), SharedPage()
    shared.begin(LIFE, now_ns() + 60 * 10**9)
    execution = Execution(app, app.bridge.settings.lane, shared, cast("Any", writer), "w1@here")
    request = {"id": "1-77", "task": task.name, "delivery_info": {}, "hostname": "w1@here", "retries": 1}
    execution.run_alone({**request, **headers(lost)}, task.name, body)
    [outcome] = writer.written
    return outcome


def make_app() -> Any:
    app = Celery("shop", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False)
    return bridge.install(app)


@pytest.mark.parametrize("lost", [None, LOST], ids=["nothing is owed", "owed"])
@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("name", list(ENDS))
def test_an_attempt_that_ends_before_its_rollback_returned_still_owes_it(
    name: str, place: str, lost: LostAttempt | None
) -> None:
    make, free, owing = ENDS[name]
    app: Any = make_app()

    def at(here: str) -> None:
        if here == place:
            raise make()

    class Session(app.Task):
        def before_start(self, *_: Any) -> None:
            at("before_start")

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            at("call")
            done = super().__call__(*args, **kwargs)
            at("behind")
            return done

    def undo(*_: Any) -> None:
        at("rollback")

    @app.task(bind=True, base=Session, bridge_rollback=undo, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        # Without a lost attempt the rollback is not called.
        at("body" if lost is not None or place != "rollback" else "rollback")

    app.finalize()
    adopt_all(app)
    expected = free if lost is None or PLACES[place] else owing
    assert outcome_of(app, pay, lost).kind is expected


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_a_result_backend_that_is_away_before_the_rollback_leaves_it_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    app: Any = make_app()
    undone: list[LostAttempt] = []

    @app.task(bind=True, track_started=True, name="shop.pay", lazy=False, shared=False,
              bridge_rollback=lambda _self, lost, *_: undone.append(lost))  # fmt: skip
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        pass

    app.finalize()

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(pay.backend, "store_result", away)
    assert (outcome_of(app, pay).kind, undone) == (Kind.FAILED_OWING, [])


def test_a_base_class_that_calls_its_task_again_has_the_rollback_called_again() -> None:
    app: Any = make_app()
    calls: list[str] = []

    class Twice(app.Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except ConnectionError:
                return super().__call__(*args, **kwargs)

    def undo(self: Any, *_: Any) -> None:
        calls.append("undo")
        if len(calls) == 1:
            raise ConnectionError("away")

    @app.task(bind=True, base=Twice, bridge_rollback=undo, name="shop.pay", lazy=False, shared=False)
    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        calls.append("body")

    app.finalize()
    adopt_all(app)
    assert (outcome_of(app, pay).kind, calls) == (Kind.DONE, ["undo", "undo", "body"])


@pytest.mark.parametrize("lost", [None, LOST], ids=["nothing is owed", "owed"])
def test_a_failure_that_the_task_had_no_part_in_leaves_the_rollback_owed(lost: LostAttempt | None) -> None:
    expected = Kind.FAILED if lost is None else Kind.FAILED_OWING
    # A body that the pool process cannot read
    app: Any = make_app()

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None:
        pass

    assert outcome_of(app, pay, lost, body="[").kind is expected
    # A message that the main process cannot take
    written: list[Outcome] = []
    member: Any = SimpleNamespace(
        write=lambda _, outcomes: written.extend(outcomes), open=SimpleNamespace(all={}), drop=lambda _: None
    )
    Member.refuse(member, {"id": "1-77", "task": pay.name, **headers(lost)}, json.dumps([["T", 1], {}, {}]), "no")
    # One that the pool could not run to its end
    part: Any = TicketRequest.__new__(TicketRequest)
    part.member, part._request_dict = SimpleNamespace(forks=True), headers(lost)
    assert [one.kind for one in written] == [expected]
    assert part._outcome_kind(Kind.FAILED, SimpleNamespace(fence=1000), 1000) is expected
    assert part._outcome_kind(Kind.LOST, SimpleNamespace(fence=1000), 1000) is Kind.LOST
