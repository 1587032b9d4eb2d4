"""HTTP consumers with a real master over real HTTP: order, one at a time, fences, leases."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import Answer, HttpLane, call
from tests.integration.lanes import Kept
from tests.integration.servers import run_command
from tests.keycheck import check_keys

Messages = list[dict[str, Any]]


def led(nodes: NodeYard, server: EmbeddedServer, folder: Path, **env: str) -> HttpLane:
    lane = HttpLane(nodes, server, folder, **env)
    lane.master("m1")
    return lane


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[HttpLane]]:
    with closing(Kept(valkey_binary, tmp_path_factory, led)) as made:
        yield made


@pytest.fixture
def lane(kept: Kept[HttpLane]) -> Iterator[HttpLane]:
    """A lane with a master. No lease ends during a test, unless its consumer leaves."""
    yield from kept.lend()


@pytest.fixture(scope="module")
def kept_short(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[HttpLane]]:
    with closing(Kept(valkey_binary, tmp_path_factory, partial(led, COUNTER_LEASE="6"))) as made:
        yield made


@pytest.fixture
def short(kept_short: Kept[HttpLane]) -> Iterator[HttpLane]:
    """A lane with a master, and leases that end soon."""
    yield from kept_short.lend()


def order(lane: HttpLane, *arguments: str) -> None:
    done = run_command(broker_environment(lane.server.url), "consumer", *arguments)
    assert done.returncode == 0, done.stderr


def test_one_consumer_gets_the_messages_of_a_ticket_in_order_and_one_at_a_time(lane: HttpLane) -> None:
    consumer = lane.consumer("h1", 4)
    ids = [lane.push("T1", {"n": n}) for n in range(3)]
    other = lane.push("T2", {"n": 0.1, "text": "é\u2028", "large": 2**70})
    got: Messages = []

    def both() -> bool:
        got.extend(consumer.next(4, 5, tuple(message["fence"] for message in got)))
        return len(got) == 2

    wait_until(both, description="a message of each ticket")
    assert {message["message_id"] for message in got} == {ids[0], other}
    assert consumer.next(4, 0.2, tuple(m["fence"] for m in got)) == []
    by_id = {message["message_id"]: message for message in got}
    assert by_id[other]["payload"] == {"n": 0.1, "text": "é\u2028", "large": 2**70}
    assert (by_id[other]["ticket_id"], by_id[other]["attempt"], by_id[other]["task"]) == ("T2", 1, "counter.append")
    assert by_id[other]["deadline_ms"] > time.time() * 1000
    assert consumer.acknowledge(by_id[other]).status == 200
    lane.wait_done(1)
    for id_ in ids:
        message = consumer.one()
        assert message["message_id"] == id_
        assert lane.in_flight("h1") == [id_]
        assert consumer.acknowledge(message).body == {"message_id": id_, "status": 200}
    lane.wait_done(4)
    lane.assert_at_rest()
    check_keys(lane.redis, lane.keys, allowed=("_kombu.*",))
    assert consumer.leave().status == 200
    wait_until(lambda: not lane.redis.exists(lane.keys.consumers), description="the registration to be gone")
    check_keys(lane.redis, lane.keys, allowed=("_kombu.*",))


def test_a_receive_that_is_repeated_returns_the_same_messages_until_they_are_acknowledged(lane: HttpLane) -> None:
    consumer = lane.consumer("h1", 2)
    for n in range(3):
        lane.push(f"T{n}", {"n": n})
    first = consumer.next(1)
    assert [message["fence"] for message in consumer.next(1)] == [first[0]["fence"]]
    wait_until(lambda: len(consumer.next(9)) == 2, description="two messages, since its concurrency is 2")
    fences = [message["fence"] for message in consumer.next(9)]
    assert len(fences) == 2
    assert first[0]["fence"] in fences
    # It has as many as its concurrency
    assert consumer.next(9, 0.3, tuple(fences)) == []
    assert [message["fence"] for message in consumer.next(9)] == fences
    assert consumer.acknowledge(first[0]).status == 200
    third = consumer.next(9, 30, (*fences,))
    assert third[0]["fence"] not in fences
    assert first[0]["fence"] not in [message["fence"] for message in consumer.next(9)]


def test_outcomes_are_those_of_workers(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")
    id_ = lane.push("T1", {"n": 0})
    lane.push("T1", {"n": 1})
    assert consumer.acknowledge(consumer.one(), "failed", error="no stock", delay=0).status == 200
    again = consumer.one()
    assert (again["message_id"], again["attempt"]) == (id_, 2)
    assert consumer.acknowledge(again, "refused", error="busy", delay=0.1).status == 200
    third = consumer.one()
    assert (third["message_id"], third["attempt"]) == (id_, 2)
    assert third["fence"] > again["fence"]
    assert consumer.acknowledge(third, "dead", error="cannot be").status == 200
    assert consumer.acknowledge(consumer.one()).status == 200
    lane.wait_done(2)
    [letter] = lane.dead_letters()
    assert (letter["message_id"], letter["error"]) == (id_, "cannot be")
    assert (lane.count("done"), lane.count("dead"), lane.count("failed"), lane.count("nacked")) == (1, 1, 2, 1)
    lane.assert_at_rest()


def test_a_message_with_options_of_its_own_says_them_to_its_consumer(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")
    far = int(time.time() * 1000) + 60_000
    options: dict[Any, Any] = {"max_attempts": 2, "timeout": 5000, "expires": far, "priority": 3}
    lane.redis.xadd(lane.keys.stream, {"ticket_id": "T1", "payload": "1", **options})
    lane.push("T1", {"n": 1})
    first = consumer.one()
    assert first["options"] == {"max_attempts": 2, "timeout_ms": 5000, "expires_ms": far}
    assert consumer.acknowledge(first, "failed", error="no stock", delay=0).status == 200
    again = consumer.one()
    # It has begun, so it does not expire any more.
    assert again["options"] == {"max_attempts": 2, "timeout_ms": 5000}
    assert consumer.acknowledge(again, "failed", error="no stock", delay=0).status == 200
    other = consumer.one()
    assert "options" not in other
    assert consumer.acknowledge(other).status == 200
    lane.wait_done(2)
    assert [letter["reason"] for letter in lane.dead_letters()] == ["gave up after 2 attempts"]


def test_a_message_that_expires_in_the_queue_of_its_consumer_is_not_handed_out(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")

    def now_ms() -> int:
        seconds, us = lane.redis.time()
        return int(seconds * 1000 + us // 1000)

    expires = now_ms() + 1500
    lane.redis.xadd(lane.keys.stream, {"ticket_id": "T1", "payload": "1", "expires": expires})
    later = lane.push("T1", {"n": 1})
    wait_until(lambda: lane.redis.llen(lane.keys.queue("h1")), description="the message to be dispatched")
    wait_until(lambda: now_ms() > expires, description="the message to expire")
    got = consumer.one()
    assert got["message_id"] == later
    assert consumer.acknowledge(got).status == 200
    lane.wait_done(2)
    assert [letter["reason"] for letter in lane.dead_letters()] == ["expired before it began"]
    assert lane.count("expired") == 1
    lane.assert_at_rest()


def test_wrong_fences_foreign_ids_and_other_incarnations_change_nothing(lane: HttpLane) -> None:
    consumer, other = lane.consumer("h1"), lane.consumer("h2")
    lane.push("T1", {"n": 0})
    holders: dict[str, Any] = {}

    def given() -> bool:
        for one in (consumer, other):
            for message in one.next(1, 0):
                holders[one.name] = (one, message)
        return bool(holders)

    wait_until(given, description="one of them to get the message")
    [(mine, message)] = holders.values()
    foreign = other if mine is consumer else consumer
    assert mine.acknowledge({**message, "fence": message["fence"] + 1}).status == 409
    assert mine.acknowledge({**message, "message_id": "1-1"}).status == 404
    assert foreign.acknowledge(message).status == 404
    assert foreign.extend(message).status == 409
    assert mine.extend(message).status == 200
    incarnation, mine.incarnation = mine.incarnation, foreign.incarnation
    assert mine.acknowledge(message).status == 404
    mine.incarnation = "f" * 32
    assert (mine.acknowledge(message).status, mine.ask().status, mine.heartbeat().status) == (404, 404, 404)
    mine.incarnation = incarnation
    assert lane.count("done") == 0
    good, wrong = mine.item(message), mine.item({**message, "fence": 1})
    assert mine.acknowledge_all([wrong, good, good, {**good, "outcome": "failed"}]) == [409, 200, 200, 409]
    assert mine.acknowledge(message).status == 200
    assert mine.acknowledge(message, "dead").status == 409
    lane.wait_done(1)
    lane.assert_at_rest()
    assert (lane.count("done"), lane.count("dead")) == (1, 0)


def test_the_acknowledgement_of_a_consumer_whose_lease_is_over_is_refused_and_its_ticket_moves(short: HttpLane) -> None:
    lane = short
    late = lane.consumer("h1")
    lane.push("T1", {"n": 0})
    message = late.one()
    other = lane.consumer("h2")
    moved: Messages = []

    def got() -> bool:
        other.heartbeat()
        moved.extend(other.next(1, 0.2))
        return bool(moved)

    wait_until(got, description="the ticket to move")
    assert moved[0]["message_id"] == message["message_id"]
    assert moved[0]["fence"] > message["fence"]
    assert late.acknowledge(message).status == 410
    assert (late.ask().status, late.heartbeat().status, late.extend(message).status) == (410, 410, 410)
    assert late.leave().status == 410
    assert other.acknowledge(moved[0]).status == 200
    lane.wait_done(1)
    lane.assert_at_rest()


def test_a_consumer_that_leaves_gives_its_tickets_up_at_once(lane: HttpLane) -> None:
    first, second = lane.consumer("h1", 4), None
    lane.push("T1", {"n": 0})
    message = first.one()
    second = lane.consumer("h2")
    assert first.leave().status == 200
    # Long before its lease would end
    moved = second.one(20)
    assert (moved["message_id"], moved["attempt"]) == (message["message_id"], 1)
    assert first.acknowledge(message).status == 410


def test_a_name_has_one_living_incarnation(short: HttpLane) -> None:
    lane = short
    first = lane.consumer("h1")
    body = {"name": "h1", "concurrency": 1}
    # It is not renewed, so the second one waits for the end of its lease
    answer = call(first.port, "POST", "/api/consumers/register", body)
    assert answer.status == 200
    assert not lane.redis.exists(lane.keys.lease(first.incarnation))
    second = replace(first, incarnation=answer.body["incarnation"])
    assert second.heartbeat().body == {"wants": "go on", "lease_ms": 6000}
    assert first.heartbeat().status == 410


def test_a_client_that_went_while_its_registration_waited_is_not_registered(short: HttpLane) -> None:
    lane = short
    first = lane.consumer("h1")
    connection = HTTPConnection(HOST, first.port)
    body = json.dumps({"name": "h1", "concurrency": 1})
    connection.request("POST", "/api/consumers/register", body, {"Content-Type": "application/json"})
    connection.close()
    wait_until(lambda: not lane.redis.exists(lane.keys.lease(first.incarnation)), description="the lease to be over")

    def found() -> str:
        return str(lane.redis.hget(lane.keys.consumers, "h1") or "")

    wait_until(lambda: first.incarnation not in found(), description="the master to notice it")
    assert found() == ""
    assert lane.consumer("h1").heartbeat().status == 200
    assert "a request failed" not in lane.nodes.masters()[0].logs()


def test_any_master_answers_any_call_and_one_that_dies_loses_nothing(lane: HttpLane) -> None:
    lane.master("m2")
    consumer = lane.consumer("h1", 2)
    lane.push("T1", {"n": 0})
    message = consumer.one()
    consumer.port = lane.ports["m2"]
    assert consumer.next()[0]["fence"] == message["fence"]
    assert consumer.heartbeat().status == 200
    lane.nodes.masters()[0].kill_main()
    assert consumer.acknowledge(message).status == 200
    lane.push("T1", {"n": 1})
    wait_until(lambda: consumer.heartbeat().status == 200 and lane.count("done") == 1, description="m2 to lead")
    assert consumer.one()["payload"] == {"n": 1}


def test_what_a_consumer_acknowledged_in_the_stream_itself_is_done(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")
    lane.push("T1", {"n": 0})
    second = lane.push("T1", {"n": 1})
    message = consumer.one()
    # As the pattern has it: a consumer finds its messages under its name, and acknowledges them
    found: Any = lane.redis.xreadgroup(lane.keys.group, "h1", {lane.keys.stream: "0"})
    assert [id_ for id_, _ in found[0][1]] == [message["message_id"]]
    assert lane.redis.xack(lane.keys.stream, lane.keys.group, message["message_id"]) == 1

    def done() -> bool:
        assert consumer.heartbeat().status == 200
        return lane.count("done") == 1

    wait_until(done, description="the message to be done")
    following = consumer.one()
    assert following["message_id"] == second
    assert consumer.acknowledge(message).status in (404, 409)
    # An XACK of somebody else's message makes nothing done
    assert consumer.acknowledge(following).status == 200
    lane.wait_done(2)
    lane.assert_at_rest()
    assert lane.count("tampered") == 0


def test_a_message_that_is_acknowledged_in_the_stream_before_its_receive_comes_again(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")
    with consumer.beating():
        id_ = lane.push("T1", {"n": 0})
        wait_until(lambda: lane.in_flight("h1") == [id_], description="the message to be dispatched")
        assert lane.redis.xack(lane.keys.stream, lane.keys.group, id_) == 1
        message = consumer.one()
        assert message["message_id"] == id_
        assert consumer.acknowledge(message).status == 200
        lane.wait_done(1)
    lane.assert_at_rest()


@pytest.mark.parametrize("takes_the_name", [False, True], ids=["nobody else", "another one"])
def test_a_consumer_whose_registration_was_deleted_is_refused_and_registers_again(
    short: HttpLane, takes_the_name: bool
) -> None:
    # Given a consumer with a message, and no registration of it, as after a command by hand
    lane = short
    first = lane.consumer("h1")
    id_ = lane.push("T1", {"n": 0})
    message = first.one()
    lane.redis.hdel(lane.keys.consumers, "h1")
    later = replace(first)
    if takes_the_name:
        later.register()
    # Then it is told so, and what it had comes again when its lease is over
    assert first.heartbeat().status == 410
    assert lane.redis.exists(lane.keys.lease(first.incarnation))
    if not takes_the_name:
        later.register()
    with later.beating():
        again = later.one()
        assert (again["message_id"], again["fence"] > message["fence"]) == (id_, True)
        assert not lane.redis.exists(lane.keys.lease(first.incarnation))
        assert first.acknowledge(message).status == 410
        assert later.acknowledge(again).status == 200
        lane.wait_done(1)
        lane.assert_at_rest()


def test_a_drained_consumer_gets_nothing_new_and_is_told_to_be_quiet(lane: HttpLane) -> None:
    consumer = lane.consumer("h1")
    with consumer.beating():
        lane.push("T1", {"n": 0})
        message = consumer.one()
        order(lane, "drain", "h1", "--no-wait")
        assert consumer.heartbeat().body["wants"] == "quiet"
        lane.push("T1", {"n": 1})
        lane.push("T2", {"n": 0})
        assert consumer.acknowledge(message).status == 200
        lane.wait_done(1)
        assert consumer.next(1, 0.5) == []
        order(lane, "resume", "h1")
        assert consumer.heartbeat().body["wants"] == "go on"
        for _ in range(2):
            assert consumer.acknowledge(consumer.one()).status == 200
        lane.wait_done(3)
        lane.assert_at_rest()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_an_order_to_drain_holds_when_the_consumer_registers_again_and_ends_when_it_leaves(
    short: HttpLane, is_forgotten: bool
) -> None:
    lane = short
    consumer = lane.consumer("h1")
    order(lane, "drain", "h1")
    # It renews its lease no more, and registers again as soon as it can, or when the leader has forgotten it
    if is_forgotten:
        wait_until(lambda: not lane.redis.hexists(lane.keys.consumers, "h1"), description="it to be forgotten")
    consumer.register()
    assert consumer.heartbeat().body["wants"] == "quiet"
    with consumer.beating():
        other = lane.consumer("h2")
        lane.push("T1", {"n": 0})
        assert other.acknowledge(other.one()).status == 200
        assert other.leave().status == 200
        # The leader has looked at the registrations by now, and goes on to drain it
        lane.push("T1", {"n": 1})
        assert consumer.next(1, 0.5) == []
        assert consumer.heartbeat().body["wants"] == "quiet"
    assert consumer.leave().status == 200
    consumer.register()
    with consumer.beating():
        assert consumer.heartbeat().body["wants"] == "go on"
        assert consumer.acknowledge(consumer.one()).status == 200
        lane.wait_done(2)
        lane.assert_at_rest()


def test_a_transfer_moves_tickets_to_another_consumer_between_two_messages(lane: HttpLane) -> None:
    consumer, other = lane.consumer("h1"), None
    with consumer.beating():
        lane.push("T1", {"n": 0})
        message = consumer.one()
        other = lane.consumer("h2")
        with other.beating():
            # The leader may not have looked at the registrations since then.
            order(lane, "transfer", "h1", "--to", "h2")
            lane.push("T1", {"n": 1})
            assert consumer.acknowledge(message).status == 200
            moved = other.one()
            assert (moved["ticket_id"], moved["payload"]) == ("T1", {"n": 1})
            assert other.acknowledge(moved).status == 200
            lane.wait_done(2)
            lane.assert_at_rest()


def test_a_consumer_that_receives_nothing_gets_no_more(short: HttpLane) -> None:
    lane = short
    silent, other = lane.consumer("h1"), lane.consumer("h2")
    with silent.beating(), other.beating():
        for n in range(4):
            lane.push(f"T{n}", {"n": 0})
        for n in range(4):
            lane.wait_done(n)
            assert other.acknowledge(other.one(60)).status == 200
        lane.wait_done(4)
        assert lane.count("stalled") == 1
        # It receives again, and takes part again
        assert silent.next(1, 0) == []
        lane.assert_at_rest()


def test_on_a_split_stream_a_consumer_serves_all_partitions(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = HttpLane(nodes, own_server, tmp_path, COUNTER_CONF=json.dumps({"bridge_partitions": 4}))
    lane.master("m1")
    consumer = lane.consumer("h1", 3)
    with consumer.beating():
        port = lane.ports["m1"]
        messages = [{"ticket_id": f"T{n}", "payload": {"n": 0}} for n in range(20)]
        pushed = call(port, "POST", "/api/messages", messages).body["message_ids"]
        done: list[str] = []

        def handled() -> bool:
            found = consumer.next(10, 1)
            # Not more than its concurrency, over all partitions
            assert len(found) <= 3
            if found:
                assert set(consumer.acknowledge_all([consumer.item(m) for m in found])) == {200}
            done.extend(message["message_id"] for message in found)
            return len(done) == 20

        wait_until(handled, description="all to be handled", timeout_s=90)
        assert sorted(done) == sorted(pushed)
        assert len({id_.partition("@")[2] for id_ in done}) == 4
    assert consumer.leave().status == 200
    assert consumer.heartbeat().status == 410


def test_with_several_subscriptions_a_consumer_names_one(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    conf = {"bridge_subscriptions": {"one": {"task": "counter.append"}, "two": {"task": "counter.add"}}}
    lane = HttpLane(nodes, own_server, tmp_path, COUNTER_CONF=json.dumps(conf))
    lane.master("m1")
    port = lane.ports["m1"]
    path = "/api/consumers/register"
    refused = call(port, "POST", path, {"name": "h1", "concurrency": 1})
    assert (refused.status, "one, two" in refused.body["detail"]) == (400, True)
    assert call(port, "POST", path, {"name": "h1", "concurrency": 1, "subscription": "three"}).status == 404
    foreign = {"name": "h1", "concurrency": 1, "subscription": "one", "tasks": ["counter.add"]}
    assert call(port, "POST", path, foreign).status == 400
    consumers = [lane.consumer("h1", subscription=name) for name in ("one", "two")]
    pushed = lane.push("T1", {"n": 0})
    for consumer, task in zip(consumers, ("counter.append", "counter.add"), strict=True):
        message = consumer.one()
        assert (message["message_id"], message["task"]) == (pushed, task)
        assert consumer.acknowledge(message).status == 200


def test_registrations_that_are_malformed_are_refused(lane: HttpLane) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "4"}, "concurrency"),
        ({"concurrency": 1001}, "concurrency"),
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "master"}, "name of the masters"),
        ({"name": None}, "name"),
        ({"tasks": []}, "tasks"),
        ({"tasks": ["a\n"]}, "tasks"),
        ({"task": "misspelt"}, "task"),
    ]
    for change, said in wrong:
        body = {"name": "h1", "concurrency": 1, **change}
        answer = call(lane.ports["m1"], "POST", "/api/consumers/register", body)
        assert (answer.status, said in answer.body["detail"]) == (400, True), answer
    assert not lane.redis.exists(lane.keys.consumers)


def test_a_later_receive_and_the_end_of_a_master_end_a_receive_that_waits(lane: HttpLane) -> None:
    # A new master: nobody waits there yet, so it listens to the channel only when the first receive waits.
    new = lane.master("m2")
    consumer = lane.consumer("h1", master="m2")
    channel = lane.keys.dispatched()
    answers: list[Answer] = []

    def listening() -> int:
        [(_, count)] = lane.redis.pubsub_numsub(channel)
        return int(count)

    def wait_for_one() -> None:
        # Longer than this test waits for the end of a receive
        answers.append(consumer.ask(1, 60))

    before = listening()
    with consumer.beating():
        earlier = threading.Thread(target=wait_for_one)
        earlier.start()
        wait_until(lambda: listening() > before, description="the first receive to wait")
        later = threading.Thread(target=wait_for_one)
        later.start()
        wait_until(lambda: answers, description="the first receive to end")
        assert answers[0].body["messages"] == []
        wait_until(lambda: not earlier.is_alive(), description="the thread of the first receive")
        assert later.is_alive()
        # Heartbeats go to the other master from now on
        consumer.port = lane.ports["m1"]
        new.kill("SIGTERM")
        wait_until(lambda: len(answers) == 2, description="the second receive to end")
        assert answers[1].status == 200
        later.join()
        lane.push("T1", {"n": 0})
        assert consumer.acknowledge(consumer.one()).status == 200


def test_workers_and_http_consumers_serve_one_lane_side_by_side(lane: HttpLane) -> None:
    lane.worker("w1")
    consumers = [lane.consumer("h1", 4), lane.consumer("h2", 4)]
    lane.wait_consumers(3)
    [master] = lane.nodes.masters()
    for consumer in consumers:
        # Before the leader knows them, the worker may do everything. An earlier test had consumers of these names.
        master.wait_for_log(f"incarnation {consumer.incarnation}")
    lane.push_many(20, 10, ms=2)
    over_http: dict[str, list[int]] = defaultdict(list)
    beat_at = 0.0

    def handled() -> bool:
        nonlocal beat_at
        for consumer in consumers:
            if time.monotonic() > beat_at:
                assert [one.heartbeat().status for one in consumers] == [200, 200]
                beat_at = time.monotonic() + 0.5
            messages = consumer.next(4, 0.05)
            for message in messages:
                ticket, n = message["ticket_id"], message["payload"]["n"]
                # What came before is there: by whom it was handled does not matter
                assert lane.redis.llen(f"log:{ticket}") == n
                lane.redis.rpush(f"log:{ticket}", n)
                over_http[ticket].append(n)
            if messages:
                assert set(consumer.acknowledge_all([consumer.item(m) for m in messages])) == {200}
        return lane.count("done") == 200

    wait_until(handled, description="all to be done", timeout_s=180)
    lane.assert_logs(20, 10)
    assert over_http
    assert lane.executions() > 0
    lane.assert_at_rest()
