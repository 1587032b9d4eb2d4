"""The task class: its ticket, and what becomes of its failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from bridge.app.context import TicketContext
from bridge.app.handling import has_expired, retry_delay_ms
from bridge.app.installation import install
from bridge.producer.options import LONGEST_DELAY_MS
from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.routing.records import LostAttempt
from bridge.testing import handle, recorded
from bridge.worker.pool.delivery import Delivery


def make_app() -> Any:
    app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.bridge_backoff = {"base": 10.0, "factor": 2.0, "limit": 300.0, "jitter": 0.5}
    return install(app)


def make_task(body: Callable[..., Any], **options: Any) -> Any:
    # Celery writes source code around a task's name, and a lambda has none.
    def named(self: Any, *args: Any) -> Any:
        return body(self, *args)

    return make_app().task(bind=True, name="shop.task", lazy=False, shared=False, **options)(named)


@contextmanager
def on_ticket(
    task: Any, attempt: int = 1, max_attempts: int = 3, lost: LostAttempt | None = None
) -> Iterator[tuple[TicketContext, list[TicketContext]]]:
    """Runs the block as if the task handled a message. Yields the context and the early commits."""
    commits: list[TicketContext] = []
    context = TicketContext("T1", "5-0", attempt, 1000, 3, commits.append, lambda: True, lost)
    task.push_request(bridge_ticket=context)
    try:
        yield context, commits
    finally:
        task.pop_request()


def fails(_self: Any) -> None:
    raise ValueError("no")


# -- self.ticket ---------------------------------------------------------------------------------------------------


def test_without_the_bridge_there_is_no_ticket_and_errors_are_the_tasks_own() -> None:
    task = make_task(fails)
    assert task.ticket is None
    with pytest.raises(ValueError, match="no"):
        task()


def test_a_task_sees_its_ticket() -> None:
    task = make_task(lambda self: (self.ticket.id, self.ticket.message_id, self.ticket.attempt, self.ticket.fence))
    with on_ticket(task, attempt=2):
        assert task() == ("T1", "5-0", 2, 1000)


def test_a_task_that_calls_itself_is_called_directly_the_second_time() -> None:
    def body(self: Any, depth: int) -> Any:
        if depth:
            return self(depth - 1)
        raise ValueError("inside")

    # The inner call raises its own error. Only the outer one turns it into the ticket's retry
    task = make_task(body)
    with on_ticket(task), pytest.raises(Retry) as raised:
        task(2)
    assert isinstance(raised.value.exc, ValueError)


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_error_becomes_a_retry_after_the_backoff_while_attempts_are_left(attempt: int) -> None:
    task = make_task(fails)
    with on_ticket(task, attempt), pytest.raises(Retry) as raised:
        task()
    assert isinstance(raised.value.exc, ValueError)
    longest = 10_000 * 2 ** (attempt - 1)
    delay_ms = retry_delay_ms(raised.value)
    assert delay_ms is not None
    assert longest / 2 <= delay_ms <= longest


def test_the_last_attempt_fails_with_its_own_error() -> None:
    task = make_task(fails)
    with on_ticket(task, attempt=3), pytest.raises(ValueError, match="no"):
        task()


@pytest.mark.parametrize("error", [Ignore(), Reject("bad", requeue=False), Retry(when=5)], ids=repr)
def test_errors_that_are_one_line_already_are_unchanged(error: Exception) -> None:
    def body(_self: Any) -> None:
        raise error

    task = make_task(body)
    with on_ticket(task), pytest.raises(type(error)) as raised:
        task()
    assert raised.value is error


# -- the rollback --------------------------------------------------------------------------------------------------

LOST = LostAttempt(1, 900, "w1@a", "died")


class _Undo:
    """A callable that is no function."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def __call__(self, *args: Any) -> None:
        self._calls.append(args)


@pytest.mark.parametrize("kind", ["function", "object", "staticmethod"])
def test_the_work_of_a_cut_off_attempt_is_rolled_back_before_the_next(kind: str) -> None:
    calls: list[Any] = []

    def undo(*args: Any) -> None:
        calls.append(args)

    def body(self: Any, *args: Any) -> None:
        calls.append(args)

    given: Any = {"function": undo, "object": _Undo(calls), "staticmethod": staticmethod(undo)}[kind]
    task = make_task(body, bridge_rollback=given)
    with on_ticket(task, attempt=2, lost=LOST) as (context, _):
        task("T1", {"n": 1})
    assert [call[-2:] for call in calls] == [("T1", {"n": 1})] * 2
    undone, begun = calls
    assert undone[:2] == (task, LOST)
    assert len(begun) == 2
    assert not context.owes_rollback


def test_without_a_lost_attempt_nothing_is_undone() -> None:
    task = make_task(lambda self: self.ticket.lost, bridge_rollback=fails)
    with on_ticket(task):
        assert task() is None


def test_a_task_that_undoes_nothing_sees_its_lost_attempt() -> None:
    task = make_task(lambda self: self.ticket.lost)
    with on_ticket(task, lost=LOST):
        assert task() == LOST


def test_a_rollback_that_fails_fails_the_attempt_before_the_task_begins() -> None:
    def undo(*_: Any) -> None:
        raise KeyError("cannot")

    begun: list[Any] = []
    task = make_task(begun.append, bridge_rollback=undo)
    with on_ticket(task, attempt=2, lost=LOST) as (context, _), pytest.raises(Retry) as raised:
        task()
    assert isinstance(raised.value.exc, KeyError)
    assert not begun
    assert context.owes_rollback
    # And only the outcome of a failure says so
    delivery = Delivery("T1", "5-0", 1000, 2, "shop.task", [], {}, LOST)
    delivery.context = context
    assert delivery.outcome(Kind.FAILED).kind is Kind.FAILED_OWING
    assert delivery.outcome(Kind.DEAD).kind is Kind.DEAD


def test_an_error_of_the_task_itself_owes_no_rollback() -> None:
    task = make_task(fails, bridge_rollback=lambda *_: None)
    with on_ticket(task, attempt=2, lost=LOST) as (context, _), pytest.raises(Retry):
        task()
    assert not context.owes_rollback


# -- self.retry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "delay_ms"),
    [({"countdown": 7}, 7000), ({"countdown": 0}, 0), ({"countdown": 0.25}, 250), ({}, 180_000)],
)
def test_retry_keeps_its_countdown_and_sends_nothing(options: dict[str, Any], delay_ms: int) -> None:
    task = make_task(lambda self: self.retry(exc=ValueError("later"), **options))
    with on_ticket(task), pytest.raises(Retry) as raised:
        task()
    assert retry_delay_ms(raised.value) == delay_ms
    assert isinstance(raised.value.exc, ValueError)


def test_retry_keeps_its_eta_in_any_time_zone() -> None:
    for when in (
        datetime.now(UTC) + timedelta(seconds=60),
        (datetime.now(UTC) + timedelta(seconds=60)).replace(tzinfo=None),
    ):
        task = make_task(lambda self, when=when: self.retry(eta=when))
        with on_ticket(task), pytest.raises(Retry) as raised:
            task()
        delay_ms = retry_delay_ms(raised.value)
        assert delay_ms is not None
        assert 55_000 < delay_ms <= 60_000


def test_retry_may_be_asked_not_to_raise() -> None:
    went_on: list[Any] = []
    task = make_task(lambda self: went_on.append(self.retry(countdown=3, throw=False)))
    with on_ticket(task), pytest.raises(Retry) as raised:
        task()
    assert went_on == [raised.value]
    assert raised.value.when == 3


def test_retry_on_the_last_attempt_gives_up_with_the_cause() -> None:
    task = make_task(lambda self: self.retry(exc=KeyError("cause")))
    with on_ticket(task, attempt=3), pytest.raises(KeyError, match="cause"):
        task()
    task = make_task(lambda self: self.retry())
    with on_ticket(task, attempt=3), pytest.raises(MaxRetriesExceededError, match="3 attempts"):
        task()


def test_autoretry_ends_in_the_tickets_retry_too() -> None:
    task = make_task(fails, autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=9)
    with on_ticket(task), pytest.raises(Retry) as raised:
        task()
    assert retry_delay_ms(raised.value) == 9000


@pytest.mark.parametrize(
    ("when", "delay_ms"),
    [
        (None, None),
        (0, 0),
        (-5, 0),
        (1.5, 1500),
        (1e9, 10**12),
        (1e30, LONGEST_DELAY_MS),
        (float("inf"), LONGEST_DELAY_MS),
        (float("-inf"), 0),
        (float("nan"), None),
        (datetime(1970, 1, 2, tzinfo=UTC), 0),
        ("soon", None),
    ],
)
def test_any_delay_fits_an_outcome(when: Any, delay_ms: int | None) -> None:
    # Given a retry that asks for it
    asked = retry_delay_ms(Retry(when=when))
    assert asked == delay_ms
    # Then the outcome with this delay can be written and read
    outcome = Outcome("1-0", 1, Kind.FAILED, 0.0, 0, "", "", asked)
    assert decode(b"[" + outcome.encode() + b"]") == [outcome]


@pytest.mark.parametrize(
    ("expires", "over"),
    [
        (5, True),
        (1e9, False),
        (datetime(2020, 1, 1, tzinfo=UTC), True),
        (date(2020, 1, 1), True),
        (date(2100, 1, 1), False),
        ("2020-01-01T00:00:00", True),
        ("2100-01-01T00:00:00Z", False),
    ],
    ids=repr,
)
def test_a_message_expires_after_seconds_or_at_a_time_in_any_form_that_celery_takes(expires: Any, over: bool) -> None:
    id_ = f"{int((time.time() - 10) * 1000)}-0"
    assert has_expired(expires, id_, time.time() * 1000) is over


def test_a_date_far_in_the_future_is_a_delay_of_a_hundred_years_as_a_countdown_is() -> None:
    assert retry_delay_ms(Retry(when=datetime(9999, 12, 31, tzinfo=UTC))) == LONGEST_DELAY_MS


# -- effects and results -------------------------------------------------------------------------------------------


def test_effects_are_written_before_the_result_is_stored() -> None:
    def body(self: Any) -> str:
        self.ticket.effects.set("k", "v")
        return "result"

    task = make_task(body, ignore_result=False)
    with on_ticket(task) as (context, commits):
        assert task() == "result"
        assert commits == [context]


def test_without_a_result_effects_travel_with_the_outcome() -> None:
    task = make_task(lambda self: self.ticket.effects.set("k", "v"), ignore_result=True)
    with on_ticket(task) as (context, commits):
        task()
        assert commits == []
        assert context.recorded is not None
        assert len(context.recorded) == 1


def test_effects_of_a_failure_are_never_written() -> None:
    def body(self: Any) -> None:
        self.ticket.effects.set("k", "v")
        raise ValueError("after")

    task = make_task(body, ignore_result=False)
    with on_ticket(task) as (_, commits):
        with pytest.raises(Retry):
            task()
        assert commits == []


def test_a_look_at_effects_records_nothing() -> None:
    task = make_task(lambda self: bool(self.ticket.effects), ignore_result=False)
    with on_ticket(task) as (context, commits):
        assert task() is True
        assert (context.recorded, commits) == (None, [])


@pytest.mark.parametrize("end", [None, Ignore(), Reject("no")], ids=["returns", "ignored", "rejected"])
@pytest.mark.parametrize("where", ["body", "before_start"])
def test_a_retry_without_throw_is_one_whatever_ends_the_body(where: str, end: Exception | None) -> None:
    """Celery sends the retry at once. Here the message must not end as done, or as a dead letter."""

    def asks(self: Any, *_: Any) -> str:
        self.ticket.effects.set("key", 1)
        self.retry(countdown=7, throw=False)
        if end is not None:
            raise end
        return "done"

    base = type("Begins", (Task,), {"before_start": asks} if where == "before_start" else {})
    task = make_task(asks if where == "body" else lambda *_: "done", base=base)
    handled = handle(task, "T", 1)
    assert (handled.state, handled.effects, handled.result) == ("retried", (), None)
    last = handle(task, "T", 1, attempt=5)
    assert (last.state, type(last.error)) == ("dead", MaxRetriesExceededError)


def test_a_retry_without_throw_is_repeated_in_eager_mode() -> None:
    def body(self: Any, *_: Any) -> Any:
        return self.ticket.attempt if self.ticket.attempt > 2 else self.retry(throw=False)

    task = make_task(body)
    task.app.conf.task_always_eager = True
    with recorded(task.app) as handled:
        task.push("T", 1)
    assert [(one.attempt, one.state, one.result) for one in handled] == [
        (1, "retried", None),
        (2, "retried", None),
        (3, "done", 3),
    ]
