"""A task refuses its message by an exception: without a server, and where there is no message to refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

import bridge
from bridge.app.eager import UNCHARGED_MAX
from bridge.testing import LostAttempt, handle, recorded

REFUSALS = [
    pytest.param(lambda: bridge.Nack("no"), id="nack"),
    pytest.param(lambda: bridge.Nack("no", charge=False), id="uncharged"),
    pytest.param(lambda: bridge.Drop("no"), id="drop"),
    pytest.param(lambda: bridge.Dead("no"), id="dead"),
]


@pytest.fixture
def app() -> Any:
    made: Any = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.update(task_always_eager=True)
    return bridge.install(made)


def declare(app: Any, body: Callable[[Any, Any], Any], **options: Any) -> Any:
    def refuses(self: Any, ticket_id: str, payload: Any) -> Any:
        del ticket_id
        return body(self, payload)

    return app.task(bind=True, lazy=False, shared=False, **{"name": "shop.refuses", **options})(refuses)


def raising(make: Callable[[], Exception]) -> Callable[[Any, Any], Any]:
    def body(self: Any, _: Any) -> None:
        self.ticket.effects.hset("account:T", "amount", 1)
        raise make()

    return body


@pytest.mark.parametrize("make", REFUSALS)
def test_a_refusal_is_what_it_was_after_pickling(make: Callable[[], Exception]) -> None:
    one = make()
    back = pickle.loads(pickle.dumps(one))
    assert (type(back), repr(back), str(back), vars(back)) == (type(one), repr(one), "no", vars(one))


@pytest.mark.parametrize("bad", [-1, -0.001, float("nan"), float("inf"), 1e12, True, "5", timedelta(seconds=-1)])
def test_a_delay_that_cannot_be_is_an_error_in_one_line(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^Nack\(delay=.*\): a delay is [^\n]*$"):
        bridge.Nack(delay=bad)


@given(st.floats(0, 10**9))
def test_a_delay_is_seconds_or_a_timedelta(seconds: float) -> None:
    assert bridge.Nack(delay=seconds).delay == seconds
    assert bridge.Nack(delay=timedelta(seconds=2)).delay == 2
    assert bridge.Nack().delay is None


def test_a_charged_refusal_uses_up_the_attempts(app: Any) -> None:
    task = declare(app, raising(lambda: bridge.Nack("not yet", delay=3600)), bridge_max_attempts=3)
    with recorded(app) as handled:
        task.push("T")
    assert [(one.attempt, one.state) for one in handled] == [(1, "retried"), (2, "retried"), (3, "dead")]
    assert all(isinstance(one.error, bridge.Nack) for one in handled)


def test_an_uncharged_refusal_keeps_the_attempt_and_the_order(app: Any) -> None:
    seen = []

    def body(self: Any, payload: int) -> None:
        seen.append((payload, self.ticket.attempt))
        if payload == 1 and len(seen) < 8:
            raise bridge.Nack("bank closed", charge=False)

    task = declare(app, body, bridge_max_attempts=2)
    with recorded(app) as handled:
        task.push_many([("T", 1), ("T", 2)])
    assert seen == [(1, 1)] * 8 + [(2, 1)]
    assert [one.state for one in handled] == ["nacked"] * 7 + ["done", "done"]


def test_an_eager_message_that_is_refused_for_ever_ends(app: Any) -> None:
    task = declare(app, raising(lambda: bridge.Nack(charge=False)))
    with recorded(app) as handled:
        task.push("T")
    assert len(handled) == UNCHARGED_MAX


@pytest.mark.parametrize("where", ["body", "before_start", "call"])
def test_a_dropped_message_is_done_without_its_effects(app: Any, where: str) -> None:
    ran = []

    class Base(bridge.TicketTask):
        def before_start(self, *_: Any) -> None:
            if where == "before_start":
                raise bridge.Drop("closed")

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if where == "call":
                raise bridge.Drop("closed")
            return super().__call__(*args, **kwargs)

    def body(self: Any, _: Any) -> str:
        ran.append(1)
        self.ticket.effects.hset("account:T", "amount", 1)
        if where == "body":
            raise bridge.Drop("closed")
        return "handled"

    task = declare(app, body, base=Base)
    handled = handle(task, "T")
    assert (handled.state, handled.result, handled.effects) == ("dropped", None, ())
    assert isinstance(handled.error, bridge.Drop)
    assert handled.error.reason == "closed"
    assert ran == ([1] if where == "body" else [])


def test_a_dead_message_uses_no_further_attempt(app: Any) -> None:
    task = declare(app, raising(lambda: bridge.Dead("no such account")))
    handled = handle(task, "T")
    assert (handled.state, handled.attempt, handled.effects) == ("dead", 1, ())
    assert str(handled.error) == "no such account"


@pytest.mark.parametrize("make", REFUSALS)
def test_autoretry_does_not_catch_a_refusal(app: Any, make: Callable[[], Exception]) -> None:
    plain = handle(declare(app, raising(make)), "T")
    task = declare(app, raising(make), name="shop.again", autoretry_for=(Exception,), retry_backoff=True)
    handled = handle(task, "T")
    assert (handled.state, type(handled.error), str(handled.error)) == (plain.state, type(plain.error), "no")


def test_a_retry_of_celerys_is_not_a_refusal(app: Any) -> None:
    def body(self: Any, _: Any) -> None:
        try:
            raise bridge.Nack("handled here", charge=False)
        except bridge.Nack:
            raise self.retry(countdown=5) from None

    assert handle(declare(app, body), "T").state == "retried"


def test_a_rollback_may_refuse_its_message_without_a_charge(app: Any) -> None:
    def undo(self: Any, *_: Any) -> None:
        raise bridge.Nack("not now", charge=False)

    task = declare(app, lambda *_: "ran", bridge_rollback=undo)
    assert handle(task, "T", lost=LostAttempt(1, 1, "w1@h", "gone")).state == "nacked"


@pytest.mark.parametrize("make", REFUSALS)
def test_a_call_that_is_no_message_fails_with_the_exception(app: Any, make: Callable[[], Exception]) -> None:
    kind = type(make())

    def body(*_: Any) -> None:
        raise make()

    task = declare(app, body, autoretry_for=(Exception,))
    result = task.apply(("T", None))
    assert (result.state, type(result.result)) == ("FAILURE", kind)
    with pytest.raises(kind, match="no"):
        task.run("T", None)
    with pytest.raises(kind, match="no"):
        task("T", None)


@pytest.mark.parametrize("bad", ["no", 0, 1, None])
def test_a_charge_that_is_neither_true_nor_false_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="charge is True or False"):
        bridge.Nack(charge=bad)
