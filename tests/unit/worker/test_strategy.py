"""How the worker's main process takes ticket messages and bundles, with a consumer of Celery's that only notes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.consumer import Consumer

from bridge.app.installation import install
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.worker.main import strategy
from bridge.worker.main.rate_limits import NewLimits
from tests.unit.worker.kept_outcomes import LIFE, heads


class Members(list[Any]):
    by_queue: dict[str, Any]


class FakeConsumer:
    """Not a `SimpleNamespace`: a signal looks its sender up, by its hash."""

    bridge_new_limits: Any = None

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Taken:
    """A worker with one lane, which takes messages for tasks of ``app``."""

    def __init__(self, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        #: What went to the pool, and what waits for its rate limit.
        self.requests: list[Any] = []
        self.limited: list[Any] = []
        member = SimpleNamespace(
            lane=app.bridge.settings.lane, take=lambda *_: True, is_stopping=False, received=lambda _: None,
            open=SimpleNamespace(all=()), kept_back=[], can_end=True, queue="q",
        )  # fmt: skip
        members = Members([member])
        members.by_queue = {"q": member}
        monkeypatch.setattr(strategy, "members_of", lambda _: members)
        bucket: Callable[..., Any] = Consumer.bucket_for_task
        self._consumer: Any = FakeConsumer(
            pool=SimpleNamespace(apply_async=None), hostname="w1@here", event_dispatcher=None,
            connection_errors=(), channel_errors=(),
            disable_rate_limits=False, task_buckets={name: bucket(None, task) for name, task in app.tasks.items()},
            on_task_request=self.requests.append, reset_rate_limits=lambda: None, controller=None,
            _limit_task=lambda request, *_: self.limited.append(request),
        )  # fmt: skip
        self._consumer.bridge_new_limits = NewLimits(self._consumer, 1.0)

    def take(self, task: str, body: str, runs: list[Any]) -> None:
        found = self.app.tasks[task]

        type(found)._bridge_ordinary_strategy = staticmethod(lambda *_, **__: None)
        handle = strategy.strategy(found, self.app, self._consumer)
        headers = {"id": "5-0", "task": task, HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: runs}
        message = SimpleNamespace(headers=headers, body=body, delivery_info={"routing_key": "q"}, properties={})
        handle(message, None, None, None, [])


def make_app(**conf: Any) -> Any:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    app.conf.update(conf)

    @app.task(name="shop.free", rate_limit=0, lazy=False, shared=False)
    def free(ticket_id: str, payload: Any) -> None: ...

    @app.task(name="shop.pay", lazy=False, shared=False)
    def pay(ticket_id: str, payload: Any) -> None: ...

    app.finalize()
    return app


@pytest.mark.parametrize(
    "conf", [{"task_default_rate_limit": "1/m"}, {"task_annotations": {"*": {"rate_limit": "1/m"}}}], ids=str
)
def test_a_rate_limit_of_all_tasks_is_none_of_bundles(conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They carry messages of tasks that are exempt from it."""
    app = make_app(**conf)
    worker = Taken(app, monkeypatch)
    runs = [["T1", 0, 1, [["5-0", "shop.free", {}]]]]
    for _ in range(3):
        worker.take(BUNDLE_TASK, json.dumps(runs), heads(runs))
    assert (len(worker.requests), worker.limited) == (3, [])
    worker.take("shop.pay", json.dumps([["T1", {}], {}, {}]), [["T1", 0, 1, 1, 0]])
    assert (len(worker.requests), len(worker.limited)) == (3, 1)


@pytest.mark.parametrize("payload", [{"n": 1}, "text", None], ids=str)
def test_celery_inspect_shows_the_arguments_of_a_message(payload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Taken(make_app(), monkeypatch)
    worker.take("shop.pay", json.dumps([["T1", payload], {}, {}]), [["T1", 0, 1, 1, 0]])
    [request] = worker.requests
    assert (request.info()["args"], request.info()["kwargs"]) == (["T1", payload], {})
    assert json.loads(json.dumps(request.info()))["id"] == "5-0"


def test_celery_inspect_is_answered_beside_a_message_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Taken(make_app(), monkeypatch)
    worker.take("shop.pay", "[" * 100_000, [["T1", 0, 1, 1, 0]])
    [request] = worker.requests
    assert not request.info()["args"]
