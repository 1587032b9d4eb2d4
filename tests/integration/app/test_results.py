"""Results of messages: two lanes on one result backend have the same message ids, and each finds its own result."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import VERSION, Celery, states
from celery.backends.base import BaseBackend
from celery.result import AsyncResult, GroupResult, ResultSet

from bridge.app.installation import install
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from tests.integration.lanes import LaneUnderTest

ID = "1795385580968-0"
#: Stream -> the task of the lane's messages. The tasks have different results.
TASKS = {"orders": "add", "refunds": "context"}


class Table(BaseBackend):
    """Stands for a database backend: it has the three hooks of a backend, and no keys."""

    rows: dict[str, dict[str, Any]] = {}  # noqa: RUF012  one for all, as a database is

    def _store_result(self, task_id: Any, result: Any, state: Any, traceback: Any = None, **_: Any) -> Any:
        self.rows[task_id] = {"task_id": task_id, "status": state, "result": result, "traceback": traceback}
        return result

    def _get_task_meta_for(self, task_id: Any) -> Any:
        return self.rows.get(task_id, {"task_id": task_id, "status": states.PENDING, "result": None})

    def _forget(self, task_id: Any) -> None:
        self.rows.pop(task_id, None)


@pytest.fixture(params=["redis", "redis, thread-local", "files", "table"])
def backend(request: pytest.FixtureRequest, own_server: EmbeddedServer, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    if request.param == "table":
        yield f"{Table.__module__}:{Table.__qualname__}", None
        Table.rows.clear()
    elif request.param == "files":
        yield f"file://{tmp_path}", None
    else:
        yield own_server.url, "thread-local" not in request.param


def lane(backend: tuple[str, Any], stream: str, group: str = "group", *, used_before: bool = False) -> Any:
    url, shared = backend
    app: Any = Celery(stream, broker="redis://localhost:1/0", backend=url, set_as_current=False)
    app.conf.bridge_stream, app.conf.bridge_group = stream, group
    if shared is not None:
        app.conf.result_backend_thread_safe = shared
    if used_before:
        assert app.AsyncResult("other").state == states.PENDING
    install(app)

    @app.task(name="shop.pay", shared=False)
    def pay(ticket_id: str, payload: Any) -> None: ...

    app.finalize()
    return app


def forms(app: Any, id_: str = ID) -> list[Any]:
    """Every way to get a result by its id."""
    app.set_current()
    found = [app.AsyncResult(id_), app.tasks["shop.pay"].AsyncResult(id_), AsyncResult(id_), AsyncResult(id_, app=app)]
    return [*found, pickle.loads(pickle.dumps(found[0]))]


@pytest.mark.parametrize("used_before", [False, True])
def test_lanes_on_one_backend_find_their_own_results(backend: tuple[str, Any], used_before: bool) -> None:
    one = lane(backend, "orders", used_before=used_before)
    two = lane(backend, "refunds", used_before=used_before)
    three = lane(backend, "orders", "other")
    one.backend.store_result(ID, "one", states.SUCCESS)
    two.backend.store_result(ID, ValueError("two"), states.FAILURE)

    assert {result.get(timeout=60) for result in forms(one)} == {"one"}
    assert {result.state for result in forms(two)} == {states.FAILURE}
    assert {repr(result.result) for result in forms(two)} == {"ValueError('two')"}
    assert {result.state for result in forms(three)} == {states.PENDING}
    assert {result.id for result in forms(one)} == {ID}
    # On a thread of its own, which may have a backend of its own.
    assert beside(lambda: one.AsyncResult(ID).result) == "one"
    group = GroupResult("g", [one.AsyncResult(ID)], app=one)
    # Celery 5.6 tells the first result object of an id alone that it is there (its issue 4925).
    native = group.supports_native_join and VERSION >= (5, 7)
    assert (group.join_native if native else group.join)(timeout=60) == ["one"]

    one.AsyncResult(ID).forget()
    assert one.AsyncResult(ID).state == states.PENDING
    assert two.AsyncResult(ID).state == states.FAILURE


def test_results_of_ordinary_calls_are_where_they_were(backend: tuple[str, Any]) -> None:
    plain: Any = Celery("plain", backend=backend[0], set_as_current=False)
    ours = lane(backend, "orders")
    ours.backend.store_result("0b8ffa7d-8b4c-4a3c-8f4e-1f6a6f3b8a11", 1, states.SUCCESS)
    assert plain.AsyncResult("0b8ffa7d-8b4c-4a3c-8f4e-1f6a6f3b8a11").result == 1


def test_a_result_is_received_from_its_own_lane_only(own_server: EmbeddedServer) -> None:
    one, two = lane((own_server.url, None), "orders"), lane((own_server.url, None), "refunds")
    of_one, of_two = one.AsyncResult(ID), two.AsyncResult(ID)
    # Both are subscribed before anything is there.
    for result in (of_one, of_two):
        result.backend.add_pending_result(result)
    two.backend.store_result(ID, "two", states.SUCCESS)
    assert of_two.get(timeout=60) == "two"
    assert not of_one.ready()
    threading.Timer(0.05, lambda: one.backend.store_result(ID, "one", states.SUCCESS)).start()
    assert of_one.get(timeout=60) == "one"


def test_two_lanes_that_work_on_one_backend_store_each_its_own_results(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    first_ms = time.time_ns() // 1_000_000
    ids = [f"{first_ms + n}-0" for n in range(20)]
    lanes: dict[str, LaneUnderTest] = {}
    for stream, task in TASKS.items():
        (tmp_path / stream).mkdir()
        conf = json.dumps({"bridge_stream": stream})
        one = lanes[stream] = LaneUnderTest(nodes, own_server, tmp_path / stream, COUNTER_CONF=conf)
        one.keys = LaneKeys(stream, one.keys.group)
        one.worker(f"{stream}-worker", wait=False)
        one.master(f"{stream}-master", wait=False)
        for n, id_ in enumerate(ids):
            payload = json.dumps({"n": n})
            fields: dict[Any, Any] = {"ticket_id": f"T{n % 3}", "task": f"counter.{task}", "payload": payload}
            one.redis.xadd(stream, fields, id=id_)
    for one in lanes.values():
        one.wait_done(len(ids))
    group = lanes["orders"].keys.group
    orders, refunds = (lane((own_server.url, None), stream, group) for stream in lanes)
    assert [orders.AsyncResult(id_).get(timeout=60) for id_ in ids] == [{"n": n, "attempt": 1} for n in range(20)]
    assert [refunds.AsyncResult(id_).get(timeout=60)["message_id"] for id_ in ids] == ids


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a:b", "c"), ("a", "b:c")),
        (("a", "b::c"), ("a::b", "c")),
        (("a b", "c"), ("a", "b c")),
        (("ü" * 90, "g"), ("ü" * 91, "g")),
    ],
)
def test_no_two_lanes_have_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    names = {lane(("cache+memory://", None), *which).backend.get_key_for_task(ID) for which in (one, other)}
    assert len(names) == 2
    assert all(name.isascii() and len(name) < 150 for name in names)


def test_results_of_other_tasks_need_no_task_of_the_app() -> None:
    """Their backend gives all results of a set at once, with their names."""
    app: Any = Celery("shop", backend="cache+memory://", set_as_current=False, include=["only_workers_have_this"])
    app.conf.bridge_subscriptions = {"one": {"task": "shop.a"}, "two": {"task": "shop.b"}}
    install(app)
    ids = [uuid.uuid4().hex, str(uuid.uuid4())]
    for id_ in ids:
        app.backend.store_result(id_, id_, "SUCCESS")
    results = [app.AsyncResult(id_) for id_ in ids]
    assert ResultSet(results, app=app).get(timeout=10) == ids


def beside(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
