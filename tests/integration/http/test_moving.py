"""HTTP consumers whose lanes change (versions, a repartition), and beside workers: drains, transfers, lost ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.routing.keys import LaneKeys, layout_copy_key, layout_key
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import MasterNode, NodeYard, broker_environment
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import HttpConsumerUnderTest, HttpLane, call, handler_command
from tests.integration.lanes import APP
from tests.integration.servers import run_command
from tests.integration.versions import APP as VERSIONS_APP
from tests.integration.versions import GROUP, ONLY_V1, Versions
from tests.keycheck import check_keys

Message = dict[str, Any]


def order(url: str, *arguments: str, app: str = APP) -> None:
    done = run_command(broker_environment(url), *arguments, app=app)
    assert done.returncode == 0, done.stderr


def lost_with(consumer: HttpConsumerUnderTest, other: HttpConsumerUnderTest, most: int = 1) -> list[Message]:
    """What ``other`` gets when ``consumer``, which has ``most`` messages, renews its lease no more."""
    assert len(consumer.next(most)) == most
    found: list[Message] = []

    def moved() -> bool:
        assert other.heartbeat().status == 200
        found.extend(other.next(most, 0.2, tuple(message["fence"] for message in found)))
        return bool(found)

    wait_until(moved, description="a message to move", timeout_s=90)
    return found


def holder_of(lane: HttpLane, *consumers: HttpConsumerUnderTest) -> tuple[HttpConsumerUnderTest, HttpConsumerUnderTest]:
    """Which of two consumers has messages in flight, and the other one: that is the leader's choice."""
    first, second = consumers
    wait_until(lambda: lane.in_flight("h1") or lane.in_flight("h2"), description="a dispatch")
    return (first, second) if lane.in_flight(first.name) else (second, first)


def test_a_message_whose_attempt_was_cut_off_says_so(short: HttpLane) -> None:
    lane = short
    consumers = lane.consumer("h1"), lane.consumer("h2")
    lane.push("T1", {"n": 0})
    holder, other = holder_of(lane, *consumers)
    [message] = lost_with(holder, other)
    lost = message["lost"]
    assert (lost["attempt"], lost["consumer"], lost["cause"]) == (1, holder.name, f"lost with {holder.name}")
    assert 0 < lost["fence"] < message["fence"]
    # After a plain failure there is no such member: nothing was cut off.
    with other.beating():
        assert other.acknowledge(message, "failed", error="no").status == 200
        again = other.one()
        assert (again["attempt"], "lost" in again) == (2, False)
        assert other.acknowledge(again).status == 200
        lane.wait_done(1)
    lane.assert_at_rest()


def test_messages_that_were_lost_together_twice_go_out_alone(short: HttpLane) -> None:
    lane = short
    last = lane.consumer("h1", 2)
    for ticket in ("T1", "T2"):
        lane.push(ticket, {"n": 0})
    for number in (2, 3):
        wait_until(lambda last=last: len(lane.in_flight(last.name)) == 2, description="both in flight")  # type: ignore[misc]
        assert len(last.next(2)) >= 1
        assert len(last.next(2)) == 2
        # Nobody renews: it is lost with both.
        last = lane.consumer(f"h{number}", 2)
        with last.beating():
            lane.wait_consumers(1)
    with last.beating():
        done: list[str] = []
        while len(done) < 2:
            alone: Message
            [alone] = last.next(2, 10)
            # While it has a suspect, it gets nothing else.
            assert last.next(2, 0, (alone["fence"],)) == []
            assert alone["lost"]["consumer"] == "h2"
            assert last.acknowledge(alone).status == 200
            done.append(alone["ticket_id"])
        lane.wait_done(2)
    assert sorted(done) == ["T1", "T2"]
    assert lane.count("suspect") >= 2
    lane.assert_at_rest()


def test_tickets_move_between_a_worker_and_an_http_consumer_by_drain_and_transfer(lane: HttpLane) -> None:
    worker = lane.worker("w1")
    lane.push("T1", {"n": 0})
    lane.wait_done(1)
    consumer = lane.consumer("h1", 2)
    with consumer.beating():
        lane.wait_consumers(2)
        # While the worker is drained, all goes to the other one.
        order(lane.server.url, "consumer", "drain", worker.hostname())
        lane.push("T1", {"n": 1})
        message = consumer.one()
        assert (message["ticket_id"], message["payload"]) == ("T1", {"n": 1})
        lane.redis.rpush("log:T1", 1)
        assert consumer.acknowledge(message).status == 200
        lane.wait_done(2)
        lane.push("T1", {"n": 2})
        message = consumer.one()
        order(lane.server.url, "consumer", "resume", worker.hostname())
        # To the worker, between two messages.
        order(lane.server.url, "consumer", "transfer", "h1", "--to", worker.hostname())
        lane.push("T1", {"n": 3})
        lane.redis.rpush("log:T1", 2)
        assert consumer.acknowledge(message).status == 200
        lane.wait_done(4)
        assert consumer.next(1, 0) == []
    assert lane.log("T1") == [0, 1, 2, 3]
    lane.assert_at_rest()


def versions_master(chain: Versions, name: str, port: int, **conf: Any) -> MasterNode:
    env = {"VERSIONS_LEDGER": str(chain.ledger), "VERSIONS_CONF": json.dumps({**chain.conf, **conf})}
    arguments = ("--http", f"{HOST}:{port}")
    return chain.nodes.master(name, app=VERSIONS_APP, env=env, arguments=arguments, ready_text="standing by")


def test_masters_of_an_old_and_a_new_app_answer_one_consumer_alike(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # A deploy that begins a version: the old masters know only the older one.
    chain = Versions(nodes, own_server, tmp_path, {"bridge_lease": 60})
    old, new = free_port(), free_port()
    versions_master(chain, "m1", old, **ONLY_V1)
    chain.wait_leader("v1")
    versions_master(chain, "m2", new)
    for count, (port, other, wants) in enumerate([(old, new, "leave"), (new, old, "go on")], 1):
        consumer = HttpConsumerUnderTest(f"h{count}", 1, port)
        consumer.register()
        assert consumer.heartbeat().body["wants"] == "go on"
        consumer.port = other
        assert consumer.heartbeat().body["wants"] == wants
        chain.push("v1", f"T{count}")
        message = consumer.one()
        assert consumer.extend(message).status == 200
        assert consumer.acknowledge(message).status == 200
        chain.wait_ended("v1", count)
        assert consumer.leave().status == 200
    check_keys(chain.redis, *chain.keys.values(), allowed=("_kombu*",))


def test_a_ticket_is_handled_in_an_older_version_first_and_a_retired_one_is_left(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    chain, port = Versions(nodes, own_server, tmp_path), free_port()
    older = versions_master(chain, "m1", port)
    consumer = HttpConsumerUnderTest("h1", 5, port)
    consumer.register()
    with consumer.beating():
        chain.push("v2", "T2")
        chain.push("v1", "T1")
        chain.push("v2", "T1")
        found: dict[str, Message] = {}

        def got(count: int) -> bool:
            found.update({m["ticket_id"] + m["task"]: m for m in consumer.next(5, 0.2)})
            return len(found) >= count

        wait_until(lambda: got(2), description="the oldest of each ticket")
        assert set(found) == {"T2versions.v2", "T1versions.v1"}
        assert consumer.acknowledge(found["T1versions.v1"]).status == 200
        wait_until(lambda: got(3), description="the message of the newer version")
        for name in ("T1versions.v2", "T2versions.v2"):
            assert consumer.acknowledge(found[name]).status == 200

        def count(version: str) -> int:
            return int(chain.redis.hget(chain.keys[version].counts, "done") or 0)

        wait_until(lambda: (count("v1"), count("v2")) == (1, 2), description="all to be done")
        # A deploy: the app names the older version no more. The new master says so to those that serve both.
        assert consumer.heartbeat().body["wants"] == "go on"
        later = free_port()
        versions_master(chain, "m2", later, bridge_follows=[])
        consumer.port = later
        older.terminate()
        older.wait()
        assert consumer.heartbeat().body["wants"] == "leave"
        assert consumer.leave().status == 200
        consumer.register()
        assert consumer.heartbeat().body["wants"] == "go on"
        order(own_server.url, "stream", "retire", "orders", "--yes", app=VERSIONS_APP)
        chain.push("v2", "T1")
        assert consumer.acknowledge(consumer.one()).status == 200
    assert not chain.redis.exists(chain.keys["v1"].consumers, chain.keys["v1"].outcomes)


def test_consumers_take_part_in_a_repartition_and_keep_the_order(lane: HttpLane) -> None:
    urls = f"http://{HOST}:{lane.ports['m1']}"
    env = {**lane.env, "CELERY_BROKER_URL": lane.server.url}
    handlers = [
        lane.nodes.process(name, handler_command(name, 3, urls), env=env, cwd=ROOT, ready_text="ready")
        for name in ("h1", "h2")
    ]
    lane.wait_consumers(2)
    port = lane.ports["m1"]

    def push(first: int, last: int) -> None:
        some = [{"ticket_id": f"T{t}", "payload": {"n": n}} for n in range(first, last) for t in range(6)]
        assert call(port, "POST", "/api/messages", some).status == 201

    push(0, 20)
    order(lane.server.url, "stream", "repartition", "3")
    push(20, 40)
    wait_until(lambda: all(len(lane.log(f"T{t}")) == 40 for t in range(6)), description="all", timeout_s=180)
    lane.assert_logs(6, 40)
    lane.assert_no_overlap()
    parts = [LaneKeys(f"ticket_stream:g1:p{n}", GROUP) for n in range(3)]
    wait_until(
        lambda: all(sorted(lane.redis.hkeys(one.consumers)) == ["h1", "h2"] for one in parts),
        description="the consumers in all partitions",
    )
    assert all(one.running for one in handlers)
    for one in handlers:
        one.kill("SIGTERM")
        one.wait()
    check_keys(
        lane.redis, *parts, allowed=("log:*", layout_key("ticket_stream"), layout_copy_key("ticket_stream"), "_kombu.*")
    )
