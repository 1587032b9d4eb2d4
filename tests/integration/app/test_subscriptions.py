"""Several logical consumers of one stream: each gets each message that it wants, once, in order, by its own tasks."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import wait_until

APP = "tests.apps.subscribers"
#: Another code base, which knows the stream and nothing of the first app.
DEPOT = """
import os
from celery import Celery
import bridge

app = Celery("depot", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(
    bridge_subscriptions={"depot": {"task": "depot.keep"}}, bridge_lease=2.0, bridge_leader_lease=2.0,
)

@app.task(bind=True, name="depot.keep", ignore_result=True)
def keep(self, ticket_id, payload):
    self.ticket.effects.rpush(f"depot:{ticket_id}", payload["n"])
"""
NAMES = ("billing", "search", "trail")


class Subscriptions:
    """The lanes of `tests.apps.subscribers` on the test's own server."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer) -> None:
        self.nodes = nodes
        self.redis: Any = server.client(decode_responses=True)
        self.keys = {name: LaneKeys("ticket_stream", name) for name in NAMES}

    def worker(self, name: str, **env: str) -> Any:
        return self.nodes.worker(name, app=APP, arguments=("--concurrency=2", "--without-mingle"), env=env)

    def master(self, name: str, **env: str) -> Any:
        return self.nodes.master(name, app=APP, env=env, ready_text="standing by")

    def push(self, ticket: str, n: int, task: str = "", **more: Any) -> str:
        fields = {"ticket_id": ticket, "payload": json.dumps({"n": n, **more})}
        if task:
            fields["task"] = task
        return str(self.redis.xadd("ticket_stream", fields))

    def count(self, name: str, counter: str = "done") -> int:
        return int(self.redis.hget(self.keys[name].counts, counter) or 0)

    def wait(self, **done: int) -> None:
        for name, count in done.items():
            wait_until(lambda name=name, count=count: self.count(name) >= count, description=f"{name}: {count} done")  # type: ignore[misc]

    def log(self, name: str, ticket: str) -> list[int]:
        return [int(n) for n in self.redis.lrange(f"{name}:{ticket}", 0, -1)]


@pytest.fixture
def lanes(nodes: NodeYard, own_server: EmbeddedServer) -> Subscriptions:
    return Subscriptions(nodes, own_server)


def test_each_subscription_gets_each_message_that_it_wants_by_its_own_task(lanes: Subscriptions) -> None:
    lanes.worker("w1")
    master = lanes.master("m1")
    kinds = ("created", "read", "changed")
    for n in range(30):
        lanes.push(f"T{n % 3}", n, task="billing.refund" if n % 10 == 9 else "", kind=kinds[n % 5 % 3])
    lanes.push("T0", 30, task="trail.note", kind="read")

    wanted = [n for n in range(30) if kinds[n % 5 % 3] != "read"]
    lanes.wait(billing=31, search=len(wanted), trail=1)

    for t in range(3):
        mine = [n for n in range(31) if n % 3 == t]
        assert lanes.log("billing", f"T{t}") == [-n if n % 10 == 9 else n for n in mine]
        assert lanes.log("search", f"T{t}") == [n for n in mine if n in wanted]
    assert lanes.log("trail", "T0") == [30]
    assert lanes.count("search", "left_out") == 31 - len(wanted)
    assert lanes.count("trail", "left_out") == 30
    for name in NAMES:
        assert f"bridge.leader.takeover.rebuild] [{name} on ticket_stream] read the lane" in master.logs()


def test_a_failing_subscription_holds_no_other_back(lanes: Subscriptions) -> None:
    lanes.worker("w1")
    lanes.master("m1")
    lanes.push("T", 1, kind="created", billing={"fail": 9})
    lanes.push("T", 2, kind="created")
    lanes.wait(billing=1, search=2)
    assert lanes.log("billing", "T") == [2]
    assert lanes.log("search", "T") == [1, 2]
    assert lanes.redis.xlen(lanes.keys["billing"].dead) == 1
    assert lanes.redis.xlen(lanes.keys["search"].dead) == 0


def test_fleets_apart_and_nothing_is_missed_while_one_is_away(lanes: Subscriptions) -> None:
    lanes.worker("w1", BRIDGE_SERVE="billing")
    lanes.master("m1")
    for n in range(5):
        lanes.push("T", n, kind="created")
    lanes.wait(billing=5)
    assert lanes.log("search", "T") == []
    assert lanes.redis.xlen("ticket_stream") == 5
    lanes.worker("w2", BRIDGE_SERVE="search,trail")
    lanes.wait(search=5)
    assert lanes.log("search", "T") == list(range(5))


def test_a_result_is_that_of_the_first_subscription_with_results_and_others_are_reached_by_name(
    lanes: Subscriptions, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes.worker("w1", CELERY_RESULT_BACKEND=own_server.url)
    lanes.master("m1")
    id_ = lanes.push("T", 7, kind="created")
    lanes.wait(billing=1, search=1)
    monkeypatch.setitem(os.environ, "SUBSCRIBERS_CONF", "{}")
    from bridge.app.results import result_of
    from tests.apps.subscribers import app

    app.conf.update(broker_url=own_server.url, result_backend=own_server.url)
    assert app.AsyncResult(id_).get(timeout=10) == "billed 7"
    assert result_of(app, id_, "search").get(timeout=10) == "indexed 7"


def test_a_master_makes_the_groups_of_all_its_lanes_before_it_leads_one(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridge.master.process import Master
    from tests.apps.subscribers import app

    monkeypatch.setitem(app.conf, "broker_url", own_server.url)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    Master(app, lambda _line: None)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    with own_server.client(decode_responses=True) as redis:
        groups = {one["name"]: one["last-delivered-id"] for one in redis.xinfo_groups("ticket_stream")}
        assert groups == dict.fromkeys(NAMES, "0-0")


def test_the_threads_of_several_lanes_do_not_keep_the_interpreter_from_each_other(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridge.master.process import SWITCH_S, Master
    from tests.apps.subscribers import app

    monkeypatch.setitem(app.conf, "broker_url", own_server.url)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    before = sys.getswitchinterval()
    try:
        master = Master(app, lambda _line: None)
        master.stop()
        # Not in the main thread, whose signals are the test's
        thread = threading.Thread(target=master.run)
        thread.start()
        thread.join(10)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        assert before > SWITCH_S
    finally:
        sys.setswitchinterval(before)
        monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)


def test_an_app_subscribes_to_the_stream_of_another_and_misses_nothing_while_it_is_away(
    lanes: Subscriptions, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a stream with messages, and a second app that was added now
    (tmp_path / "depot.py").write_text(DEPOT)
    lanes.push("T", 0, kind="created")
    env = {**os.environ, **broker_environment(own_server.url), "PYTHONPATH": str(ROOT)}
    command = python_module("bridge", "-A", "depot", "subscription", "add", "depot", "--from", "now")
    done = preloaded.run(command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")

    # When the first app does everything, while nothing of the second one is up
    lanes.worker("w1")
    lanes.master("m1")
    for n in range(1, 6):
        lanes.push("T", n, task="billing.apply", kind="created")
    lanes.wait(billing=6)
    assert lanes.log("depot", "T") == []

    # Then the second one gets all from there on, by its own task, whatever task a message names
    lanes.nodes.worker("d1", app="depot", cwd=tmp_path, arguments=("--concurrency=1", "--without-mingle"))
    lanes.nodes.master("dm1", app="depot", cwd=tmp_path, ready_text="standing by")
    wait_until(lambda: len(lanes.log("depot", "T")) >= 5, description="the second app")
    assert lanes.log("depot", "T") == [1, 2, 3, 4, 5]
    assert lanes.log("billing", "T") == list(range(6))
