"""Floods of dead letters: messages of a task that fails for all tickets are not dispatched, and the entries of a faulty
producer are not read on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

import bridge
from bridge.app.finding import reach
from bridge.audit.audit import audit
from bridge.inspect.status import read_status
from bridge.inspect.ticket_search import locate
from bridge.settings.app import Settings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

TICKETS = 40
#: How many different tickets fail before the circuit breaker opens, by default.
OPENS_AT = 20


def settings_of(lane: LaneUnderTest, **more: Any) -> Settings:
    return Settings.model_validate({"redis_url": lane.server.url, "lane": more})


def asking(server: EmbeddedServer) -> Redis:
    """A client as the commands use it."""
    return reach(bridge.install(Celery("counter", broker=server.url)))


def test_a_task_whose_database_is_down_pauses_and_goes_on_in_order_when_it_is_back(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a task that fails for all tickets, whose messages have one attempt
    conf = {"COUNTER_CONF": json.dumps({"bridge_breaker": {"probe": 1}})}
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_MAX_ATTEMPTS="1", **conf)
    lane.worker("w1", wait=False)
    master = lane.master("m1")
    lane.wait_consumers(1)
    for n in range(2):
        for i in range(TICKETS):
            lane.push(f"D{i}", {"n": n, "until": 99}, "counter.flaky")
    plain = asking(own_server)

    def status_says_open() -> bool:
        return any("circuit breaker is open" in problem for problem in read_status(plain, settings_of(lane)).problems)

    # Then its dispatch stops, and the status says so
    wait_until(status_says_open, description="the status to say that the circuit is open", timeout_s=90)
    master.wait_for_log("its circuit breaker is open", timeout=60)
    dead = lane.count("dead")
    assert dead < OPENS_AT + 2
    waits = next(f"D{i}" for i in range(TICKETS) if i >= OPENS_AT)
    found = str(locate(plain, settings_of(lane).lane, waits, lambda _task: 1))
    assert "is dispatched: its circuit breaker is open" in found
    # Another task flows, and the next leader finds it so
    master.kill_main()
    lane.master("m2")
    lane.push_many(4, 5)
    lane.wait_done(dead + 20)
    assert status_says_open()
    assert lane.count("dead") == dead
    # When the database is back, then all the rest is done, in order
    lane.redis.set("log:fixed", 1)
    lane.wait_done(2 * TICKETS + 20, timeout_s=180)
    assert lane.count("dead") == dead
    for i in range(TICKETS):
        assert lane.log(f"D{i}") in ([0, 1], [1], [])
    assert sum(len(lane.log(f"D{i}")) for i in range(TICKETS)) == 2 * TICKETS - dead
    lane.assert_logs(4, 5)
    lane.assert_no_overlap()
    wait_until(lambda: not status_says_open(), description="the status to forget it")
    # And the audit explains the failed attempts
    verdict = audit(asking(own_server), lane.keys, since="0")
    assert verdict.ok, verdict.examples


def test_at_the_cap_of_dead_letters_nothing_new_is_read_until_some_are_dropped(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a producer of broken messages
    conf = {"COUNTER_CONF": json.dumps({"bridge_dead_max": 30})}
    lane = LaneUnderTest(nodes, own_server, tmp_path, **conf)
    lane.worker("w1", wait=False)
    master = lane.master("m1")
    lane.wait_consumers(1)
    for i in range(30):
        lane.redis.xadd(lane.keys.stream, {"nonsense": i})
    master.wait_for_log("nothing new is read", timeout=30)
    # When more comes, and good messages behind it
    for i in range(15):
        lane.redis.xadd(lane.keys.stream, {"nonsense": i})
    lane.push_many(3, 2)
    # Then they stay unread
    seen = read_status(asking(own_server), settings_of(lane, dead_max=30))
    assert (seen.dead, seen.unread) == (30, 21)
    assert any("bridge_dead_max is 30" in problem for problem in seen.problems)
    # When letters are dropped, then the leader reads on
    lane.redis.xtrim(lane.keys.dead, maxlen=0)
    lane.wait_done(45 + 6)
    lane.assert_logs(3, 2)
    assert lane.redis.xlen(lane.keys.dead) == 15
