"""Several workers in one process, as tests of publishers and subscribers have them."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

import bridge
from bridge.master.process import Master
from bridge.routing.errors import ConfigurationError
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.lane import Lane
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.process import ROOT
from bridge.worker.main import workers_here


def make_app(name: str, url: str = "redis://nowhere:1/0") -> Any:
    app = bridge.install(Celery(name, broker=url, backend=url, set_as_current=False))
    app.conf.bridge_stream = f"stream_{name}"
    app.conf.bridge_group = f"group_{name}"
    app.conf.task_default_queue = f"queue_{name}"
    app.conf.broker_connection_retry_on_startup = True

    @app.task(bind=True, name=f"{name}.note", lazy=False, shared=False)
    def note(self: bridge.TicketTask, ticket_id: str, payload: Any) -> str:
        self.ticket.effects.rpush(f"{name}:{ticket_id}", payload)
        return f"{self.request.hostname} {self.app.main}"

    app.note = note
    return app


@contextmanager
def worker(app: Any, name: str, pool: str = "threads") -> Iterator[Any]:
    with start_worker(
        app, pool=pool, concurrency=2, hostname=name, perform_ping_check=False, shutdown_timeout=30, loglevel="WARNING"
    ) as started:
        yield started


@contextmanager
def leading(app: Any) -> Iterator[None]:
    master = Master(app)
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        master.stop()
        thread.join(30)


def handled(app: Any, ticket: str, payload: int) -> str:
    return str(app.AsyncResult(app.note.push(ticket, payload)).get(timeout=20))


def test_two_apps_in_one_test(bridge_lane: Callable[..., Lane]) -> None:
    one, two = make_app("one"), make_app("two")
    first, second = bridge_lane(one), bridge_lane(two)
    for n in range(3):
        one.note.push_many([("T", n), ("U", n)])
        two.note.push_many([("T", n), ("U", n)])
        second.wait(20)
        first.wait(20)
    assert first.redis.lrange("one:T", 0, -1) == second.redis.lrange("two:U", 0, -1) == [b"0", b"1", b"2"]


def test_a_publisher_and_its_subscriber(bridge_lane: Callable[..., Lane]) -> None:
    shop, search = make_app("shop"), make_app("search")
    search.conf.bridge_stream = shop.conf.bridge_stream
    for app in (shop, search):
        app.conf.bridge_default_task = f"{app.main}.note"
    first = bridge_lane(shop)
    second = bridge_lane(search, url=first.url)
    for n in range(3):
        first.redis.xadd("stream_shop", {"ticket_id": "T", "payload": n})
        second.wait(20)
        first.wait(20)
    for app in (shop, search):
        assert first.redis.lrange(f"{app.main}:T", 0, -1) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("ends_first", [0, 1])
def test_a_lane_goes_on_when_another_one_of_its_process_has_ended(ends_first: int) -> None:
    apps = [make_app("one"), make_app("two")]
    with ExitStack() as ends_later, ExitStack() as ends:
        lanes = [(ends if n == ends_first else ends_later).enter_context(Lane(app)) for n, app in enumerate(apps)]
        for app, lane in zip(apps, lanes, strict=True):
            app.note.push("T", 1)
            lane.wait(20)
        ends.close()
        app, lane = apps[1 - ends_first], lanes[1 - ends_first]
        for n in range(2, 5):
            app.note.push("T", n)
            lane.wait(20)
        assert lane.redis.lrange(f"{app.main}:T", 0, -1) == [b"1", b"2", b"3", b"4"]
    assert not workers_here.workers


def two_workers_of_celerys_starter(url: str, pool: str) -> None:
    one, two = make_app("one", url), make_app("two", url)
    with leading(one), leading(two), worker(one, "w1@here", pool):
        assert handled(one, "T", 1) == "w1@here one"
        with worker(two, "w2@here", pool):
            for n in range(3):
                assert handled(one, "T", n) == "w1@here one"
                assert handled(two, "T", n) == "w2@here two"


def test_two_workers_of_celerys_own_starter(own_server: EmbeddedServer) -> None:
    two_workers_of_celerys_starter(own_server.url, "threads")


def test_two_workers_of_celerys_own_starter_with_pool_processes(own_server: EmbeddedServer) -> None:
    # In a process of its own: Celery's pool of processes leaves descriptors that it touches later.
    program = f"from {__name__} import *; two_workers_of_celerys_starter({own_server.url!r}, 'prefork')"
    ran = preloaded.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, timeout_s=120)
    assert ran.returncode == 0, ran.stderr


def test_a_worker_with_the_queue_of_another_one_that_runs_here_is_refused(own_server: EmbeddedServer) -> None:
    with EmbeddedServer(append_only=False) as other:
        # The same node name, and a lane of the same name on another server.
        one, two = make_app("one", own_server.url), make_app("one", other.url)
        with worker(one, "w1@here"):
            refused = pytest.raises(ConfigurationError, match="another worker of this process is named w1@here, too")
            with refused, worker(two, "w1@here"):
                pass
            with worker(two, "w2@here"):
                pass
    assert not workers_here.workers


def test_two_workers_of_one_app(own_server: EmbeddedServer) -> None:
    app = make_app("one", own_server.url)
    # Longer than the test waits: a message that the other worker takes would come again only then.
    app.conf.bridge_lease = 60
    with leading(app), worker(app, "w1@here"), worker(app, "w2@here"):
        tickets = [uuid.uuid4().hex for _ in range(20)]
        ids = {ticket: app.note.push_many([(ticket, n) for n in range(3)]) for ticket in tickets}
        ran = {app.AsyncResult(id_).get(timeout=30) for all_of in ids.values() for id_ in all_of}
        assert ran == {"w1@here one", "w2@here one"}
        with own_server.client() as redis:
            assert all(redis.lrange(f"one:{ticket}", 0, -1) == [b"0", b"1", b"2"] for ticket in tickets)
