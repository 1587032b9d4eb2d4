"""Messages go only to consumers that can run them: routes, rolling deploys, unknown tasks."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

import bridge
from bridge.app.finding import reach
from bridge.app.installed import bridge_of
from bridge.inspect.status import read_status
from bridge.inspect.ticket_facts import TicketFacts
from bridge.inspect.ticket_search import locate
from bridge.operate.orders import give
from bridge.protocol.orders import Release
from bridge.protocol.unserved import UnservedTask
from bridge.routing.errors import OrderFailed
from bridge.routing.policies import Ring
from bridge.settings.app import Settings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import QUICK, LaneUnderTest

APP = "tests.apps.services"


class ServicesLane(LaneUnderTest):
    """A lane of `tests.apps.services`."""

    def service(self, name: str, *arguments: str, tasks: str, wait: bool = True, **env: Any) -> WorkerNode:
        """A worker that has ``tasks``; ``env``: more of the app's variables, as JSON."""
        given = self._env(tasks, env)
        return self.nodes.worker(name, app=APP, arguments=("--concurrency=2", *arguments, *QUICK), env=given, wait=wait)

    def leader(self, name: str, *, tasks: str, wait: bool = True, **env: Any) -> MasterNode:
        return self.nodes.master(name, app=APP, env=self._env(tasks, env), ready_text="standing by", wait=wait)

    def ran(self, ticket: str) -> list[tuple[int, str, str]]:
        """(number, task, name of the worker without its host) of what succeeded of a ticket, in order."""
        found: Any = self.redis.lrange(f"log:{ticket}", 0, -1)
        rows = [json.loads(text) for text in found]
        return [(n, task, consumer.partition("@")[0]) for n, task, consumer in rows]

    def locate(self, ticket: str) -> TicketFacts:
        """What `bridge ticket show` finds."""
        return locate(self.asking, self.settings.lane, ticket, lambda _task: 3)

    def unserved(self) -> dict[str, UnservedTask]:
        """The tasks that messages wait for, as `bridge status` finds them."""
        return {one.task: one for one in read_status(self.asking, self.settings).unserved}

    def wait_heard(self) -> None:
        """Waits until the leader has read all earlier notices."""
        for _ in range(2):
            # Messages that arrive with the first one may be handled after it, in the same turn of the leader's loop.
            with pytest.raises(OrderFailed, match="not parked"):
                give(self.asking, self.keys, Release("nobody"))

    def queues(self, worker: WorkerNode) -> list[str]:
        """The Celery queues that a worker has registered."""
        found: Any = self.redis.hget(self.keys.consumers, worker.hostname())
        queues: list[str] = json.loads(found)["queues"]
        return queues

    @cached_property
    def app(self) -> Celery:
        return bridge.install(Celery("services", broker=self.server.url))

    @property
    def settings(self) -> Settings:
        return bridge_of(self.app).settings

    @property
    def asking(self) -> Redis:
        """A client as the commands have it."""
        return reach(self.app)

    @staticmethod
    def _env(tasks: str, more: dict[str, Any]) -> dict[str, str]:
        variables = {f"SERVICE_{key.upper()}": value for key, value in more.items()}
        return {"SERVICE_TASKS": tasks} | {k: v if isinstance(v, str) else json.dumps(v) for k, v in variables.items()}


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> ServicesLane:
    return ServicesLane(nodes, own_server, tmp_path)


def test_a_task_that_is_routed_to_a_queue_runs_only_where_that_queue_is_consumed(lane: ServicesLane) -> None:
    # Given two workers of one app, one of them for emails
    both = "service.book,service.email"
    routes = {"service.email": {"queue": "emails"}}
    lane.leader("m1", tasks=both, routes=routes)
    books = lane.service("books", tasks=both, routes=routes, wait=False)
    emails = lane.service("emails", "-Q", "emails", tasks=both, routes=routes, wait=False)
    books.wait_ready()
    emails.wait_ready()
    lane.wait_consumers(2)

    # When messages of both kinds arrive in turn, of the same tickets
    tasks = ("service.book", "service.email")
    for n in range(10):
        for ticket in range(10):
            lane.push(f"T{ticket}", {"n": n}, tasks[n % 2])
    lane.wait_done(100)

    # Then each ran on its worker, in order
    for ticket in range(10):
        where = ("books", "emails")
        assert lane.ran(f"T{ticket}") == [(n, tasks[n % 2], where[n % 2]) for n in range(10)]
    assert lane.dead_letters() == []
    lane.assert_at_rest()


def test_with_rendezvous_only_the_share_of_who_joins_or_leaves_moves_and_others_run_what_an_owner_cannot(
    lane: ServicesLane,
) -> None:
    # Given three workers, one of which lacks a task
    both = "service.book,service.email"
    # A lease that nobody misses on a slow machine: who may be lost gets no tickets
    policy = {"bridge_policy": "rendezvous", "bridge_lease": 10.0}
    master = lane.leader("m1", tasks=both, settings=policy)
    nodes = [
        lane.service(name, tasks="service.book" if name == "w3" else both, settings=policy, wait=False)
        for name in ("w1", "w2", "w3")
    ]
    for node in nodes:
        node.wait_ready()
    lane.wait_known(master, *nodes)

    def push(first: int) -> None:
        for n in range(first, first + 4):
            for ticket in range(24):
                lane.push(f"T{ticket}", {"n": n}, "service.email" if n % 4 == 3 else "service.book")

    def homes(first: int) -> list[tuple[set[str], set[str]]]:
        """Of each ticket, where its messages from ``first`` ran: those of the one task, and of the other."""
        found = []
        for ticket in range(24):
            ran = [row for row in lane.ran(f"T{ticket}") if row[0] >= first]
            assert [n for n, _, _ in ran] == list(range(first, first + 4))
            of = {task: {node for _, name, node in ran if name == task} for task in both.split(",")}
            found.append((of["service.book"], of["service.email"]))
        return found

    def by_hash(names: str) -> list[tuple[set[str], set[str]]]:
        there = {node.hostname(): name for name, node in zip(("w1", "w2", "w3", "w4"), nodes, strict=False)}
        ring = Ring()
        ring.update(full for full, name in there.items() if name in names)
        everybody = {full for full, name in there.items() if name in names}
        able = {full for full in everybody if there[full] != "w3"}
        tickets = [f"T{ticket}" for ticket in range(24)]
        return [({there[ring.owner(t, everybody)]}, {there[ring.owner(t, able)]}) for t in tickets]

    push(0)
    lane.wait_done(24 * 4)
    three = by_hash("w1 w2 w3")
    assert homes(0) == three
    assert {next(iter(book)) for book, _ in three} == {"w1", "w2", "w3"}

    nodes.append(lane.service("w4", tasks=both, settings=policy))
    lane.wait_known(master, nodes[3])
    push(4)
    lane.wait_done(2 * 24 * 4)
    four = by_hash("w1 w2 w3 w4")
    assert homes(4) == four
    moved = [ticket for ticket in range(24) if three[ticket][0] != four[ticket][0]]
    assert moved
    assert all(four[ticket][0] == {"w4"} for ticket in moved)

    nodes[0].terminate()
    master.wait_for_log(f"consumer {nodes[0].hostname()} is gone", timeout=30)
    push(8)
    lane.wait_done(3 * 24 * 4)
    assert homes(8) == by_hash("w2 w3 w4")
    lane.assert_at_rest()


def test_in_a_rolling_deploy_a_new_task_runs_only_where_it_is_known(lane: ServicesLane) -> None:
    lane.leader("m1", tasks="service.old,service.new")
    old = lane.service("old", tasks="service.old", wait=False)
    new = lane.service("new", tasks="service.old,service.new", wait=False)
    old.wait_ready()
    new.wait_ready()
    lane.wait_consumers(2)

    for n in range(10):
        for ticket in range(10):
            lane.push(f"T{ticket}", {"n": n}, "service.new" if n % 3 == 0 else "service.old")
    lane.wait_done(100)

    for ticket in range(10):
        ran = lane.ran(f"T{ticket}")
        assert [n for n, _, _ in ran] == list(range(10))
        assert {consumer for _, task, consumer in ran if task == "service.new"} == {"new"}
    assert lane.dead_letters() == []


def test_a_message_of_an_unknown_task_waits_and_is_reported_until_a_worker_knows_the_task(lane: ServicesLane) -> None:
    # Given a master and a worker that do not know a task that others already push
    lane.leader("m1", tasks="service.old")
    lane.service("old", tasks="service.old")
    lane.wait_consumers(1)
    for n in range(3):
        lane.push("A", {"n": n}, "service.old" if n == 0 else "service.new")
    lane.push("B", {"n": 0}, "service.old")
    lane.wait_done(2)

    # Then it waits with its ticket, no other ticket waits, and the status names the task
    wait_until(lambda: "service.new" in lane.unserved(), description="the wait to be noted")
    one = lane.unserved()["service.new"]
    assert (one.tickets, one.messages, one.known, one.queue) == (1, 2, False, None)
    assert one.dead_in_ms is not None
    assert 0 < one.dead_in_ms <= 600_000
    [said] = read_status(lane.asking, lane.settings).problems
    assert said.startswith("2 messages of 1 ticket wait for service.new since ")
    assert "no consumer has this task" in said
    assert "can run its task service.new: no consumer has this task" in lane.locate("A").why
    assert lane.ran("B") == [(0, "service.old", "old")]

    # When a worker starts that has the task
    lane.service("new", tasks="service.new")
    lane.wait_done(4)

    # Then the ticket goes on there, in order
    assert lane.ran("A") == [(0, "service.old", "old"), (1, "service.new", "new"), (2, "service.new", "new")]
    wait_until(lambda: lane.unserved() == {}, description="nothing to wait any more")
    assert lane.dead_letters() == []
    lane.assert_at_rest()


def test_a_message_of_an_unknown_task_is_dead_after_a_time_and_its_ticket_goes_on(lane: ServicesLane) -> None:
    lane.leader("m1", tasks="service.old", settings={"bridge_unknown_after": 1.0})
    lane.service("old", tasks="service.old")
    lane.wait_consumers(1)
    for n in range(4):
        lane.push("A", {"n": n}, "service.new" if n in (1, 2) else "service.old")
    lane.wait_done(4)

    assert [n for n, _, _ in lane.ran("A")] == [0, 3]
    letters = lane.dead_letters()
    assert [(letter["reason"], letter["task"], letter["attempts"]) for letter in letters] == [
        ("unknown task", "service.new", "0")
    ] * 2
    assert letters[0]["error"].startswith("service.new: no consumer has this task; it waited for 1.00 s")
    lane.assert_at_rest()


def test_a_message_waits_without_limit_for_workers_that_were_registered_before(lane: ServicesLane) -> None:
    lane.leader("m1", tasks="service.old", settings={"bridge_unknown_after": 0.5})
    lane.service("old", tasks="service.old")
    new = lane.service("new", tasks="service.new")
    lane.wait_consumers(2)
    lane.push("A", {"n": 0}, "service.new")
    lane.wait_done(1)
    new.terminate()
    lane.wait_consumers(1)
    lane.push("A", {"n": 1}, "service.new")

    wait_until(lambda: "service.new" in lane.unserved(), description="the wait to be noted")
    assert lane.unserved()["service.new"].known
    assert "the consumers that can run it are away" in lane.locate("A").why
    holds_for(lambda: lane.dead_letters() == [], description="no dead letter", duration_s=2)
    lane.service("new", tasks="service.new")
    lane.wait_done(2)
    assert [n for n, _, _ in lane.ran("A")] == [0, 1]


def test_the_traits_of_a_task_come_from_the_workers_that_have_it(lane: ServicesLane) -> None:
    # Given a task that only the worker has, with options of its own
    lane.leader("m1", tasks="service.old")
    lane.service("new", tasks="service.new", options={"bridge_max_attempts": 2, "bridge_on_dead": "park"})
    lane.wait_consumers(1)
    first = lane.push("A", {"n": 0, "until": 2}, "service.new")
    lane.push("A", {"n": 1, "until": 9}, "service.new")
    lane.push("A", {"n": 2}, "service.new")
    lane.wait_done(2)

    # Then results are kept, attempts counted, and the ticket is parked, as the worker's app says
    wait_until(
        lambda: lane.redis.get(f"celery-task-meta-{first}"), description="the result of a task that the master has not"
    )
    [letter] = lane.dead_letters()
    assert letter["attempts"] == "2"
    wait_until(lambda: lane.locate("A").parked is not None, description="the ticket to be parked")
    assert [n for n, _, _ in lane.ran("A")] == [0]


def test_names_that_no_message_may_have_are_refused_at_once(lane: ServicesLane) -> None:
    lane.leader("m1", tasks="service.old")
    lane.service("old", tasks="service.old")
    lane.wait_consumers(1)
    for name in ("bridge.bundle", "bridge.what", "celery.ping", "celery.chord_unlock", "x" * 600):
        lane.push("A", {"n": 0}, name)
    lane.push("A", {"n": 1}, "service.old")
    lane.wait_done(6)
    assert [letter["reason"] for letter in lane.dead_letters()] == ["unknown task"] * 5
    assert [n for n, _, _ in lane.ran("A")] == [1]


def test_two_apps_on_one_lane_the_second_says_so_and_stops(lane: ServicesLane) -> None:
    lane.leader("m1", tasks="service.old", title="shop")
    lane.service("w1", tasks="service.old", title="shop")
    worker = lane.service("w2", tasks="billing.book", title="billing", wait=False)
    master = lane.leader("m2", tasks="billing.book", title="billing", wait=False)

    for node in (worker, master):
        assert node.wait(timeout_s=90) == 2
        [said] = [line for line in node.logs().splitlines() if line.startswith("Error: ")]
        assert "belongs to the app 'shop', and this is 'billing'" in said
        assert "Traceback" not in node.logs()
    # The same app under a new name comes in by the old one
    lane.service("w3", tasks="service.old", title="store", settings={"bridge_app": "shop"})
    lane.wait_consumers(2)


def test_settings_that_differ_are_logged_once_on_both_sides_and_shown_by_status(lane: ServicesLane) -> None:
    master = lane.leader("m1", tasks="service.old")
    worker = lane.service("w1", tasks="service.old", settings={"bridge_max_payload": 1000})
    said = "bridge_max_payload is 1000 (there 1048576)"
    worker.wait_for_log(f"this worker differs from the master that leads: {said}", timeout=60)
    master.wait_for_log(f"consumer {worker.hostname()} differs from this master: {said}", timeout=60)
    other = lane.leader("m2", tasks="service.old", settings={"bridge_unknown_after": 5.0})
    other.wait_for_log("differs from the one that led last: bridge_unknown_after is 5.0 (there 600.0)", timeout=60)
    [problem] = read_status(lane.asking, lane.settings).problems
    assert problem.startswith(f"{worker.hostname()}: bridge_max_payload is 1000 (the master: 1048576)")
    holds_for(lambda: worker.logs().count(said) == 1, description="no second line", duration_s=2)
    assert master.logs().count(said) == 1


def test_a_worker_that_is_told_to_consume_other_queues_gets_their_messages(lane: ServicesLane) -> None:
    # Given two workers, one of them for emails
    both, routes = "service.book,service.email", {"service.email": {"queue": "emails"}}
    lane.leader("m1", tasks=both, routes=routes)
    first = lane.service("first", "-Q", "celery,emails", tasks=both, routes=routes)
    second = lane.service("second", "-Q", "celery", tasks=both, routes=routes)
    lane.wait_consumers(2)
    for n in range(2):
        lane.push("T", {"n": n}, "service.email")
    lane.wait_done(2)

    # When an operator moves the emails to the other one
    for command, worker in (("cancel_consumer", first), ("add_consumer", second)):
        arguments = {"queue": "emails"}
        [reply] = lane.app.control.broadcast(command, arguments, [worker.hostname()], reply=True, timeout=10, limit=1)
        assert "ok" in reply[worker.hostname()]
    wait_until(
        lambda: (lane.queues(first), lane.queues(second)) == (["celery"], ["celery", "emails"]),
        description="both to tell what they consume now",
    )
    lane.wait_heard()
    for n in range(2, 6):
        lane.push("T", {"n": n}, "service.email")
    lane.wait_done(6)

    # Then their messages run there, and no worker got a new incarnation
    assert [(n, where) for n, _, where in lane.ran("T")] == [(n, "first" if n < 2 else "second") for n in range(6)]
    assert [worker.logs().count("registered as") for worker in (first, second)] == [1, 1]
