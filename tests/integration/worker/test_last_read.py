"""A worker that stops leaves no reply of its queues unread, and no result of its pool processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue

from bridge.app.installation import install
from bridge.protocol.names import HEADER_REQUEST
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import holds_for, wait_until
from bridge.worker.main.last_read import end_last_read
from tests.integration.lanes import QUICK, LaneUnderTest

APP = "tests.apps.anywhere"
POOLS = ("prefork", "solo", "threads", "gevent")
#: How long kombu's reads last here, in seconds: longer than any test waits.
READ_S = 60
ORDINARY = "ordinary"


class Reading:
    """A consumer of two queues, the worker's own and another one, whose read is under way and whose loop is over."""

    def __init__(self, server: EmbeddedServer, connection: Connection) -> None:
        app = Celery("shop", broker=server.url, set_as_current=False)
        settings = install(app).bridge.settings
        self.own = settings.lane.keys.queue("w1@here")
        self.redis = server.client(decode_responses=True)
        self.got: list[Any] = []
        queues = [Queue(name, Exchange(""), routing_key=name, no_ack=True) for name in (self.own, ORDINARY)]
        self.channel = connection.default_channel
        tasks = Consumer(self.channel, queues, on_message=self.got.append, auto_declare=False)
        tasks.consume()
        self.channel.connection.cycle._register_BRPOP(self.channel)
        self.consumer = SimpleNamespace(task_consumer=tasks, connection_errors=connection.connection_errors)
        self.member: Any = SimpleNamespace(
            app=app,
            lane=settings.lane,
            url=settings.redis_url,
            name="w1@here",
            queue=self.own,
            shared=SimpleNamespace(incarnation="life1"),
        )

    def end(self) -> None:
        end_last_read(self.member, {self.own}, self.consumer)
        assert not self.channel._in_poll

    def push(self, queue: str, name: str) -> None:
        """As the leader pushes to a worker's queue, and a producer to another one."""
        properties = {"delivery_tag": name, "delivery_info": {"exchange": "", "routing_key": queue}}
        text = {"body": "", "headers": {"name": name}, "properties": properties, "content-type": "application/json"}
        self.redis.lpush(queue, json.dumps(text))

    @property
    def arguments(self) -> int:
        """Requests to the worker that were returned to the queue."""
        return sum(HEADER_REQUEST in message.headers for message in self.got)

    def blocked(self) -> int:
        found: Any = self.redis.info("clients")["blocked_clients"]
        return int(found)


@contextmanager
def reading_from(server: EmbeddedServer, read_s: float = READ_S) -> Iterator[Reading]:
    with Connection(server.url, transport_options={"polling_interval": read_s}) as connection:
        yield Reading(server, connection)


@pytest.fixture
def reading(server: EmbeddedServer) -> Iterator[Reading]:
    with reading_from(server) as found:
        yield found


def test_a_read_that_waits_is_ended(reading: Reading) -> None:
    wait_until(lambda: reading.blocked() == 1, description="the read to wait")
    reading.end()
    assert (len(reading.got), reading.arguments) == (1, 1)
    assert reading.redis.llen(reading.own) == 0


def test_a_message_that_the_read_had_taken_is_delivered(reading: Reading) -> None:
    wait_until(lambda: reading.blocked() == 1, description="the read to wait")
    reading.push(reading.own, "a run")
    wait_until(lambda: reading.redis.llen(reading.own) == 0, description="the read to take it")
    reading.push(reading.own, "another")
    reading.end()
    assert [message.headers["name"] for message in reading.got] == ["a run"]
    # The probe is taken back: a worker whose lease is over does not empty its queue
    [left] = reading.redis.lrange(reading.own, 0, -1)
    assert json.loads(left)["headers"]["name"] == "another"


def test_an_ordinary_message_goes_back_to_its_queue(reading: Reading) -> None:
    wait_until(lambda: reading.blocked() == 1, description="the read to wait")
    reading.push(ORDINARY, "a task")
    wait_until(lambda: reading.redis.llen(ORDINARY) == 0, description="the read to take it")
    reading.end()
    assert reading.got == []
    [text] = reading.redis.lrange(ORDINARY, 0, -1)
    assert json.loads(text)["headers"]["name"] == "a task"


def test_on_a_full_server_the_read_ends_by_itself(valkey: EmbeddedServer) -> None:
    with reading_from(valkey, read_s=3) as reading:
        wait_until(lambda: reading.blocked() == 1, description="the read to wait")
        reading.redis.config_set("maxmemory", "1")
        try:
            reading.end()
        finally:
            reading.redis.config_set("maxmemory", "0")
        assert reading.got == []


def test_nothing_is_read_from_a_server_that_is_gone(own_server: EmbeddedServer) -> None:
    with reading_from(own_server) as reading:
        wait_until(lambda: reading.blocked() == 1, description="the read to wait")
        own_server.kill()
        reading.end()
        assert reading.got == []


def test_a_server_that_is_silent_is_not_waited_for_for_ever(own_server: EmbeddedServer) -> None:
    with reading_from(own_server, read_s=3) as reading:
        wait_until(lambda: reading.blocked() == 1, description="the read to wait")
        own_server.pause()
        try:
            reading.end()
        finally:
            own_server.resume()
        assert reading.got == []


def test_a_stopping_worker_takes_nothing_more_while_a_task_runs_on(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    conf = json.dumps({"broker_transport_options": {"polling_interval": READ_S}})
    lane = LaneUnderTest(nodes, own_server, tmp_path, ANYWHERE_CONF=conf)
    master = lane.master("m1")
    workers = [
        nodes.worker(f"w-{pool}", app=APP, arguments=("-c", "1", "-P", pool, *QUICK), env=lane.env, wait=False)
        for pool in POOLS
    ]
    for worker in workers:
        worker.wait_ready()
    lane.wait_known(master, *workers)
    for n in range(len(POOLS)):
        lane.push(f"long{n}", {"n": 0, "gate": "gate"}, "counter.held")
    wait_until(lambda: len(list(lane.ledger.glob("held-*"))) == len(POOLS), description="a task at each")
    wait_until(lambda: blocked_in_brpop(lane), description="a read to be under way, since else nothing is shown")

    for worker in workers:
        worker.send(signal.SIGTERM)

    # A loop that goes on makes another read at once; gevent's takes up to four seconds to see that it shall end.
    wait_until(lambda: not any(blocked_in_brpop(lane) for _ in range(30)), description="all reads to be ended")
    lane.redis.lpush("celery", "{}")
    holds_for(lambda: lane.redis.llen("celery") == 1, description="nobody to take it", duration_s=0.3)
    assert lane.count("done") == 0
    lane.redis.delete("celery")
    (lane.ledger / "gate").touch()
    assert [worker.wait(timeout_s=90) for worker in workers] == [0] * len(POOLS)
    lane.wait_done(len(POOLS))
    assert [lane.log(f"long{n}") for n in range(len(POOLS))] == [[0]] * len(POOLS)
    lane.assert_at_rest()


def test_a_stopping_worker_reads_the_last_results_of_its_pool(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    lane.master("m1")
    going = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    # Given a process of the pool that was sent a task, and has not said yet that it begins
    [process] = going.children()
    process.suspend()
    queue = lane.keys.queue(going.hostname())
    for number, ticket in enumerate("ABC", 1):
        # Each is read when the one before it was dealt with: when the third is, the first was written to the process
        lane.push(ticket, {"n": 0})
        wait_until(
            lambda number=number: lane.redis.hlen(lane.keys.tickets) == number and not lane.redis.llen(queue),  # type: ignore[misc]
            description=f"{ticket} to be read by the worker",
        )
    going.send(signal.SIGTERM)
    wait_until(lambda: not lane.redis.hlen(lane.keys.tickets), description="all of it to be given back")
    process.resume()
    # Then it is not kept waiting until Celery gives up reading what it says, which takes 30 s
    assert going.wait() == 0
    lane.worker("w2", "--concurrency=1")
    lane.wait_done(3)
    assert [lane.log(ticket) for ticket in "ABC"] == [[0], [0], [0]]
    lane.assert_at_rest()


def blocked_in_brpop(lane: LaneUnderTest) -> list[str]:
    """The clients that wait in a read of a queue."""
    found: Any = lane.redis.client_list()
    return [client["addr"] for client in found if client["cmd"] == "brpop" and "b" in client["flags"]]
