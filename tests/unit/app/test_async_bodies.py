"""Celery does not await a body. What counts is the user's outermost callable: a decorator may run an ``async def``."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task

import bridge
from bridge.app.adoption import adopt_all
from bridge.app.signature import mismatch
from bridge.app.task_options import check_task_options
from bridge.routing.errors import ConfigurationError
from bridge.testing import LostAttempt, handle

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")

RAN: list[str] = []


def plain(self: Any, *_: Any) -> str:
    RAN.append("body")
    return "done"


async def awaited(self: Any, *_: Any) -> str:
    return plain(self)


def yielding(self: Any, *_: Any) -> Iterator[str]:
    yield plain(self)


async def yielding_async(self: Any, *_: Any) -> AsyncIterator[str]:
    yield plain(self)


def synced(function: Any) -> Any:
    """As `asgiref.sync.async_to_sync` and similar decorators: it runs the coroutine."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return asyncio.run(function(*args))

    return run


def listed(function: Any) -> Any:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return list(function(*args))

    return run


def passed(function: Any) -> Any:
    """A decorator that does not know that the call starts nothing."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


def made_async(function: Any) -> Any:
    @functools.wraps(function)
    async def run(*args: Any) -> Any:
        return function(*args)

    return run


class Session(bridge.TicketTask):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Runs(Task):
    """Runs what its subclasses' bodies only make, as base classes for asyncio do."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert inspect.iscoroutinefunction(self.run) or inspect.isgeneratorfunction(self.run)
        return run_it(self.run(*args, **kwargs))


class RunsTheRest(Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run_it(super().__call__(*args, **kwargs))


def run_it(made: Any) -> Any:
    return asyncio.run(made) if inspect.iscoroutine(made) else next(iter(made))


def rolled_back(*_: Any) -> None:
    RAN.append("rollback")


def hidden(function: Any) -> Any:
    """A decorator that hides what it decorates."""

    def run(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return run


#: What Celery and the bridge wrap around the user's callable.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autoretry": {"autoretry_for": (ValueError,)},
    "pydantic": {"pydantic": True},
    "all": {"pydantic": True, "autoretry_for": (ValueError,), "base": Session, "bridge_rollback": lambda *_: None},
}

RUNS: dict[str, Callable[..., Any]] = {
    "def": plain,
    "decorated def": passed(plain),
    "awaits": synced(awaited),
    "awaits, decorated": passed(synced(awaited)),
    "lists": listed(yielding),
}
REFUSED: dict[str, Callable[..., Any]] = {
    "async": awaited,
    "generator": yielding,
    "async generator": yielding_async,
    "async outside": made_async(plain),
}
#: It is seen when it is called.
STARTS_NOTHING: dict[str, Callable[..., Any]] = {
    "async": passed(awaited),
    "generator": passed(yielding),
    "async generator": passed(passed(yielding_async)),
    "hidden async": hidden(awaited),
    "hidden generator": hidden(yielding),
    "hidden async generator": hidden(yielding_async),
}


def task_of(body: Any, options: dict[str, Any]) -> Any:
    app: Any = bridge.install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    task = app.task(bind=True, name="shop.pay", lazy=False, shared=False, **options)(body)
    adopt_all(app)
    RAN.clear()
    return task


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("body", RUNS.values(), ids=RUNS)
def test_a_body_that_a_call_runs_is_taken(body: Any, options: dict[str, Any]) -> None:
    task = task_of(body, options)
    assert mismatch(task) == ""
    handled = handle(task, "T")
    assert (handled.state, RAN) == ("done", ["body"])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_body_that_a_call_only_makes_is_refused(body: Any, options: dict[str, Any]) -> None:
    task = task_of(body, options)
    # The `__call__` of a base class may run it: that is seen when it is called.
    assert ("async or a generator" in mismatch(task)) is ("base" not in options)
    handled = handle(task, "T")
    assert (handled.state, RAN) == ("dead", [])
    assert isinstance(handled.error, ConfigurationError)
    assert "async or a generator" in str(handled.error)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("body", STARTS_NOTHING.values(), ids=STARTS_NOTHING)
def test_a_body_whose_decorator_does_not_run_it_does_not_count_as_done(body: Any, options: dict[str, Any]) -> None:
    handled = handle(task_of(body, options), "T")
    assert (handled.state, RAN) == ("dead", [])
    assert "async or a generator" in str(handled.error)


@pytest.mark.parametrize(
    "options",
    [{"base": base, **more} for base in (Runs, RunsTheRest) for more in ({}, {"bridge_rollback": rolled_back})],
    ids=["run", "run-rollback", "rest", "rest-rollback"],
)
@pytest.mark.parametrize("body", [awaited, yielding])
def test_a_body_that_a_base_class_runs_is_taken(body: Any, options: dict[str, Any]) -> None:
    task = task_of(body, options)
    assert mismatch(task) == ""
    handled = handle(task, "T")
    assert (handled.state, handled.result, RAN) == ("done", "done", ["body"])
    RAN.clear()
    handled = handle(task, "T", lost=LostAttempt(1, 1, "w1@h", "gone"))
    before = ["rollback"] if "bridge_rollback" in options else []
    assert (handled.state, handled.result, RAN) == ("done", "done", [*before, "body"])
    RAN.clear()
    assert task.apply(("T", None)).get() == "done"
    assert RAN == ["body"]


@pytest.mark.parametrize("body", RUNS.values(), ids=RUNS)
def test_a_rollback_that_a_call_runs_is_taken(body: Any) -> None:
    task = task_of(plain, {"bridge_rollback": body})
    check_task_options(task.name, task)
    assert handle(task, "T", lost=LostAttempt(1, 1, "w1@h", "gone")).state == "done"
    assert RAN == ["body", "body"]


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_rollback_that_a_call_only_makes_is_refused(body: Any) -> None:
    task = task_of(plain, {"bridge_rollback": body})
    with pytest.raises(ConfigurationError, match="bridge_rollback is async or a generator"):
        check_task_options(task.name, task)


@pytest.mark.parametrize("body", STARTS_NOTHING.values(), ids=STARTS_NOTHING)
def test_a_rollback_whose_decorator_does_not_run_it_has_failed(body: Any) -> None:
    task = task_of(plain, {"bridge_rollback": body})
    handled = handle(task, "T", lost=LostAttempt(1, 1, "w1@h", "gone"))
    assert (handled.state, RAN) == ("retried", [])
    assert "bridge_rollback is async or a generator" in str(handled.error)
