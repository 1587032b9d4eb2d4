"""Tasks without a server: eager pushes, `apply`, `run`, and the results in `bridge.testing`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery, signals
from celery.exceptions import Ignore, Reject
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
from bridge.routing.errors import ConfigurationError, KeyUsed, PayloadError, ServerUnavailable
from bridge.routing.ids import id_key
from bridge.testing import Handled, LostAttempt, handle, recorded

#: What the tasks were called with, in order.
seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.fixture(params=["memory://", "redis://localhost:1/0"])
def app(request: pytest.FixtureRequest) -> Any:
    return eager_app(request.param)


def eager_app(url: str = "memory://", **conf: Any) -> Any:
    made: Any = Celery("shop", broker=url, set_as_current=False)
    made.conf.update(task_always_eager=True, task_eager_propagates=True, **conf)
    return bridge.install(made)


def declare(app: Any, body: Callable[..., Any], **options: Any) -> Any:
    def task(self: Any, ticket_id: str, payload: Any) -> Any:
        return body(self, ticket_id, payload)

    return app.task(bind=True, name=f"shop.{body.__name__}", lazy=False, shared=False, **options)(task)


def save(self: Any, ticket_id: str, payload: Any) -> str:
    self.ticket.effects.hset(f"account:{ticket_id}", mapping=payload)
    seen.append((self.ticket.id, self.ticket.message_id, self.ticket.attempt))
    return "saved"


# -- push ----------------------------------------------------------------------------------------------------------


def test_an_eager_push_runs_the_task_at_once_with_a_ticket(app: Any) -> None:
    task = declare(app, save)
    with recorded(app) as handled:
        id_ = task.push("T42", {"amount": 3})
    assert seen == [("T42", id_, 1)]
    assert handled == [
        Handled(
            "shop.save", "T42", id_, {"amount": 3}, 1, "done", "saved", None, (("HSET", "account:T42", "amount", "3"),)
        )
    ]


def test_what_is_not_eager_cannot_be_recorded(app: Any) -> None:
    app.conf.task_always_eager = False
    with pytest.raises(ConfigurationError, match="needs task_always_eager = True"), recorded(app):
        pass


def test_all_forms_of_a_push_run_in_the_order_of_their_pushes(app: Any) -> None:
    task = declare(app, save)
    ids = [task.push("A", {"n": 1}), *task.push_many([("A", {"n": 2}), (7, {"n": 3})])]
    ids.append(asyncio.run(task.apush("A", {"n": 4})))
    ids += asyncio.run(task.apush_many([("A", {"n": 5})]))
    assert seen == [(ticket, id_, 1) for ticket, id_ in zip("AA7AA", ids, strict=True)]
    assert ids == sorted(set(ids), key=lambda id_: int(id_.partition("-")[0]))


def test_delayed_messages_are_handled_when_no_other_is_left(app: Any) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=5)

    def first(self: Any, ticket_id: str, payload: Any) -> None:
        seen.append((ticket_id, payload))
        if payload == "first":
            self.push(ticket_id, "late", delay=3600)
            self.push_many(
                [(ticket_id, "eta", {"eta": soon}), (ticket_id, "plain"), ("U", "held", {"hold": True})], delay=9
            )
            self.push("U", "behind")
            asyncio.run(self.apush(ticket_id, "soonest", delay=1))

    task = declare(app, first)
    task.push("T", "first")
    assert [payload for _, payload in seen] == ["first", "held", "behind", "soonest", "eta", "plain", "late"]
    # Nobody waits, and nothing is left over.
    task.push("T", "alone", delay=60)
    assert seen[-1] == ("T", "alone")


def test_an_eager_push_refuses_a_time_that_cannot_be(app: Any) -> None:
    task = declare(app, save)
    past = datetime.now(UTC) - timedelta(seconds=5)
    with pytest.raises(ValueError, match="is past"):
        task.push("T", {}, eta=past)
    with pytest.raises(ValueError, match="is past, and no such push was made under this idempotency key"):
        task.push("T", {}, eta=past, idempotency_key="k")
    with pytest.raises(ValueError, match="is past, and no such push was made under this idempotency key"):
        task.push("T", {}, expires=past, idempotency_key="k")
    with pytest.raises(ValueError, match="is past, and no such push was made under this idempotency key"):
        task.push("T", {}, delay=60, expires=past + timedelta(seconds=60), idempotency_key="k")
    with pytest.raises(TypeError, match="delay must be a number"):
        task.push_many([("T", {}, {"delay": "1"})])
    assert seen == []


def test_an_app_that_is_not_eager_any_more_needs_a_broker_that_can_be_used() -> None:
    app = eager_app()
    task = declare(app, save)
    task.push("T", {"n": 1})
    app.conf.task_always_eager = False
    with pytest.raises(bridge.ConfigurationError, match="broker"):
        task.push("T", {"n": 2})
    app.conf.broker_url = "redis://127.0.0.1:1/0"
    with pytest.raises(ServerUnavailable):
        task.push("T", {"n": 3})


def test_an_idempotency_key_of_one_block_is_free_in_the_next(app: Any) -> None:
    task = declare(app, save)
    for payload in (1, 1, 2):
        with recorded(app) as handled:
            for _ in range(2):
                task.push("T", {"n": payload}, idempotency_key="k")
        assert len(handled) == 1


def test_an_eager_push_refuses_what_a_real_one_refuses(app: Any) -> None:
    task = declare(app, save)
    for bad in ({"x": object()}, float("nan")):
        with pytest.raises(PayloadError):
            task.push("T", bad)
    with pytest.raises(PayloadError, match="message 1"):
        task.push_many([("A", {}), ("", {})])
    assert seen == []


OTHER_CALLS: list[Callable[[Any, Any, str], Any]] = [
    lambda _task, other, _id: other.delay("T1", {"n": 9}),
    lambda _task, other, id_: other.apply_async(("T1", {"n": 9}), task_id=id_),
    lambda task, _other, _id: task.apply(("T1", {"n": 9})),
    lambda _task, other, _id: other.push("T1", {"n": 9}),
]


@pytest.mark.parametrize("call", OTHER_CALLS)
@pytest.mark.parametrize("way", ["push", "handle"])
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (None, ["done"]),
        (bridge.Drop("no"), ["dropped"]),
        (ValueError("x"), ["retried", "retried", "dead"]),
    ],
)
def test_another_call_before_the_body_does_not_take_the_messages_ticket(
    app: Any, call: Callable[[Any, Any, str], Any], way: str, error: Exception | None, ends: list[str]
) -> None:
    app.conf.task_eager_propagates = False
    other = declare(app, audited)

    def apply_update(self: Any, ticket_id: str, payload: Any) -> None:
        if payload["n"] == 1:
            seen.append((self.ticket.pushed, self.ticket.message_id == self.request.id))
            self.ticket.effects.hset(f"account:{ticket_id}", mapping=payload)
            if error is not None:
                raise error

    task = declare(app, apply_update, bridge_max_attempts=3)

    def before(task_id: str, args: Any, **_: Any) -> None:
        if args[1]["n"] == 1:
            call(task, other, task_id)

    signals.task_prerun.connect(before, sender=task)
    try:
        with recorded(app) as found:
            if way == "push":
                task.push("T1", {"n": 1})
            else:
                handle(task, "T1", {"n": 1})
    finally:
        signals.task_prerun.disconnect(before, sender=task)
    own = [one for one in found if one.task == task.name]
    assert [one.state for one in own] == (ends if way == "push" else ends[:1])
    assert seen == [(True, True)] * len(own)
    assert [one.effects for one in own] == [(("HSET", "account:T1", "n", "1"),) if error is None else ()] * len(own)


def audited(self: Any, ticket_id: str, payload: Any) -> None:
    """A task that a receiver calls."""


def test_no_two_processes_give_out_one_id() -> None:
    """Tests that run in parallel may share a database that keeps the ids of messages, as the inbox does."""
    ids = [
        # An app stands for a process. Ids run ahead of the clock: there are several in each millisecond.
        declare(eager_app(), save).push_many([("T", {"n": n}) for n in range(500)])
        for _process in range(4)
    ]
    assert all(sorted(own, key=id_key) == own for own in ids)
    assert len({id_ for own in ids for id_ in own}) == 2000


def test_messages_that_a_task_pushes_are_handled_after_it(app: Any) -> None:
    def parent(self: Any, ticket_id: str, payload: int) -> None:
        seen.append(("begins", payload))
        if payload:
            self.push(ticket_id, payload - 1)
        seen.append(("ends", payload))

    declare(app, parent).push("T", 2)
    assert seen == [(word, n) for n in (2, 1, 0) for word in ("begins", "ends")]


@pytest.mark.parametrize("push", [lambda task: task.push("T", 2), lambda task: asyncio.run(task.apush("T", 2))])
def test_a_task_may_wait_for_another_thread_that_pushes(app: Any, push: Callable[[Any], str]) -> None:
    def waits(self: Any, ticket_id: str, payload: int) -> None:
        seen.append(("begins", payload))
        if payload == 1:
            threads = ThreadPoolExecutor(1)
            pushed = threads.submit(push, self)
            threads.shutdown(wait=False)
            seen.append(pushed.result(timeout=10))
        seen.append(("ends", payload))

    with recorded(app) as handled:
        declare(app, waits, bridge_max_attempts=1).push("T", 1)
    assert seen == [("begins", 1), handled[1].message_id, ("ends", 1), ("begins", 2), ("ends", 2)]


def test_messages_of_many_threads_are_handled_one_at_a_time_in_the_order_of_each_thread(app: Any) -> None:
    running: list[int] = []

    def nests(self: Any, ticket_id: str, payload: list[int]) -> None:
        running.append(1)
        seen.append((ticket_id, payload, len(running)))
        if payload[1] % 5 == 0:
            self.push("nested", [payload[0], payload[1] + 1])
        running.pop()

    task = declare(app, nests)

    def push_all(n: int) -> list[str]:
        return [task.push(f"T{n}", [n, i]) for i in range(100)]

    with ThreadPoolExecutor(4) as threads:
        pushes = [threads.submit(push_all, n) for n in range(4)]
        ids = [id_ for push in pushes for id_ in push.result()]
    assert len(set(ids)) == 400
    for n in range(4):
        assert [one for one in seen if one[0] == f"T{n}"] == [(f"T{n}", [n, i], 1) for i in range(100)]
    assert sum(one[0] == "nested" for one in seen) == 4 * 20


def test_a_failing_message_comes_again_at_once_and_keeps_its_tickets_order(app: Any) -> None:
    def fails_at_first(self: Any, ticket_id: str, payload: int) -> None:
        del ticket_id
        seen.append((payload, self.ticket.attempt))
        if self.ticket.attempt < payload:
            raise ValueError("not yet")
        if self.ticket.attempt == payload == 3:
            raise self.retry(countdown=3600)

    task = declare(app, fails_at_first)
    with recorded(app) as handled:
        task.push_many([("T", 2), ("T", 3), ("T", 1)])
    assert seen == [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (3, 4), (1, 1)]
    assert [one.state for one in handled] == ["retried", "done", "retried", "retried", "retried", "done", "done"]
    assert isinstance(handled[0].error, ValueError)


@pytest.mark.parametrize("propagates", [True, False])
def test_a_message_that_is_given_up_is_dead_and_its_ticket_goes_on(propagates: bool) -> None:
    def broken(self: Any, ticket_id: str, payload: Any) -> None:
        del ticket_id
        seen.append(payload)
        self.ticket.effects.incr("n")
        if payload == "bad":
            raise ValueError("always")

    app = eager_app()
    app.conf.task_eager_propagates = propagates
    task = declare(app, broken, bridge_max_attempts=2)
    with recorded(app) as handled:
        if propagates:
            with pytest.raises(ValueError, match="always"):
                task.push_many([("T", "bad"), ("T", "good")])
        else:
            task.push_many([("T", "bad"), ("T", "good")])
    assert seen == ["bad", "bad", "good"]
    assert [(one.state, one.effects) for one in handled] == [
        ("retried", ()), ("dead", ()), ("done", (("INCRBY", "n", "1"),)),
    ]  # fmt: skip


def test_the_ticket_of_a_dead_message_stands_still_where_it_is_to_be_parked() -> None:
    def broken(self: Any, ticket_id: str, payload: Any) -> None:
        seen.append((ticket_id, payload))
        if payload == "bad":
            raise Reject("no", requeue=False)
        assert self.ticket is not None

    app = eager_app(bridge_on_dead="park")
    task = declare(app, broken)
    with pytest.raises(Reject):
        task.push_many([("T", "bad"), ("U", 1), ("T", 2)])
    task.push("T", 3)
    assert seen == [("T", "bad"), ("U", 1)]


def reject(_self: Any, _ticket_id: str, _payload: Any) -> None:
    raise Reject("no", requeue=False)


def test_a_ticket_is_parked_in_the_subscription_of_its_dead_message_alone() -> None:
    app = eager_app(bridge_subscriptions={"billing": {"on_dead": "park"}, "trail": {}})
    bad = declare(app, reject, bridge_subscription="billing")
    good = declare(app, save, bridge_subscription="trail")
    with recorded(app) as handled:
        with pytest.raises(Reject):
            bad.push("T", 1)
        bad.push("T", 2)
        good.push("T", {"n": 1})
    assert [(one.task, one.state) for one in handled] == [("shop.reject", "dead"), ("shop.save", "done")]


def test_a_recording_begins_and_ends_with_no_parked_ticket() -> None:
    app = eager_app(bridge_on_dead="park")
    bad, good = declare(app, reject), declare(app, save)
    with pytest.raises(Reject):
        bad.push("T", 1)
    with recorded(app) as handled:
        good.push("T", {"n": 1})
        with pytest.raises(Reject):
            bad.push("T", 1)
        with recorded(app):
            good.push("T", {"n": 2})
        good.push("T", {"n": 3})
    assert [one.state for one in handled] == ["done", "dead"]
    seen.clear()
    last = good.push("T", {"n": 4})
    assert seen == [("T", last, 1)]


@pytest.mark.parametrize("named", ["in the settings", "at the task"])
def test_a_message_is_handled_with_the_settings_of_its_tasks_subscription(named: str) -> None:
    own = {"max_attempts": 2, "on_dead": "park", **({"task": "shop.apply"} if named == "in the settings" else {})}
    app = eager_app(bridge_subscriptions={"billing": own, "trail": {}}, bridge_max_attempts=4)
    app.conf.task_eager_propagates = False
    tried: list[tuple[int, str]] = []

    def apply(self: Any, ticket_id: str, payload: Any) -> None:
        tried.append((self.ticket.attempt, self.ticket.subscription))
        raise ValueError

    options = {} if named == "in the settings" else {"bridge_subscription": "billing"}
    task = declare(app, apply, **options)
    task.push("T42", 1)
    task.push("T42", 2)
    assert tried == [(1, "billing"), (2, "billing")]


def test_an_effect_of_a_handler_is_refused_as_in_a_worker(app: Any) -> None:
    refused: list[str] = []

    class Told(app.Task):
        def on_success(self, *_: Any) -> None:
            with pytest.raises(PayloadError) as raised:
                self.ticket.effects.set("too", "late")
            refused.append(str(raised.value))

    task = declare(app, save, base=Told)
    with recorded(app) as handled:
        task.push("T", {"n": 1})
    assert handled[0].effects == (("HSET", "account:T", "n", "1"),)
    assert len(refused) == 1


def test_a_key_adds_once(app: Any) -> None:
    task = declare(app, save)
    first = task.push_many([("T", {"n": 1}), ("T", {"n": 2})], idempotency_key="k")
    assert task.push_many([("T", {"n": 1}), ("T", {"n": 2})], idempotency_key="k") == first
    assert len(seen) == 2
    with pytest.raises(KeyUsed, match="other messages"):
        task.push("T", {"n": 1}, idempotency_key="k")


def test_an_ignored_message_is_done(app: Any) -> None:
    def ignores(self: Any, ticket_id: str, payload: Any) -> None:
        raise Ignore

    with recorded(app) as handled:
        declare(app, ignores).push("T", 1)
    assert [one.state for one in handled] == ["done"]


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.long)])
def test_every_ticket_succeeds_in_the_order_of_its_pushes(examples: int) -> None:
    done: list[tuple[str, int]] = []

    def body(self: Any, ticket_id: str, payload: int) -> None:
        if self.ticket.attempt < payload:
            raise ValueError("again")
        done.append((ticket_id, payload))

    task = declare(eager_app(), body)

    @settings(max_examples=examples)
    @given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 4)), max_size=12))
    def in_order(messages: list[tuple[str, int]]) -> None:
        done.clear()
        task.push_many(messages)
        assert done == messages

    in_order()


# -- apply, run ----------------------------------------------------------------------------------------------------

CALLS: list[Callable[[Any], Any]] = [
    lambda task: task.apply(("T42", {"amount": 3})).get(),
    lambda task: task.apply(kwargs={"ticket_id": "T42", "payload": {"amount": 3}}).get(),
    lambda task: task.delay("T42", {"amount": 3}).get(),
    lambda task: task.run("T42", {"amount": 3}),
    lambda task: task.run("T42", payload={"amount": 3}),
]
CALL_NAMES = ["apply", "apply-kwargs", "delay", "run", "run-kwargs"]


@pytest.fixture(params=CALLS, ids=CALL_NAMES)
def call(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = request.param
    return found


def test_a_call_has_a_ticket_whose_effects_are_recorded(app: Any, call: Callable[[Any], Any]) -> None:
    assert call(declare(app, save)) == "saved"
    [(id_, _, attempt)] = seen
    assert (id_, attempt) == ("T42", 1)


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (KeyError,)}], ids=["plain", "autoretry"])
def test_the_errors_of_a_call_are_the_tasks_own(app: Any, call: Callable[[Any], Any], options: dict[str, Any]) -> None:
    def fails(self: Any, ticket_id: str, payload: Any) -> None:
        seen.append(self.ticket.id)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call(declare(app, fails, **options))
    assert seen == ["T42"]


def test_a_retry_in_apply_is_celerys_own(app: Any) -> None:
    app.conf.task_eager_propagates = False  # else Celery raises the second one's

    def again(self: Any, ticket_id: str, payload: Any) -> int:
        seen.append(self.ticket.attempt)
        if len(seen) < 3:
            raise self.retry(countdown=0)
        return len(seen)

    assert declare(app, again).apply(("T", 1), throw=False).get() == 3
    assert seen == [1, 2, 3]


def test_a_task_that_calls_another_has_its_own_ticket_after_it(app: Any) -> None:
    inner = declare(app, save)

    def outer(self: Any, ticket_id: str, payload: Any) -> None:
        inner.apply(("inner", {"n": 1}))
        inner.run("direct", {"n": 1})
        seen.append(self.ticket.id)

    declare(app, outer).push("outer", {})
    assert [one if isinstance(one, str) else one[0] for one in seen] == ["inner", "direct", "outer"]


def test_a_plain_call_has_no_ticket(app: Any) -> None:
    def looks(self: Any, ticket_id: str, payload: Any) -> Any:
        return self.ticket

    assert declare(app, looks)("T", {}) is None


def test_a_task_that_takes_no_ticket_is_called_as_ever(app: Any) -> None:
    @app.task(name="shop.plain", lazy=False, shared=False)
    def plain(numbers: list[int], scale: int = 1) -> int:
        return sum(numbers) * scale

    assert plain.run([1, 2]) == 3
    assert plain.apply(([1, 2], 2)).get() == 6
    assert list(inspect.signature(plain.run).parameters) == ["numbers", "scale"]


def test_the_signature_of_run_is_the_functions(app: Any) -> None:
    task = declare(app, save)
    assert list(inspect.signature(task.run).parameters) == ["ticket_id", "payload"]


def test_a_run_that_a_test_replaces_is_the_one_that_is_run(app: Any) -> None:
    task = declare(app, save)
    with patch.object(task, "run", side_effect=lambda *args: seen.append(args)):
        task.push("T", {"n": 1})
    assert seen == [("T", {"n": 1})]


# -- handle --------------------------------------------------------------------------------------------------------


def test_handle_handles_one_attempt(app: Any) -> None:
    def fails(self: Any, ticket_id: str, payload: Any) -> None:
        self.ticket.effects.incr("n")
        raise ValueError("no")

    task = declare(app, fails, bridge_max_attempts=3)
    handled = [handle(task, "T", {"a": 1}, attempt=attempt) for attempt in (1, 2, 3)]
    assert [one.state for one in handled] == ["retried", "retried", "dead"]
    assert [(type(one.error), one.effects) for one in handled] == [(ValueError, ())] * 3


def test_handle_rolls_a_lost_attempt_back(app: Any) -> None:
    def undo(self: Any, lost: LostAttempt, ticket_id: str, payload: Any) -> None:
        seen.append(("undo", lost.attempt, ticket_id))

    task = declare(app, save, bridge_rollback=undo)
    lost = LostAttempt(1, 5, "w1@host", "lost with w1@host")
    assert handle(task, "T", {"n": 1}, attempt=2, lost=lost).state == "done"
    assert seen[0] == ("undo", 1, "T")


def test_handle_needs_no_eager_setting_and_no_server() -> None:
    app = eager_app("redis://localhost:1/0")
    app.conf.task_always_eager = False
    assert handle(declare(app, save), "T", {"n": 1}).effects == (("HSET", "account:T", "n", "1"),)


@pytest.fixture
def handled_here(bridge_handled: Callable[[Any], list[Handled]]) -> Iterator[list[Handled]]:
    app = eager_app()
    found = bridge_handled(app)
    declare(app, save).push("T", {"n": 1})
    yield found
    assert app.bridge.eager.listeners


def test_the_plugins_fixture_records(handled_here: list[Handled]) -> None:
    assert [one.ticket_id for one in handled_here] == ["T"]
