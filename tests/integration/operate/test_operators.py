"""Operators' commands with a real master and real workers, checked by the ledger."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.records import PARKED
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import MasterNode, Node, NodeYard, WorkerNode, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import holds_for, wait_until

APP = """
import os, time
from celery import Celery
import bridge

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(
    bridge_default_task="shop.work", bridge_lease=10, bridge_leader_lease=2, bridge_max_attempts=1,
    bridge_on_dead=os.environ.get("SHOP_ON_DEAD", "skip"),
)

@app.task(bind=True, name="shop.work", ignore_result=True)
def work(self, ticket_id, payload):
    while "gate" in payload and not os.path.exists(payload["gate"]):
        time.sleep(0.01)
    if "until" in payload and not os.path.exists(payload["until"]):
        raise ValueError("not yet")
    time.sleep(payload.get("ms", 0) / 1000)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    self.ticket.effects.rpush(f"at:{ticket_id}", self.request.hostname)
"""

QUICK = ("--without-mingle", "--without-gossip")


class Shop:
    """A lane of an app in a folder of its own, with commands that are processes."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        self.nodes = nodes
        self.folder = folder
        self.url = server.url
        self.keys = LaneKeys("ticket_stream", "concurrency_stream_group")
        self.redis: Redis = server.client(decode_responses=True)
        (folder / "shop.py").write_text(APP)

    def worker(self, name: str, concurrency: int = 2, **env: str) -> WorkerNode:
        arguments = (f"--concurrency={concurrency}", *QUICK)
        return self.nodes.worker(name, app="shop", cwd=self.folder, arguments=arguments, env=env)

    def master(self, name: str, **env: str) -> MasterNode:
        return self.nodes.master(name, app="shop", cwd=self.folder, ready_text="standing by", env=env)

    def wait_leading(self) -> None:
        wait_until(lambda: self.redis.exists(self.keys.leader), description="a leader")

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **broker_environment(self.url), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def start(self, name: str, *arguments: str) -> Node:
        """Starts a command. ``name``: that of its log."""
        command = python_module("bridge", "-A", "shop", *arguments)
        return self.nodes.process(name, command, cwd=self.folder, env=broker_environment(self.url), wait=False)

    def bridge(self, *arguments: str, code: int = 0) -> str:
        """The output of a command that ended with ``code``; with its errors if that is not 0."""
        done = preloaded.run(python_module("bridge", "-A", "shop", *arguments), cwd=self.folder, env=self.env)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.bridge(*arguments, "--json"))

    def push(self, ticket: str, n: int, **payload: Any) -> str:
        fields: Any = {"ticket_id": ticket, "payload": json.dumps({"n": n, **payload})}
        return str(self.redis.xadd(self.keys.stream, fields))

    def log(self, ticket: str) -> list[int]:
        found: Any = self.redis.lrange(f"log:{ticket}", 0, -1)
        return [int(n) for n in found]

    def at(self, ticket: str) -> list[str]:
        found: Any = self.redis.lrange(f"at:{ticket}", 0, -1)
        return [str(name) for name in found]

    def wait_parked(self, ticket: str) -> None:
        """Waits on the server: a command that looks is a process of its own."""

        def state() -> int:
            record: Any = self.redis.hget(self.keys.tickets, ticket)
            return int(json.loads(record)[0]) if record else 0

        wait_until(lambda: state() == PARKED, description=f"{ticket} to be parked")

    def wait_waiting(self, count: int) -> None:
        """Waits until so many messages were read and not dispatched."""

        def waiting() -> int:
            pending: Any = self.redis.xpending(self.keys.stream, self.keys.group)
            return sum(one["pending"] for one in pending["consumers"] if one["name"] == "master")

        wait_until(lambda: waiting() == count, description=f"{count} messages to wait")

    def wait_log(self, ticket: str, expected: list[int]) -> None:
        wait_until(
            lambda: len(self.log(ticket)) >= len(expected), description=f"{ticket} to have {expected}", timeout_s=90
        )
        assert self.log(ticket) == expected

    def wait_dead(self, count: int) -> None:
        wait_until(lambda: self.redis.xlen(self.keys.dead) == count, description=f"{count} dead letters", timeout_s=90)

    def assert_at_rest(self) -> None:
        def undone() -> Any:
            pending: Any = self.redis.xpending(self.keys.stream, self.keys.group)
            left = {
                "pending": pending["pending"],
                "records": self.redis.hgetall(self.keys.tickets),
                "retries": self.redis.zcard(self.keys.retries),
                "outcomes": self.redis.xlen(self.keys.outcomes),
            }
            return {name: value for name, value in left.items() if value}

        wait_until(lambda: not undone(), description="nothing to be left undone")
        names: Any = self.redis.xinfo_consumers(self.keys.stream, self.keys.group)
        assert not [one["name"] for one in names if "/parked/" in one["name"]], "names of parked tickets stay behind"


@pytest.fixture
def shop(own_server: EmbeddedServer, nodes: NodeYard, tmp_path: Path) -> Shop:
    folder = tmp_path / "app"
    folder.mkdir()
    return Shop(nodes, own_server, folder)


@pytest.mark.slow
def test_only_the_parked_ticket_stands_still_also_under_a_new_leader_and_loses_nothing(shop: Shop) -> None:
    shop.worker("w1")
    first = shop.master("m1")
    shop.wait_leading()
    shop.push("A", 0)
    shop.wait_log("A", [0])
    assert shop.bridge("ticket", "park", "A", "--reason", "wrong prices") == "A is parked\n"
    for n in range(1, 4):
        shop.push("A", n)
    for n in range(25):
        shop.push("B", n)
    shop.wait_log("B", list(range(25)))
    assert shop.log("A") == [0]
    seen = shop.json("ticket", "show", "A")
    assert (seen["state"], seen["parked"]["reason"], seen["waiting"]["count"]) == ("parked", "wrong prices", 3)
    assert shop.json("status")["parked"] == 1

    first.kill_main()
    shop.master("m2")
    for n in range(4, 6):
        shop.push("A", n)
    for n in range(25, 50):
        shop.push("B", n)
    shop.wait_log("B", list(range(50)))
    assert shop.log("A") == [0], "the next master lets it go on"
    (listed,) = shop.json("ticket", "list", "--parked")["tickets"]
    assert (listed["ticket_id"], listed["waiting"], listed["cause"]) == ("A", 5, "wrong prices")
    assert "is parked already" in shop.bridge("ticket", "park", "A", code=1)

    assert shop.bridge("ticket", "release", "A") == "A goes on, with 5 messages that waited\n"
    shop.wait_log("A", list(range(6)))
    assert "is not parked" in shop.bridge("ticket", "release", "A", code=1)
    shop.assert_at_rest()


@pytest.mark.slow
def test_a_ticket_that_is_parked_while_it_runs_stands_still_after_what_runs(shop: Shop, tmp_path: Path) -> None:
    shop.worker("w1", 1)
    shop.master("m1")
    gate = tmp_path / "gate"
    shop.push("A", 0, gate=str(gate))
    wait_until(lambda: shop.redis.hexists(shop.keys.tickets, "A"), description="A to run")
    shop.push("A", 1)
    said = shop.bridge("ticket", "park", "A")
    assert "will be parked when 1 message in flight is done" in said
    assert "to be parked after it" in shop.json("ticket", "show", "A")["why"]
    gate.touch()
    shop.wait_parked("A")
    assert shop.json("ticket", "show", "A")["state"] == "parked"
    assert shop.log("A") == [0]
    shop.bridge("ticket", "release", "A")
    shop.wait_log("A", [0, 1])
    shop.assert_at_rest()


@pytest.mark.slow
def test_a_message_whose_death_parked_its_ticket_is_replayed_with_the_whole_order_kept(
    shop: Shop, tmp_path: Path
) -> None:
    shop.worker("w1", SHOP_ON_DEAD="park")
    shop.master("m1", SHOP_ON_DEAD="park")
    until = tmp_path / "until"
    ids = [shop.push("A", 0), shop.push("A", 1, until=str(until)), shop.push("A", 2), shop.push("A", 3)]
    shop.wait_dead(1)
    shop.wait_parked("A")
    assert f"message {ids[1]} is dead" in shop.json("ticket", "show", "A")["parked"]["reason"]
    until.touch()
    assert shop.bridge("dead", "replay", ids[1]) == "replayed 1 dead letter\n"
    assert shop.log("A") == [0], "putting it back releases nothing"
    assert shop.json("ticket", "show", "A")["waiting"]["count"] == 3
    shop.bridge("ticket", "release", "A")
    shop.wait_log("A", [0, 1, 2, 3])
    assert shop.redis.xlen(shop.keys.dead) == 0
    shop.assert_at_rest()


@pytest.mark.slow
def test_replayed_messages_come_before_what_was_not_started_in_the_order_of_their_ids(
    shop: Shop, tmp_path: Path
) -> None:
    # Each message is one Celery message, so messages behind the gate are not dispatched yet.
    shop.worker("w1", 1)
    shop.master("m1")
    until, gate = tmp_path / "until", tmp_path / "gate"
    dead = [shop.push("A", n, until=str(until)) for n in (0, 1)]
    shop.wait_dead(2)
    shop.push("A", 2, gate=str(gate))
    wait_until(lambda: shop.redis.hexists(shop.keys.tickets, "A"), description="2 to run")
    shop.push("A", 3)
    gone = shop.push("C", 0, until=str(until))
    shop.redis.xadd(shop.keys.stream, {"ticket_id": "D", "payload": "{"})
    gate.touch()
    shop.wait_log("A", [2, 3])
    shop.wait_dead(4)
    gate.unlink()
    # Effects are visible before the message is settled. Pushed together, 4 and 5 would travel as one run.
    wait_until(lambda: not shop.redis.hexists(shop.keys.tickets, "A"), description="3 to be settled")
    shop.push("A", 4, gate=str(gate))
    wait_until(lambda: shop.redis.hexists(shop.keys.tickets, "A"), description="4 to run")
    shop.push("A", 5)
    shop.wait_waiting(1)

    shop.redis.xdel(shop.keys.stream, gone)
    until.touch()
    plan = shop.json("dead", "replay", "--ticket", "A", "--dry-run")
    assert [one["message_id"] for one in plan["letters"]] == dead
    said = shop.bridge("dead", "replay", "--all", "--yes", code=1)
    assert "replayed 2 dead letters" in said
    assert "its entry has left the stream" in said
    assert "it still cannot be processed" in said
    gate.touch()
    shop.wait_log("A", [2, 3, 4, 0, 1, 5])
    assert shop.bridge("dead", "drop", "--all", "--yes") == "dropped 2 dead letters\n"
    shop.assert_at_rest()


@pytest.mark.slow
def test_a_replayed_message_has_all_its_attempts_again(shop: Shop, tmp_path: Path) -> None:
    shop.worker("w1", 1)
    shop.master("m1")
    (id_,) = [shop.push("A", 0, until=str(tmp_path / "never"))]
    shop.wait_dead(1)
    before = shop.json("dead", "show", id_)
    shop.bridge("dead", "replay", id_)
    wait_until(lambda: shop.redis.hget(shop.keys.counts, "dead") == "2", description="it to die again")
    after = shop.json("dead", "show", id_)
    assert (before["attempts"], after["attempts"], after["letters"]) == (1, 1, 1)
    assert after["fence"] > before["fence"]
    shop.assert_at_rest()


@pytest.mark.slow
def test_a_drained_consumer_finishes_what_runs_gives_up_the_rest_and_gets_nothing_more(
    shop: Shop, tmp_path: Path
) -> None:
    w1 = shop.worker("w1", 1)
    shop.master("m1")
    gate = tmp_path / "gate"
    shop.push("A", 0, gate=str(gate))
    wait_until(lambda: shop.redis.hexists(shop.keys.tickets, "A"), description="A to run on w1")
    for n in range(20):
        shop.push(f"T{n}", 0)
    w2 = shop.worker("w2", 1)

    drain = shop.start("drain", "consumer", "drain", "w1")
    said = f"{w1.hostname()} takes nothing new; waiting for what it has in flight\n"
    drain.wait_for_log(said)
    for n in range(20):
        shop.wait_log(f"T{n}", [0])
        assert shop.at(f"T{n}") == [w2.hostname()], "what it had not begun goes to the other one"
    states = {one["name"]: one["state"] for one in shop.json("consumer", "list")["consumers"]}
    assert states == {w1.hostname(): "draining", w2.hostname(): "open"}
    assert drain.running, "its task still runs"
    holds_for(lambda: drain.running, description="draining waits for the task", duration_s=0.5)
    gate.touch()
    assert drain.wait() == 0
    *before, last = drain.logs().splitlines()
    assert last == f"{w1.hostname()} is empty"
    assert all(line.endswith("in flight") for line in before), before
    assert shop.log("A") == [0]

    for n in range(20):
        shop.push(f"U{n}", 0)
    for n in range(20):
        shop.wait_log(f"U{n}", [0])
        assert shop.at(f"U{n}") == [w2.hostname()]

    assert shop.bridge("consumer", "resume", "w1") == f"{w1.hostname()} takes work again\n"
    shop.bridge("consumer", "drain", "w2")
    shop.push("V", 0)
    shop.wait_log("V", [0])
    assert shop.at("V") == [w1.hostname()]
    shop.assert_at_rest()


@pytest.mark.slow
def test_a_drain_outlives_its_master_and_ends_with_the_worker(shop: Shop) -> None:
    w1 = shop.worker("w1", 1)
    first = shop.master("m1")
    shop.wait_leading()
    shop.bridge("consumer", "drain", "w1")
    first.kill_main()
    shop.master("m2")
    shop.push("A", 0)
    shop.wait_waiting(1)
    assert shop.json("ticket", "show", "A")["state"] == "waiting"
    holds_for(lambda: not shop.log("A"), description="nobody takes A", duration_s=1.0)
    w1.terminate()
    wait_until(lambda: not w1.running, description="w1 to end")
    shop.worker("w1", 1)
    shop.wait_log("A", [0])
    assert shop.json("consumer", "list")["consumers"][0]["state"] == "open"


@pytest.mark.slow
def test_tickets_move_between_two_of_their_messages_to_whom_an_operator_names(shop: Shop, tmp_path: Path) -> None:
    w1 = shop.worker("w1", 1)
    master = shop.master("m1")
    gate = tmp_path / "gate"
    shop.push("A", 0, gate=str(gate))
    wait_until(lambda: shop.redis.hexists(shop.keys.tickets, "A"), description="A to run on w1")
    w2 = shop.worker("w2", 1)
    # The leader knows it a moment after it was registered.
    master.wait_for_log(f"consumer {w2.hostname()} is here")
    for n in range(1, 5):
        shop.push("A", n)
    shop.wait_waiting(4)
    assert shop.json("ticket", "show", "A")["waiting"]["count"] == 4
    said = shop.bridge("consumer", "transfer", "w1", "--to", "w2", "--ticket", "A")
    assert said == "moved 0 tickets\n1 ticket more when their running messages are done\n"
    gate.touch()
    shop.wait_log("A", [0, 1, 2, 3, 4])
    assert shop.at("A") == [w1.hostname(), *[w2.hostname()] * 4]
    assert "no consumer w9" in shop.bridge("consumer", "transfer", "w1", "--to", "w9", code=1)
    shop.assert_at_rest()


@pytest.mark.slow
def test_an_order_that_no_master_answers_is_withdrawn(shop: Shop) -> None:
    master = shop.master("m1")
    shop.wait_leading()
    assert "no consumer w1" in shop.bridge("consumer", "drain", "w1", code=1)
    master.kill_main()
    # Its leader lease outlives it for a while, and there is no standby.
    said = shop.bridge("ticket", "park", "A", code=1)
    assert "the order was withdrawn" in said or "no master leads" in said
    assert shop.redis.xlen(shop.keys.outcomes) == 0
    assert "no master leads" in shop.bridge("ticket", "park", "A", code=1)


@pytest.mark.slow
def test_replaying_many_messages_survives_a_change_of_leader_in_the_middle(shop: Shop, tmp_path: Path) -> None:
    shop.worker("w1")
    first = shop.master("m1")
    shop.wait_leading()
    until = tmp_path / "until"
    each = 50
    for n in range(each):
        for ticket in "ABC":
            shop.push(ticket, n, until=str(until))
    shop.wait_dead(3 * each)
    shop.master("m2")
    until.touch()
    replay = shop.start("replay", "dead", "replay", "--all", "--yes")
    wait_until(
        lambda: shop.redis.hget(shop.keys.counts, "replayed"), description="the first order to be done", timeout_s=90
    )
    first.kill_main()
    if replay.wait():
        # The answer may be lost with the leader that carried the order out. Then the order is given again.
        assert "before it could answer" in replay.logs()
        shop.bridge("dead", "replay", "--all", "--yes")
    for ticket in "ABC":
        shop.wait_log(ticket, list(range(each)))
    assert shop.redis.xlen(shop.keys.dead) == 0
    # Its effect is visible before it is settled
    wait_until(lambda: int(shop.redis.hget(shop.keys.counts, "done") or 0) >= 3 * each, description="all to be settled")
    assert shop.redis.hget(shop.keys.counts, "done") == str(3 * each)
    shop.assert_at_rest()
