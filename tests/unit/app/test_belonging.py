"""A push for a task that belongs to no subscription is refused in one line, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, _state

import bridge
from bridge.app.lanes import lanes_of, served_lanes
from bridge.app.task_options import check_tasks
from bridge.routing.errors import ConfigurationError


def shop(**settings: Any) -> Any:
    # Nothing listens on this port: a push that is not refused fails in another way.
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    bridge.install(app)
    app.conf.update(settings)

    def handle(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    app.task(bind=True, name="shop.bill", shared=False)(handle)
    app.task(bind=True, name="shop.refund", shared=False, bridge_subscription="billing")(handle)
    app.task(bind=True, name="shop.other", shared=False)(handle)
    app.finalize()
    return app


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that a test shares with other apps are forgotten after it."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


WAYS: dict[str, Callable[[Any], Any]] = {
    "push": lambda task: task.push("T", {}),
    "push_many": lambda task: task.push_many([("T", {})]),
    "apush": lambda task: asyncio.run(task.apush("T", {})),
    "bridge.push": lambda task: task.app.tasks["bridge.push"].run(task.name, "T", {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_task_of_no_subscription_is_refused(way: str) -> None:
    app = shop(bridge_subscriptions={"billing": {"task": "shop.bill"}})
    with pytest.raises(ConfigurationError, match=r"^the task shop\.other belongs to no subscription: .* has: billing$"):
        WAYS[way](app.tasks["shop.other"])


@pytest.mark.parametrize("name", ["", "\n", "x" * 513, "\ud800", 7, None], ids=range(6))
def test_the_task_of_pushes_refuses_a_name_that_no_task_can_have(name: Any) -> None:
    with pytest.raises(bridge.PayloadError, match=r"^the name of a task must "):
        shop().tasks["bridge.push"].run(name, "T", {})


@pytest.mark.parametrize("settings", [{"bridge_subscriptions": {"billing": {"task": "shop.bill"}}}, {}], ids=str)
@pytest.mark.parametrize("name", ["shop.bill", "shop.refund"])
def test_a_task_of_a_subscription_is_pushed(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(bridge.ServerUnavailable):
        shop(**settings).tasks[name].push("T", {})


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_subscription_of_a_task_is_refused(way: str) -> None:
    app = shop(bridge_subscriptions={"biling": {"task": "shop.bill"}, "search": {"task": "shop.other"}})
    line = r"^task shop\.refund: there is no subscription 'billing'; bridge_subscriptions has: biling, search$"
    for lanes in (lanes_of, served_lanes):
        with pytest.raises(ConfigurationError, match=line):
            lanes(app)
    with pytest.raises(ConfigurationError, match=line):
        WAYS[way](app.tasks["shop.refund"])


def test_without_the_setting_a_task_makes_its_subscription() -> None:
    assert [lane.name for lane in lanes_of(shop())] == ["concurrency_stream_group", "billing"]


def test_without_the_setting_every_task_has_a_lane() -> None:
    with pytest.raises(bridge.ServerUnavailable):
        shop().tasks["shop.other"].push("T", {})


@pytest.mark.parametrize("where", ["option", "base"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"billing": {"task": "a.pay"}}, {"billing": {"task": "a.pay"}, "audit": {"task": "a.audit"}}],
    ids=str,
)
@pytest.mark.parametrize(
    ("others", "subscription"),
    [({}, None), ({"x": {"task": "b.do"}}, None), ({"billing": {"task": "b.do"}}, "billing")],
)
def test_a_copy_of_another_apps_task_names_no_subscription_that_its_app_does_not_have(
    others: dict[str, Any], subscription: str | None, settings: dict[str, Any], where: str, announced: None
) -> None:
    """Celery gives every app of a process a copy of each task."""

    class Billing(bridge.TicketTask):
        bridge_subscription = "billing"

    def handle(ticket_id: str, payload: Any) -> None: ...

    apps = [Celery(name, broker="redis://127.0.0.1:1/0", set_as_current=False) for name in "abc"]
    one, other, plain = apps
    for app, found in ((one, settings), (other, others)):
        bridge.install(app)
        app.conf.bridge_subscriptions = found
    options: Any = {"bridge_subscription": "billing"} if where == "option" else {"base": Billing}
    one.task(name="a.extra", **options)(handle)
    for app, name in ((one, "a.pay"), (one, "a.audit"), (other, "b.do")):
        app.task(name=name)(handle)
    for app in apps:
        app.finalize()
        assert app.tasks["a.extra"].run("T", 1) is None
    assert one.tasks["a.extra"].bridge_subscription == "billing"
    assert other.tasks["a.extra"].bridge_subscription == subscription
    for app in (one, other):
        check_tasks(app)
    assert [lane.name for lane in lanes_of(other)] == ([*others] or [other.bridge.settings.lane.group])
    assert ("a.extra" in lanes_of(other)[0].tasks) is (subscription is not None or not others)
    assert plain.tasks["a.extra"].name == "a.extra"
