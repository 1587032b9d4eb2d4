"""The bridge's call is the outermost one, however a task came into the registry and whatever its classes do."""

from __future__ import annotations

import math
import pickle
import re
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import celery.exceptions
import pytest
from celery import Celery, Task
from celery.exceptions import Retry
from celery.utils.imports import symbol_by_name

from bridge.app.adoption import STRATEGY, adopt_all
from bridge.app.context import TicketContext
from bridge.app.installation import install
from bridge.app.task import TicketTask
from bridge.app.task_options import check_task_options
from bridge.routing.errors import ConfigurationError
from bridge.routing.records import LostAttempt
from bridge.settings.lane import MOST_ATTEMPTS
from bridge.testing import handle

if TYPE_CHECKING:
    from collections.abc import Iterator


def make_app(**options: Any) -> Any:
    return Celery("shop", broker="redis://localhost:1/0", set_as_current=False, **options)


@contextmanager
def on_ticket(task: Any, attempt: int = 1) -> Iterator[TicketContext]:
    context = TicketContext("T1", "5-0", attempt, 1000, 3, lambda _: None, lambda: True)
    task.push_request(bridge_ticket=context, called_directly=False)
    try:
        yield context
    finally:
        task.pop_request()


def test_a_task_that_was_used_before_the_app_had_the_bridge_is_the_same_object_afterwards() -> None:
    app = make_app()

    @app.task(name="shop.pay", shared=False)
    def pay(ticket_id: str, payload: Any) -> str:
        return f"{ticket_id} {payload}"

    before = app.tasks["shop.pay"]
    assert pay.apply_async is not None
    signature = pay.s("T", 1)

    install(app)

    assert app.tasks["shop.pay"] is before
    assert isinstance(before, TicketTask)
    assert (before.name, before.Strategy, pay("T", 1)) == ("shop.pay", STRATEGY, "T 1")
    assert (type(before).__name__, type(before).__module__) == ("pay", __name__)
    assert signature() == "T 1"


def test_a_class_based_task_keeps_its_class_and_its_instances_their_app() -> None:
    app = install(make_app())

    class Pay(Task):
        """What it is for."""

        name = "shop.pay"
        autoretry_for = (KeyError,)

        def run(self, ticket_id: str, payload: Any) -> None:
            raise KeyError(ticket_id) if payload == "key" else ValueError(ticket_id)

    task = Pay()
    assert app.register_task(task) is task
    assert isinstance(task, Pay)
    assert isinstance(task, TicketTask)
    assert type(task).__doc__ == "What it is for."
    # Another app may have the same class
    assert not issubclass(Pay, TicketTask)
    assert Pay().app is app
    with on_ticket(task), pytest.raises(Retry) as raised:
        task("T", "key")
    assert raised.value.when == 180
    with on_ticket(task), pytest.raises(Retry) as raised:
        task("T", "any other")
    assert raised.value.when <= 1


def test_celerys_own_tasks_are_left_alone() -> None:
    app = install(make_app())
    app.finalize()
    assert app.tasks["celery.backend_cleanup"].Strategy == "celery.worker.strategy:default"


def nothing() -> None:
    """Celery writes source code around a task's name, and a lambda has none."""


class Calls(Task):
    """Notes who is called, in order."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(("before", self.ticket and self.ticket.id))
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.calls.append(("after", self.ticket and self.ticket.id))


@pytest.mark.parametrize(
    "kind", ["base", "task_cls", "app.Task before", "app.Task after", "of the app's", "class", "made by the app"]
)
def test_the_call_of_a_base_class_stands_between_the_bridges_checks_and_the_body(kind: str) -> None:
    app = make_app(**({"task_cls": Calls} if kind == "task_cls" else {}))
    if kind == "made by the app":
        # As a subclass of Celery's app may do it
        app.create_task_cls = lambda: Calls
    if kind == "app.Task before":
        app.Task = Calls
    install(app)
    if kind == "app.Task after":
        app.Task = Calls
    base: Any = Calls if kind == "base" else None
    if kind == "of the app's":
        base = type("Mine", (Calls, app.Task), {})
    calls: list[Any] = []

    def pay(self: Any, *, fails: bool) -> int:
        calls.append(("body", self.ticket and self.ticket.id))
        if fails:
            raise ValueError("no")
        return 7

    if kind == "class":
        task = app.register_task(type("Pay", (Calls,), {"name": "shop.pay", "run": pay})())
    else:
        task = app.task(pay, bind=True, name="shop.pay", shared=False, lazy=False, base=base)
    type(task).calls = calls

    with on_ticket(task):
        assert task(fails=False) == 7
    # Celery itself protects the request only in its own worker program
    assert calls == [("before", "T1"), ("body", "T1"), ("after", "T1")]
    calls.clear()
    with on_ticket(task), pytest.raises(Retry):
        task(fails=True)
    assert calls == [("before", "T1"), ("body", "T1"), ("after", "T1")]
    calls.clear()
    assert task(fails=False) == 7
    assert calls == [("before", None), ("body", None), ("after", None)]


def derived_of(base: Any, how: str) -> Any:
    """A class that a user derives from the class of another task."""

    class Same(base):
        name = "shop.derived"

    class OtherBody(Same):
        def run(self, ticket_id: str, payload: Any) -> str:
            return f"other {ticket_id} {payload}"

    class LongerBody(Same):
        def run(self, ticket_id: str, payload: Any) -> str:
            return f"longer {super().run(ticket_id, payload)}"

    class Called(LongerBody):
        def __call__(self, *args: Any, **kwargs: Any) -> str:
            return f"called {super().__call__(*args, **kwargs)}"

    class Starts(Called):
        def before_start(self, *args: Any) -> None:
            super().before_start(*args)

    return {"same": Same, "body": OtherBody, "longer": LongerBody, "called": Called, "starts": Starts}[how]


@pytest.mark.parametrize("how", ["same", "body", "longer", "called", "starts"])
@pytest.mark.parametrize("first", ["class", "function"])
@pytest.mark.parametrize("second", ["class", "base", "instance twice"])
def test_a_class_may_derive_from_that_of_another_task(how: str, first: str, second: str) -> None:
    def ends(app: Any) -> list[Any]:
        def pay(self: Any, ticket_id: str, payload: Any) -> str:
            return f"{self.name} {ticket_id} {payload}"

        if first == "class":
            paying = app.register_task(type("Pay", (Task,), {"name": "shop.pay", "run": pay})())
        else:
            paying = app.task(pay, bind=True, name="shop.pay", shared=False, lazy=False, max_retries=7)
        cls = derived_of(type(paying), how)
        if second == "base":
            task = app.task(pay, bind=True, name="shop.other", shared=False, lazy=False, base=cls)
        else:
            task = app.register_task(cls())
        if second == "instance twice":
            task = app.register_task(type("Third", (type(task),), {"name": "shop.third"})())
        if isinstance(task, TicketTask):
            adopt_all(app)
            assert task._bridge_ordinary_strategy == Task.Strategy
            assert handle(task, "T", 1).result == task("T", 1)
        return [one(("T", 1)) for one in (lambda args: task(*args), lambda args: task.run(*args), task.apply)]

    def plain(found: list[Any]) -> list[Any]:
        *called, applied = found
        return [*called, applied.get()]

    assert plain(ends(install(make_app()))) == plain(ends(make_app()))


def test_a_rollback_has_the_context_that_the_base_class_opens() -> None:
    app = install(make_app())
    calls: list[Any] = []

    def undo(self: Any, lost: Any, ticket_id: str) -> None:
        calls.append(("undo", ticket_id))

    def pay(self: Any, ticket_id: str) -> None:
        calls.append(("body", ticket_id))

    base = type("Mine", (Calls,), {})
    task = app.task(pay, bind=True, name="shop.pay", shared=False, lazy=False, base=base, bridge_rollback=undo)
    type(task).calls = calls
    adopt_all(app)
    adopt_all(app)
    with on_ticket(task) as context:
        context.lost, context.owes_rollback = LostAttempt(1, 900, "w1@a", "died"), True
        task("T1")
    assert calls == [("before", "T1"), ("undo", "T1"), ("body", "T1"), ("after", "T1")]
    assert not context.owes_rollback


def test_a_lease_that_is_over_is_seen_before_any_call() -> None:
    app = install(make_app())
    calls: list[Any] = []
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False, base=type("Mine", (Calls,), {}))
    type(task).calls = calls
    with on_ticket(task) as context:
        context.lease_holds = lambda: False
        with pytest.raises(Exception, match="the lease ended"):
            task()
    assert calls == []


def test_methods_that_a_users_class_overrides_are_called() -> None:
    class Mine(Task):
        def retry(self, *args: Any, **options: Any) -> Any:
            return super().retry(*args, **{**options, "countdown": 7})

        def push(self, *_: Any) -> str:
            return "a method of theirs"

    app = install(make_app())

    def pay(self: Any) -> None:
        self.retry()

    task = app.task(pay, bind=True, name="shop.pay", shared=False, lazy=False, base=Mine)
    assert task.push("T", 1) == "a method of theirs"
    with on_ticket(task), pytest.raises(Retry) as raised:
        task()
    assert raised.value.when == 7


def test_a_class_is_told_once_that_its_task_is_bound() -> None:
    bound: list[tuple[str, Any]] = []

    class Pay(Task):
        name = "shop.pay"

        @classmethod
        def on_bound(cls, app: Any) -> None:
            bound.append((cls.__name__, app))

    app = install(make_app())
    app.register_task(Pay())
    assert bound == [("Pay", app)]
    assert Pay().app is app


@pytest.mark.parametrize("kind", [staticmethod, classmethod], ids=["static", "class"])
def test_the_strategy_of_a_task_is_called_as_celery_does(kind: Any) -> None:
    def given(*args: Any, **_: Any) -> Any:
        return args

    def strategy_of(app: Any) -> Any:
        cls = type("Pay", (Task,), {"name": "shop.pay", "Strategy": kind(given)})
        task = app.register_task(cls())
        *owner, of, by, consumer = task.start_strategy(app, SimpleNamespace(controller=None))
        return [one.__name__ for one in owner], of is task, by is app, consumer.controller

    assert strategy_of(install(make_app())) == strategy_of(make_app())


@pytest.mark.parametrize("task_cls", [None, Calls, "tests.unit.app.test_adoption:Calls"], ids=str)
def test_an_app_can_be_pickled_as_before(task_cls: Any) -> None:
    app = install(make_app(**({"task_cls": task_cls} if task_cls else {})))
    app.task(nothing, name="shop.pay", shared=False, lazy=False)
    again = pickle.loads(pickle.dumps(app))
    assert (again.main, symbol_by_name(again.task_cls)) == ("shop", symbol_by_name(task_cls or "celery:Task"))


def test_ordinary_messages_go_to_the_strategy_that_the_task_had() -> None:
    app = install(make_app())
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False, Strategy="shop.strategies:own")
    assert task.Strategy == STRATEGY
    assert task._bridge_ordinary_strategy == "shop.strategies:own"


class Sealed(Task):
    """A class that cannot be extended."""

    name = "shop.sealed"

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("Sealed is final")


class MustRun(Task):
    """A class whose subclasses must have a body of their own."""

    abstract = True

    def __init_subclass__(cls, **_: Any) -> None:
        if "run" not in cls.__dict__:
            raise NotImplementedError


class NoTask:
    name = "shop.none"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Sealed(), "task shop.sealed: its class Sealed cannot be extended: TypeError: Sealed is final"),
        (
            type("Runs", (MustRun,), {"name": "shop.runs", "run": nothing})(),
            "task shop.runs: its class Runs cannot be extended: NotImplementedError:",
        ),
        (NoTask(), "task shop.none is NoTask, which is no subclass of celery.Task"),
    ],
    ids=["final", "must run", "foreign"],
)
def test_tasks_that_cannot_be_adopted_are_refused_at_start(task: Any, message: str) -> None:
    app = install(make_app())
    app.tasks[task.name] = task
    with pytest.raises(ConfigurationError) as raised:
        adopt_all(app)
    assert str(raised.value) == message


@pytest.mark.parametrize("late", [False, True], ids=["declared", "annotated"])
@pytest.mark.parametrize("most", ["many", math.nan, -math.inf, [3]])
def test_a_max_retries_that_cannot_be_is_refused_at_start_and_ends_no_import(most: Any, late: bool) -> None:
    app = install(make_app())
    app.conf.task_annotations = {"shop.pay": {"max_retries": most}} if late else {}
    app.task(nothing, name="shop.pay", shared=False, lazy=False, **({} if late else {"max_retries": most}))
    with pytest.raises(ConfigurationError) as raised:
        adopt_all(app)
    assert str(raised.value) == f"task shop.pay: max_retries must be a number or None, not {most!r}"


def test_a_base_class_that_cannot_be_extended_ends_no_import() -> None:
    app = install(make_app())
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False, base=MustRun)
    assert task() is None
    with pytest.raises(ConfigurationError, match=r"^task shop\.pay: its class nothing cannot be extended: "):
        adopt_all(app)


@pytest.mark.parametrize("given", [{}, {"bridge_max_attempts": 4}], ids=["not given", "given"])
@pytest.mark.parametrize(("most", "attempts"), [(-1, 1), (-(10**30), 1), (0, 1), (2.5, 3), (6, 7)])
@pytest.mark.parametrize("how", ["option", "annotation", "both", "derived"])
def test_a_task_has_one_attempt_more_than_retries(how: str, most: Any, attempts: int, given: Any) -> None:
    app = install(make_app())
    options = {"max_retries": most, **given}
    app.conf.task_annotations = {"shop.pay": options} if how in ("annotation", "both") else {}
    declared = {"annotation": {}, "both": {"max_retries": 9}, "derived": {"max_retries": 9}}.get(how, options)
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False, **declared)
    if how == "derived":
        task = app.register_task(type("Derived", (type(task),), {"name": "shop.derived", **options})())
    adopt_all(app)
    assert task.bridge_max_attempts == given.get("bridge_max_attempts", attempts)
    check_task_options(task.name, task)


def test_a_task_that_bypassed_the_registry_is_adopted_at_start() -> None:
    app = install(make_app())

    class Pay(Task):
        name = "shop.pay"

    dict.__setitem__(app.tasks, "shop.pay", Pay())
    adopt_all(app)
    assert isinstance(app.tasks["shop.pay"], TicketTask)


def test_a_users_own_registry_is_kept() -> None:
    from celery.app.registry import TaskRegistry

    class Mine(TaskRegistry):
        pass

    app = install(make_app(tasks=Mine()))
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False)
    assert isinstance(app.tasks, Mine)
    assert isinstance(task, TicketTask)


def test_install_reads_no_configuration_that_is_still_to_come() -> None:
    """Celery reads the configuration once and sends one signal. A receiver that connects later, such as Beat's entries,
    would not get it.
    """
    app = install(make_app())
    heard = []
    app.on_after_configure.connect(lambda **_: heard.append(True), weak=False)
    app.conf.task_annotations = {"shop.pay": {"max_retries": 7}}
    task = app.task(nothing, name="shop.pay", shared=False)
    assert not app.configured

    adopt_all(app)

    assert heard == [True]
    assert (task.max_retries, task.bridge_max_attempts) == (7, 8)


AGAIN = {"autoretry_for": (KeyError,)}


@pytest.mark.parametrize("of_class", [False, True], ids=["decorated", "class"])
@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({**AGAIN, "retry_kwargs": {"max_retries": 10}}, KeyError, 11),
        ({**AGAIN, "retry_kwargs": {"max_retries": 0}}, KeyError, 1),
        # Celery takes that of the task, whose default of 3 counts as not set.
        ({**AGAIN, "retry_kwargs": {"max_retries": None}}, KeyError, 5),
        ({**AGAIN, "retry_kwargs": {"max_retries": None}, "max_retries": 7}, KeyError, 8),
        ({**AGAIN, "retry_kwargs": {"countdown": 0}}, KeyError, 5),
        ({**AGAIN, "retry_kwargs": {"max_retries": 10}, "max_retries": 7}, KeyError, 11),
        ({**AGAIN, "retry_kwargs": {"max_retries": 2}, "max_retries": 7}, KeyError, 3),
        ({**AGAIN, "retry_kwargs": {"max_retries": 2}, "max_retries": 7}, ValueError, 8),
        ({**AGAIN, "retry_kwargs": {"max_retries": 10}, "max_retries": None}, KeyError, 11),
        ({**AGAIN, "retry_kwargs": {"max_retries": 10}, "bridge_max_attempts": 3}, KeyError, 3),
        ({"retry_kwargs": {"max_retries": 10}}, KeyError, 5),
    ],
)
def test_the_retries_of_autoretry_are_kept(options: Any, error: type[Exception], attempts: int, of_class: bool) -> None:
    app = make_app()
    app.conf.task_always_eager = True
    install(app)
    began = []

    def pay(self: Any, ticket_id: str, payload: Any) -> None:
        began.append(self.ticket.attempt)
        raise error(ticket_id)

    if of_class:
        task = app.register_task(type("Pay", (Task,), {"name": "shop.pay", "run": pay, **options})())
    else:
        task = app.task(pay, bind=True, name="shop.pay", shared=False, lazy=False, **options)
    adopt_all(app)
    task.push("T", 1)
    assert began == list(range(1, attempts + 1))


@pytest.mark.parametrize("max_retries", [None, MOST_ATTEMPTS, sys.maxsize, 10**30, math.inf])
def test_a_task_that_is_autoretried_for_ever_is(max_retries: float | None) -> None:
    app = install(make_app())
    given = {**AGAIN, "retry_kwargs": {"max_retries": 10}, "max_retries": max_retries}
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False, **given)
    assert task.bridge_max_attempts == MOST_ATTEMPTS


def test_a_second_install_changes_nothing() -> None:
    app = install(make_app())
    task = app.task(nothing, name="shop.pay", shared=False, lazy=False)
    cls = type(task)
    assert install(app) is app
    assert type(task) is cls


@pytest.mark.parametrize("finalised", [False, True])
@pytest.mark.parametrize("with_bridge", [True, False])
def test_a_warning_of_two_tasks_of_one_name_points_to_the_users_line(with_bridge: bool, finalised: bool) -> None:
    if not hasattr(celery.exceptions, "DuplicateTaskNameWarning"):
        pytest.skip("this Celery says nothing of two tasks of one name")
    app = install(make_app()) if with_bridge else make_app()
    if finalised:
        app.finalize()

    class Pay(Task):
        name = "shop.pay"

    class PayAgain(Task):
        name = "shop.pay"

    def ship(ticket_id: str, payload: Any) -> None:
        pass

    def ship_again(ticket_id: str, payload: Any) -> None:
        pass

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        app.task(name="shop.ship", shared=False)(ship)
        app.task(name="shop.ship", shared=False)(ship_again)
        app.finalize()
        app.register_task(Pay())
        app.register_task(PayAgain())

    # Apps that other tests made in this process may share tasks with this one, of which Celery warns, too.
    of_these = [one for one in warned if "shop." in str(one.message)]
    assert [Path(one.filename).name for one in of_these] == [Path(__file__).name] * 2


def test_a_task_that_the_bridge_replaces_is_not_another_apps() -> None:
    if not hasattr(celery.exceptions, "DuplicateTaskNameWarning"):
        pytest.skip("this Celery says nothing of two tasks of one name")
    app = make_app()

    @app.task(name="shop.ship", shared=False)
    def ship(ticket_id: str, payload: Any) -> None:
        pass

    with warnings.catch_warnings():
        warnings.filterwarnings("error", r".*shop\.", celery.exceptions.DuplicateTaskNameWarning)
        install(app)
        app.finalize()
        adopt_all(app)
        app.register_task(app.tasks["shop.ship"])


def test_a_body_that_a_test_patches_in_its_class_is_the_one_that_runs() -> None:
    app = install(make_app())

    class Pay(Task):
        name = "shop.pay"

        def run(self, *_: Any) -> str:
            return "the body"

    task = app.register_task(Pay())
    with patch.object(Pay, "run", lambda *_: "patched"):
        assert task.run("T", 1) == task.apply(("T", 1)).get() == handle(task, "T", 1).result == "patched"
    assert task.run("T", 1) == task.apply(("T", 1)).get() == handle(task, "T", 1).result == "the body"


#: What the bridge may define on the classes and instances of tasks. Celery and users have other names.
OURS = re.compile(r"_?bridge_.*|__.*__|push.*|apush.*|ticket|retry|replace|run|before_start|Strategy|max_retries")


@pytest.mark.parametrize("base", [Task, Calls], ids=["", "with a call"])
def test_a_class_of_the_users_may_have_any_attribute(base: Any) -> None:
    """Private names of the bridge begin with ``_bridge_``."""
    app = install(make_app())

    class Pay(base):  # type: ignore[misc, valid-type, unused-ignore]
        name = "shop.pay"
        calls: ClassVar[list[Any]] = []

        def run(self, *_: Any) -> str:
            return "done"

    task = app.register_task(Pay())
    adopt_all(app)
    assert handle(task, "T", 1, lost=LostAttempt(1, 900, "w1@a", "died")).state == "done"
    added = set(dir(task)) - set(dir(Celery("other", set_as_current=False).register_task(Pay())))
    assert [name for name in sorted(added) if not OURS.fullmatch(name)] == []


@pytest.mark.parametrize("name", ["_body", "_roll_back", "_outermost", "_mismatch", "_is_given", "_calls_run"])
def test_an_attribute_of_the_users_is_kept(name: str) -> None:
    app = install(make_app())

    def body(self: Any, *_: Any) -> Any:
        return getattr(self, name)

    task = app.register_task(type("Pay", (Task,), {"name": "shop.pay", "run": body, name: "theirs"})())
    lost = LostAttempt(1, 900, "w1@a", "died")
    assert handle(task, "T", 1, lost=lost).result == "theirs"


@pytest.mark.parametrize("through", ["register_task", "registry"])
@pytest.mark.parametrize("kind", ["__init_subclass__", "metaclass"])
def test_a_base_class_that_registers_its_subclasses_registers_those_of_the_user_alone(kind: str, through: str) -> None:
    def tasks_of(app: Any) -> Any:
        def register(cls: Any) -> None:
            if through == "register_task":
                assert isinstance(app.register_task(cls()), cls)
            else:
                cls.bind(app)
                app.tasks.register(cls())

        if kind == "metaclass":

            class Registers(type):
                def __init__(cls, name: str, bases: Any, namespace: Any) -> None:
                    super().__init__(name, bases, namespace)
                    if not namespace.get("abstract"):
                        register(cls)

            class Base(Task, metaclass=Registers):
                abstract = True
        else:

            class Base(Task):  # type: ignore[no-redef, unused-ignore]
                def __init_subclass__(cls, **options: Any) -> None:
                    super().__init_subclass__(**options)
                    register(cls)

        class Pay(Base):
            name = "shop.pay"

            def run(self, *_: Any) -> str:
                return "paid"

        def mail(*_: Any) -> str:
            return "sent"

        app.task(mail, name="shop.mail", base=Base, shared=False, lazy=False)
        app.finalize()
        return {name: task for name, task in app.tasks.items() if not name.startswith(("bridge.", "celery."))}

    plain, found = tasks_of(make_app()), tasks_of(install(make_app()))
    assert found.keys() == plain.keys()
    adopt_all(found["shop.pay"].app)
    assert handle(found["shop.pay"], "T", 1).result == found["shop.pay"].apply(("T", 1)).get() == "paid"
    assert handle(found["shop.mail"], "T", 1).result == "sent"
    assert found["shop.pay"].request_stack is not found["shop.mail"].request_stack


@pytest.mark.parametrize("more", [{}, AGAIN, {**AGAIN, "pydantic": True}], ids=["plain", "autoretry", "both"])
@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("takes_both", [False, True])
def test_what_a_task_takes_is_known_whatever_wraps_its_body(more: Any, bind: bool, takes_both: bool) -> None:
    app = install(make_app())
    app.conf.task_always_eager = True
    taken: list[Any] = []

    def free_one(ticket_id: str) -> None: ...

    def free(ticket_id: str, payload: Any) -> None:
        taken.append(payload)

    def bound_one(self: Any, ticket_id: str) -> None: ...

    def bound(self: Any, ticket_id: str, payload: Any) -> None:
        taken.append(payload)

    body = (bound if takes_both else bound_one) if bind else (free if takes_both else free_one)
    task: Any = app.task(body, bind=bind, name="shop.pay", shared=False, lazy=False, **more)
    if takes_both:
        task.push("T", 1)
        assert taken == [1]
    else:
        with pytest.raises(ConfigurationError, match=r"it takes \(ticket_id\), and must take"):
            task.push("T", 1)
