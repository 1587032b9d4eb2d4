"""The light tracer against Celery's own: the same messages are run by both, and everything that shows is compared."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, current_task, signals
from celery._state import _task_stack
from celery.app import trace
from celery.exceptions import Ignore, Reject
from celery.fixups.django import DjangoWorkerFixup
from celery.utils.threads import get_ident

from bridge.app.installation import install
from bridge.app.refusing import Dead, Drop, Nack
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import light_tracer
from bridge.worker.pool.bundles import run_bundle
from bridge.worker.pool.exceptions import picklable
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, heads

TICKETS = ("T1", "T2")


class CannotPickle(Exception):
    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(f"{one} and {two}")
        self.held = lambda: None


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def raises(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def body(self: Any, ticket: str, payload: Any) -> Any:
        del self, ticket, payload
        raise make()

    return body


def returns(value: Any) -> Callable[..., Any]:
    def body(self: Any, ticket: str, payload: Any) -> Any:
        del self, ticket, payload
        return value

    return body


def caused(self: Any, ticket: str, payload: Any) -> None:
    del self, ticket
    try:
        payload["missing"]
    except KeyError as exc:
        raise ValueError("caused") from exc


def retries(**options: Any) -> Callable[..., Any]:
    def body(self: Any, ticket: str, payload: Any) -> None:
        del ticket, payload
        raise self.retry(**options)

    return body


def gives_up(self: Any, ticket: str, payload: Any) -> None:
    del ticket, payload
    self.retry(max_retries=0, exc=ValueError("gave up"))


def nested_apply(self: Any, ticket: str, payload: Any) -> Any:
    if payload == "inner":
        return (self.request.is_eager, self.request.called_directly)
    found = self.apply((ticket, "inner"), task_id="inner").result
    return (found, current_task.request.id == self.request.id, len(_task_stack), len(self.request_stack))


def calls_itself(self: Any, ticket: str, payload: Any) -> Any:
    if payload == "inner":
        return self.request.id
    return (self(ticket, "inner"), self.run(ticket, "inner"), len(self.request_stack))


def asks_for_callbacks(self: Any, ticket: str, payload: Any) -> int:
    del payload
    self.request.callbacks = [self.app.signature("shop.next", args=(ticket,))]
    return 7


def asks_for_chain(self: Any, ticket: str, payload: Any) -> int:
    del payload
    self.request.chain = [self.app.signature("shop.next", args=(ticket,))]
    return 7


def asks_for_errbacks(self: Any, ticket: str, payload: Any) -> int:
    del payload
    self.request.errbacks = [self.app.signature("shop.next", args=(ticket,), immutable=True)]
    raise Dead("with errbacks")


def has_effects(self: Any, ticket: str, payload: Any) -> None:
    self.ticket.effects.set(f"key of {ticket}", json.dumps(payload))


def effects_and_failure(self: Any, ticket: str, payload: Any) -> None:
    has_effects(self, ticket, payload)
    raise ValueError("after effects")


def too_few(self: Any) -> None:
    del self


BODIES: dict[str, Callable[..., Any]] = {
    "none": returns(None),
    "number": returns(7),
    "long": returns("x" * 5000),
    "nested": returns({"a": [1, {"b": (2, 3)}]}),
    "no repr": returns(Odd()),
    "error": raises(lambda: ValueError("no")),
    "caused": caused,
    "expected": raises(lambda: LookupError("expected")),
    "unpicklable": raises(lambda: CannotPickle(1, 2)),
    "memory": raises(lambda: MemoryError("much")),
    "soft limit": raises(lambda: SoftTimeLimitExceeded(3)),
    "ignore": raises(Ignore),
    "reject": raises(lambda: Reject("bad")),
    "reject requeue": raises(lambda: Reject("later", requeue=True)),
    "retry": retries(),
    "retry countdown": retries(countdown=7, exc=ValueError("busy")),
    "gives up": gives_up,
    "nack": raises(lambda: Nack("busy", delay=3)),
    "nack uncharged": raises(lambda: Nack("busy", charge=False)),
    "drop": raises(lambda: Drop("old")),
    "dead": raises(lambda: Dead("broken")),
    "nested apply": nested_apply,
    "calls itself": calls_itself,
    "callbacks": asks_for_callbacks,
    "chain": asks_for_chain,
    "errbacks": asks_for_errbacks,
    "effects": has_effects,
    "effects and failure": effects_and_failure,
    "too few parameters": too_few,
    "exit": raises(lambda: SystemExit(3)),
    "interrupt": raises(KeyboardInterrupt),
}


def plain(value: Any) -> Any:
    """``value`` in a form that can be compared between two runs."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items() if key not in ("runtime", "traceback")}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


class Shop:
    """An app with one task, which notes what it sees, and a pool process that runs bundles of its messages."""

    def __init__(
        self, body: Callable[..., Any], base: Any = None, more: Callable[[Any], None] = lambda _: None
    ) -> None:
        self.app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
        self.app.conf.bridge_backoff = {"jitter": 0}
        # A bundle that takes long, since the machine is busy, gives back what it has not started.
        self.app.conf.bridge_bundle_ms = 10_000
        self.seen: list[Any] = []

        @wraps(body)
        def noting(self_: Any, *args: Any) -> Any:
            ticket = self_.ticket
            self.seen.append(
                {
                    "request": {**vars(self_.request), "bridge_ticket": None},
                    "headers": sorted(self_.request.headers or {}),
                    "options": self_.request.as_execution_options(),
                    "current": (current_task.name, current_task.request.id),
                    "stacks": (len(_task_stack), len(self_.request_stack)),
                    "ticket": (ticket.id, ticket.attempt, ticket.pushed and (ticket.fence, ticket.message_id)),
                }
            )
            return body(self_, *args)

        class Base(self.app.Task if base is None else base(self.app)):  # type: ignore[misc]
            def on_failure(self_, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: N805
                self.seen.append(("on_failure", type(exc).__name__, str(exc), task_id, args, kwargs, str(einfo.type)))
                self.seen.append(("frames", body.__name__ in str(einfo.traceback)))

            def on_retry(self_, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: N805
                self.seen.append(("on_retry", repr(exc), task_id, args, kwargs, type(einfo).__name__))

        options = {"throws": (LookupError,), "default_retry_delay": 11}
        self.task = self.app.task(
            bind=True, base=Base, name="shop.pay", ignore_result=True, lazy=False, shared=False, **options
        )(noting)

        @self.app.task(name="shop.next", lazy=False, shared=False)
        def after(request: Any, exc: Any = None, traceback: Any = None) -> None:
            self.seen.append(("errback", request.id, repr(exc), type(traceback).__name__))

        self.app.finalize()
        self.app.send_task = lambda name, args, kwargs, **options: self.seen.append(
            (
                "sent",
                name,
                args,
                kwargs,
                {key: options.get(key) for key in ("parent_id", "root_id", "chain", "priority")},
            )
        )
        more(self)
        shared = SharedPage()
        shared.begin(LIFE, now_ns() + 60 * 10**9)
        self.writer = KeepingWriter()
        self.execution = Execution(self.app, self.app.bridge.settings.lane, shared, cast("Any", self.writer), "w1@here")

    def run(self) -> list[Any]:
        """Runs a bundle of two messages of each of two tickets. Returns everything that shows."""
        runs = [
            [ticket, 10 * i, 1 + i, [[f"{i}-{n}", "shop.pay", {"n": n}] for n in (1, 2)]]
            for i, ticket in enumerate(TICKETS)
        ]
        delivery_info = {"exchange": "", "routing_key": "q", "priority": 0, "redelivered": None}
        request = {
            "id": "bundle", "task": BUNDLE_TASK, HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: heads(runs),
            "origin": "m1", "properties": {"a": 1}, "delivery_info": delivery_info,
        }  # fmt: skip
        ended: Any = None
        events: Any = None
        try:
            failed, events, _ = picklable(run_bundle(self.execution, request, json.dumps(runs)))
        except BaseException as exc:
            failed, ended = None, repr(exc)
        outcomes = [
            (one.message_id, one.fence, one.kind.name, one.error, bool(one.traceback), one.delay_ms)
            for one in self.writer.written + self.writer.applied
        ]
        # The last member of a success is how long it took.
        shown = [event[:3] if event[1] == "succeeded" else (*event[:3], bool(event[3])) for event in events or ()]
        return [*map(plain, self.seen), failed, ended, outcomes, shown, len(_task_stack), len(self.task.request_stack)]


def shown(record: logging.LogRecord) -> str:
    """The first line of a record, without how long a task took."""
    return re.sub(r"[0-9.e-]+s:", "…s:", record.getMessage().split("\n")[0])


@pytest.fixture
def observed(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[Shop, int], list[Any]]]:
    """Runs a shop; adds the records that were logged, and the signals that were sent."""
    sent: list[Any] = []

    def note(signal: Any = None, sender: Any = None, **fields: Any) -> None:
        names = ("id", "task_id", "reason", "exception", "args", "kwargs")
        sent.append((signal.name, sender.name, {name: plain(fields[name]) for name in names if name in fields}))

    listened = (signals.task_failure, signals.task_retry, signals.task_internal_error)
    for signal in listened:
        signal.connect(note)

    def run(shop: Shop, level: int = logging.WARNING) -> list[Any]:
        caplog.clear()
        sent.clear()
        with caplog.at_level(level, logger="celery"):
            found = shop.run()
        logged = [(one.name, one.levelname, one.funcName, shown(one), bool(one.exc_info)) for one in caplog.records]
        return [*found, logged, list(sent)]

    yield run
    for signal in listened:
        signal.disconnect(note)


@pytest.fixture
def celerys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Turns the light tracer off."""

    def off() -> None:
        monkeypatch.setattr(light_tracer, "COMPARED", ())
        light_tracer._celerys_code.cache_clear()

    yield off
    monkeypatch.undo()
    light_tracer._celerys_code.cache_clear()


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO], ids=["warning", "info"])
@pytest.mark.parametrize("name", BODIES)
def test_it_does_what_celerys_tracer_does(
    name: str, level: int, observed: Callable[[Shop, int], list[Any]], celerys: Callable[[], None]
) -> None:
    shop = Shop(BODIES[name])
    light = observed(shop, level)
    assert light_tracer.is_light(shop.task)
    celerys()
    shop = Shop(BODIES[name])
    assert observed(shop, level) == light
    assert not light_tracer.is_light(shop.task)


def test_a_success_is_not_traced_by_celery() -> None:
    shop = Shop(returns(1))
    shop.run()
    tracer = shop.task.__trace__
    shop.writer.written.clear()
    entered: list[Any] = []
    cells = dict(zip(tracer.__code__.co_freevars, tracer.__closure__, strict=True))
    cells["loader_task_init"].cell_contents.__self__.on_task_init = entered.append
    assert shop.run()[-4]
    assert entered == []


def test_nothing_is_left_on_celerys_stacks() -> None:
    """Else each greenlet of a pool would leave an empty stack behind for ever."""
    shop = Shop(returns(1))
    shop.run()
    assert light_tracer.is_light(shop.task)
    for stack in (_task_stack, shop.task.request_stack):
        assert get_ident() not in dict(stack._local)


def prerun(shop: Any) -> None:
    shop.receiver = lambda task_id, **_: shop.seen.append(("prerun", task_id))
    signals.task_prerun.connect(shop.receiver)


def postrun(shop: Any) -> None:
    shop.receiver = lambda task_id, state, **_: shop.seen.append(("postrun", task_id, state))
    signals.task_postrun.connect(shop.receiver)


def success(shop: Any) -> None:
    shop.receiver = lambda result, **_: shop.seen.append(("success", result))
    signals.task_success.connect(shop.receiver)


def wrapped_tracer(shop: Any) -> None:
    """As Sentry does: the tracer that Celery built is wrapped."""
    tracer = trace.build_tracer(shop.task.name, shop.task, app=shop.app, hostname="w1@here")

    @wraps(tracer)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        shop.seen.append(("traced", args[0]))
        return tracer(*args, **kwargs)

    shop.task.__trace__ = wrapper


def wrapped_task(shop: Any) -> None:
    """As New Relic does: Celery builds the tracer of another object in place of the task."""

    class Wrapper:
        def __init__(self, task: Any) -> None:
            self.__dict__["task"] = task

        def __getattr__(self, name: str) -> Any:
            return getattr(self.task, name)

        def __call__(self, *args: Any) -> Any:
            shop.seen.append(("called", args[0]))
            return self.task(*args)

        run = __call__

    shop.task.__trace__ = trace.build_tracer("shop.pay", Wrapper(shop.task), app=shop.app, hostname="w1@here")


def patched_builder(shop: Any) -> None:
    """As a library does that has replaced `build_tracer` by a function of its own."""
    original = trace.build_tracer
    shop.undo = lambda: setattr(trace, "build_tracer", original)

    def build_tracer(*args: Any, **kwargs: Any) -> Any:
        built = original(*args, **kwargs)

        def trace_task(*args: Any, **kwargs: Any) -> Any:
            shop.seen.append(("traced", args[0]))
            return built(*args, **kwargs)

        return trace_task

    trace.build_tracer = build_tracer
    shop.task.__trace__ = trace.build_tracer("shop.pay", shop.task, app=shop.app, hostname="w1@here")


def loader(shop: Any) -> None:
    shop.app.loader.on_task_init = lambda task_id, _: shop.seen.append(("init", task_id))


def cleanup(shop: Any) -> None:
    shop.app.loader.on_process_cleanup = lambda: shop.seen.append("loader cleanup")


def backend(shop: Any) -> None:
    shop.task.backend.process_cleanup = lambda: shop.seen.append("backend cleanup")


LISTENERS = (prerun, postrun, success, wrapped_tracer, wrapped_task, patched_builder, loader, cleanup, backend)


@pytest.mark.parametrize("listener", LISTENERS, ids=lambda listener: listener.__name__)
def test_a_listener_is_called_for_each_message(listener: Callable[[Any], None]) -> None:
    shop: Any = Shop(returns(1), more=listener)
    try:
        shop.run()
    finally:
        for signal in (signals.task_prerun, signals.task_postrun, signals.task_success):
            signal.disconnect(getattr(shop, "receiver", None))
        getattr(shop, "undo", lambda: None)()
    ran = [one for one in shop.seen if isinstance(one, dict)]
    assert len(ran) == 4
    assert len(shop.seen) - len(ran) == 4


def django(shop: Any) -> None:
    """What Celery does in every Django app, without Django."""
    shop.fixup = fixup = object.__new__(DjangoWorkerFixup)
    fixup.close_database = lambda: shop.seen.append(("database", current_task.request.id, len(shop.task.request_stack)))
    fixup.close_cache = lambda: shop.seen.append(("caches", current_task.request.id))
    signals.task_prerun.connect(fixup.on_task_prerun)
    signals.task_postrun.connect(fixup.on_task_postrun)


def without_django(shop: Any) -> None:
    signals.task_prerun.disconnect(shop.fixup.on_task_prerun)
    signals.task_postrun.disconnect(shop.fixup.on_task_postrun)


@pytest.mark.parametrize("name", ["number", "nested", "exit", "drop"])
def test_a_django_app_closes_its_connections_as_under_celerys_tracer(name: str, celerys: Callable[[], None]) -> None:
    found = []
    for is_light in (True, False):
        if not is_light:
            celerys()
        shop: Any = Shop(BODIES[name], more=django)
        try:
            found.append(shop.run())
        finally:
            without_django(shop)
        assert light_tracer.is_light(shop.task) is is_light
    assert found[0] == found[1]
    assert [one for one in found[0] if isinstance(one, list) and one[:1] == ["caches"]]


def test_a_failure_in_a_django_app_ends_with_closed_connections() -> None:
    shop: Any = Shop(BODIES["error"], more=django)
    try:
        shop.run()
    finally:
        without_django(shop)
    closed = [one[:2] for one in shop.seen if isinstance(one, tuple) and one[0] in ("database", "caches")]
    # Of each ticket the first message ran, and its run ended.
    assert closed == [(what, id_) for id_ in ("0-1", "1-1") for what in ("database", "database", "database", "caches")]


def test_somebody_who_listens_beside_django_is_heard() -> None:
    def both(shop: Any) -> None:
        django(shop)
        prerun(shop)

    shop: Any = Shop(returns(1), more=both)
    assert light_tracer._listeners() is light_tracer._Listeners.OTHERS
    try:
        shop.run()
    finally:
        without_django(shop)
        signals.task_prerun.disconnect(shop.receiver)
    assert len([one for one in shop.seen if isinstance(one, tuple) and one[0] == "prerun"]) == 4


def handler(name: str) -> Callable[[Any], type]:
    def base(app: Any) -> type:
        def listen(self: Any, *args: Any) -> Any:
            if name == "__call__":
                HEARD.append(args[0])
                return app.Task.__call__(self, *args)
            HEARD.append(name)
            return None

        return type("Listening", (app.Task,), {name: listen, "abstract": True})

    return base


HEARD: list[Any] = []


@pytest.mark.parametrize("name", ["before_start", "on_success", "after_return", "__call__"])
def test_a_handler_of_the_task_is_called_for_each_message(name: str) -> None:
    HEARD.clear()
    shop = Shop(returns(1), base=handler(name))
    shop.run()
    assert len(HEARD) == len(shop.seen) == 4


def test_a_version_that_was_not_compared_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(returns(1))
    shop.run()
    assert light_tracer.is_light(shop.task)
    light_tracer._celerys_code.cache_clear()
    monkeypatch.setattr(light_tracer, "celery", SimpleNamespace(VERSION=(5, 99, 0)))
    assert not light_tracer.is_light(shop.task)
    light_tracer._celerys_code.cache_clear()
