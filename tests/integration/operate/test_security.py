"""A lane with a Redis user for each role, which may do what it needs, and no more."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import VERSION
from redis import Redis

import bridge
from bridge.app.effect_arguments import COMMANDS
from bridge.link.connections import client
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import HttpConsumerUnderTest
from tests.integration.lanes import APP, OF_EACH_SERVER, QUICK, LaneUnderTest
from tests.integration.proxies import Proxy
from tests.integration.servers import OWN_KEYS, Watched, make_user, rules_of, run_command, url_of

ROLES = ("producer", "master", "worker", "operator")

#: Granted commands that one lane does not need in this test, and why they are granted.
CONNECTING = {"select"}  # a database other than 0
OUT_OF_MEMORY = {"xdel"}  # what lets a script go on on a full server
KOMBU_ENDS = {"smembers", "srem", "punsubscribe", "zrem"}  # how kombu ends a queue
ORDINARY_TASKS = {"hdel", "lpush", "rpush", "watch", "unwatch", "zrem", "zrevrangebyscore"}  # acknowledged, restored
RESULTS = {"mget", "subscribe", "unsubscribe", "expire", "get"}  # of groups and chords, and waiting for a result
EFFECTS = {command.lower() for command in COMMANDS}
#: What is asked before APPEND, SETBIT and XADD are applied: whether the server would refuse them.
EFFECTS |= {"getbit", "strlen", "xinfo|stream"}
#: Late messages that are read again, and delayed entries that were changed by hand.
LATE_AGAIN = {"zmscore", "zscan"}
#: With which masters share the lanes of an app. The app here has one lane.
SEVERAL_LANES = {"zremrangebyscore", "zscore"}
RARE = {
    "hkeys",
    "lindex",
    "rpop",
    "rpush",
    "expire",
    "xgroup|delconsumer",
    "xgroup|setid",
    "hmget",
}  # lost messages, orders
LONG_POLLS_END = {"unsubscribe"}  # a minute after the last one
DELAYED_PUSH = {"time"}  # the server's clock says when a delay is over
LOST_LAYOUT = {"xinfo|groups"}  # beside a key with the name of a partition
DEAD_NOTICES = {"hsetnx", "xrevrange"}  # of dead letters, for a receiver by HTTP
#: Where the server does not know how many entries the group has read.
COUNT_UNKNOWN = {"xinfo|stream"}
NOT_ON_THE_WAY = {
    "producer": CONNECTING | RESULTS | LOST_LAYOUT | DELAYED_PUSH | {"ping"},
    "master": CONNECTING
    | DEAD_NOTICES
    | OUT_OF_MEMORY
    | KOMBU_ENDS
    | RARE
    | SEVERAL_LANES
    | LONG_POLLS_END
    | LATE_AGAIN
    | COUNT_UNKNOWN
    | {"ping"},
    "worker": CONNECTING | OUT_OF_MEMORY | KOMBU_ENDS | ORDINARY_TASKS | RESULTS | EFFECTS | {"exists", "pttl"},
    "operator": CONNECTING | {"ping", "xadd", "blpop", "xdel", "hkeys", "lindex", "xread", "hlen", "xinfo|stream"},
}
#: Commands that need no permission, or may be refused.
UNGRANTED = {"auth", "hello", "client|setinfo"}


class GuardedLane:
    """A lane in which master, worker, producer and operator are different users of the server."""

    def __init__(self, server: EmbeddedServer, folder: Path, stack: ExitStack) -> None:
        self.server = server
        self.folder = folder
        self.admin: Redis = stack.enter_context(server.client(decode_responses=True))
        own = [word for pattern in OWN_KEYS for word in ("--own-keys", pattern)]
        make_user(self.admin, "producer")
        make_user(self.admin, "master")
        make_user(self.admin, "worker", *own)
        make_user(self.admin, "operator")
        self.port = free_port()
        self.proxies = {
            role: stack.enter_context(Proxy(server.port, source=f"127.0.0.{n}"))
            for n, role in enumerate(ROLES, start=2)
        }
        self.lane = LaneUnderTest(
            stack.enter_context(closing(ProcessYard(folder, url_of("worker", self.proxies["worker"].port)))),
            server,
            folder,
        )

    def env(self, role: str) -> dict[str, str]:
        return {**self.lane.env, **broker_environment(url_of(role, self.proxies[role].port))}

    def start(self) -> None:
        self.lane.nodes.master(
            "m1",
            app=APP,
            arguments=("--http", f"{HOST}:{self.port}"),
            env=self.env("master"),
            ready_text="standing by",
            wait=False,
        )
        self.worker = self.lane.nodes.worker(
            "w1", app=APP, arguments=("--concurrency=2", *QUICK, "-E"), env=self.env("worker")
        )
        self.lane.wait_consumers(1)

    def connect(self, role: str) -> Redis:
        return client(url_of(role, self.server.port))

    def command(self, role: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = run_command(self.env(role), *arguments)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def denials(self) -> list[str]:
        """The commands that the server refused, with their user."""
        found: Any = self.admin.acl_log()
        refusals = [(entry["username"], entry["reason"], entry["object"]) for entry in found]
        # Clients send their version, and go on if that is refused. (6.2 logs no subcommand.)
        return [" ".join(one) for one in refusals if one[2] not in ("client", "client|setinfo")]


@pytest.fixture(params=OF_EACH_SERVER)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedLane]:
    server: EmbeddedServer = request.getfixturevalue(request.param)
    with server.client() as admin:
        # The server may have refused commands of other tests of this process.
        admin.execute_command("ACL", "LOG", "RESET")
    with ExitStack() as stack:
        made = GuardedLane(server, tmp_path, stack)
        yield made
        print("refused:", *made.denials(), sep="\n  ")
    with server.client() as admin:
        admin.acl_deluser(*(f"bridge-{role}" for role in ROLES))
        admin.execute_command("ACL", "LOG", "RESET")


def test_the_printed_permissions_suffice_for_a_whole_lane(guarded: GuardedLane) -> None:
    lane = guarded.lane
    with Watched(guarded.server, guarded.proxies) as watched:
        guarded.start()
        with guarded.connect("producer") as producer:
            for n in range(10):
                for ticket in range(10):
                    fields: dict[Any, Any] = {"ticket_id": f"T{ticket}", "payload": json.dumps({"n": n})}
                    producer.xadd(lane.keys.stream, fields)
        rows = guarded.folder / "rows.jsonl"
        rows.write_text('{"ticket_id": "F", "task": "counter.flaky", "payload": {"n": 0, "until": 2}}\n' * 1)
        guarded.command("producer", "push", str(rows))
        shop = bridge.install(Celery("shop", broker=url_of("producer", guarded.proxies["producer"].port)))

        @shop.task(name="counter.add", lazy=False, shared=False)
        def add(ticket_id: str, payload: Any) -> None:
            """Only the worker runs it."""

        again = [add.push_many([("M", {"n": 1})], idempotency_key="once") for _ in range(2)]
        assert again[0] == again[1]
        add.push_many([("M", {"n": 2})])
        # One that others overtake for a moment, and one that its ticket waits for
        due = int(time.time() * 1000) + 300
        lane.redis.xadd(lane.keys.stream, {"ticket_id": "L", "payload": '{"n": 0}', "due": due})
        lane.redis.xadd(lane.keys.stream, {"ticket_id": "W", "payload": '{"n": 0}', "due": due, "hold": 1})
        lane.push("S", {"n": 1}, "counter.add")
        lane.push("D", {"n": 1, "until": 9}, "counter.flaky")
        lane.wait_done(107)
        lane.assert_logs(10, 10)
        lane.assert_at_rest()

        # A killed worker's tickets are taken back by the master
        lane.push_many(10, 10, ms=15, first=10)
        wait_until(lambda: lane.count("done") > 114, description="some more to be done")
        guarded.worker.kill_main()
        guarded.worker.wait()
        guarded.worker.start()
        lane.wait_done(207)
        lane.assert_logs(10, 20)

        [letter] = lane.dead_letters()
        for arguments in (
            ["status"],
            ["ticket", "show", "T1"],
            ["ticket", "list"],
            ["ticket", "park", "T1"],
            ["ticket", "release", "T1"],
            ["pending"],
            ["pending", "--limit", "5"],
            ["delayed", "list"],
            ["dead", "list"],
            ["dead", "show", letter["message_id"]],
            ["dead", "replay", letter["message_id"]],
            ["consumer", "list"],
            ["subscription", "list"],
            ["consumer", "drain", guarded.worker.hostname()],
            ["consumer", "resume", guarded.worker.hostname()],
            ["audit"],
        ):
            done = guarded.command("operator", *arguments, check=False)
            assert "permission" not in done.stderr, done.stderr
            assert "Traceback" not in done.stderr
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        lane.wait_done(208)
        _consume_over_http(guarded)
        lane.wait_done(209)

        # A state is read, and a worker that stops empties its queue
        lane.push("K", {"n": 0}, "counter.folds")
        lane.wait_done(210)
        assert guarded.worker.terminate() == 0
    assert guarded.denials() == []
    for role in ROLES:
        granted = {word.removeprefix("+") for word in rules_of(role) if word.startswith("+")}
        used = watched.commands[role]
        if VERSION >= (5, 7):
            # All other granted commands must have a reason here. Kombu 5.6 and its redis-py use fewer of them.
            assert granted - used - NOT_ON_THE_WAY[role] == set(), role
        # Without the other commands, the server would have refused a command above.
        assert used - granted - UNGRANTED == set()


def _consume_over_http(guarded: GuardedLane) -> None:
    """The life of an HTTP consumer."""
    consumer = HttpConsumerUnderTest("h1", 1, guarded.port, {"tasks": ["only.over.http"]})
    consumer.register()
    # A poll that waits subscribes. One that finds a message at once does not.
    assert consumer.next(1, 0.2) == []
    guarded.lane.push("T1", {"n": 0}, task="only.over.http")
    message = consumer.one()
    assert consumer.heartbeat().status == 200
    assert consumer.acknowledge({**message, "fence": 1}).status == 409
    assert consumer.acknowledge(message).status == 200
    assert consumer.leave().status == 200


#: Commands beyond each role's part. ``%`` stands for the lane's prefix.
BEYOND: dict[str, list[list[str]]] = {
    "producer": [
        ["XADD", "another_stream", "*", "a", "b"],
        ["XRANGE", "ticket_stream", "-", "+"],
        ["XREADGROUP", "GROUP", "concurrency_stream_group", "x", "STREAMS", "ticket_stream", ">"],
        ["XDEL", "ticket_stream", "1-1"],
        ["XTRIM", "ticket_stream", "MAXLEN", "0"],
        ["DEL", "ticket_stream"],
        ["EVAL", "return 1", "0"],
        ["HSET", "{ticket_stream}/push:run:x", "a", "b"],
        ["XADD", "%:outcomes", "*", "i", "x", "o", "[]"],
        ["HGETALL", "%:tickets"],
        ["LPUSH", "celery", "{}"],
        ["PUBLISH", "/0.celery.pidbox", "{}"],
    ],
    "master": [
        ["XADD", "another_stream", "*", "a", "b"],
        ["XGROUP", "DESTROY", "ticket_stream", "concurrency_stream_group"],
        ["HGETALL", "{another}:g:tickets"],
        ["LPUSH", "celery", "{}"],
        ["GET", "celery-task-meta-1-1"],
        ["PUBLISH", "/0.celery.pidbox", "{}"],
        ["RPUSH", "log:T0", "1"],
    ],
    "worker": [
        ["XADD", "ticket_stream", "*", "a", "b"],
        ["XACK", "ticket_stream", "concurrency_stream_group", "1-1"],
        ["XGROUP", "DESTROY", "ticket_stream", "concurrency_stream_group"],
        ["XRANGE", "ticket_stream", "-", "+"],
        ["DEL", "ticket_stream"],
        ["HGETALL", "{another}:g:tickets"],
        ["RPUSH", "another:T0", "1"],
        ["SUBSCRIBE", "another"],
    ],
    "operator": [
        ["DEL", "ticket_stream"],
        ["XTRIM", "ticket_stream", "MAXLEN", "0"],
        ["XGROUP", "DESTROY", "ticket_stream", "concurrency_stream_group"],
        ["EVAL", "return 1", "0"],
        ["HSET", "%:tickets", "T", "x"],
        ["XRANGE", "another_stream", "-", "+"],
        ["LRANGE", "log:T0", "0", "-1"],
        ["PUBLISH", "/0.celery.pidbox", "{}"],
    ],
}

#: Commands that no role may use.
NOBODY = [
    ["FLUSHALL"],
    ["FLUSHDB"],
    ["KEYS", "*"],
    ["SCAN", "0"],
    ["CONFIG", "GET", "*"],
    ["CONFIG", "SET", "maxmemory", "1"],
    ["ACL", "LIST"],
    ["ACL", "SETUSER", "x", "on"],
    ["CLIENT", "KILL", "TYPE", "normal"],
    ["CLIENT", "LIST"],
    ["SHUTDOWN"],
    ["REPLICAOF", "NO", "ONE"],
    ["SCRIPT", "FLUSH"],
    ["MONITOR"],
    ["MODULE", "LIST"],
    ["SAVE"],
    ["RENAME", "ticket_stream", "x"],
]


@pytest.mark.parametrize("role", ROLES)
def test_no_more_than_the_printed_permissions_is_possible(role: str, guarded: GuardedLane) -> None:
    prefix = guarded.lane.keys.prefix
    with guarded.connect(role) as connected:
        # A role that could do this with some keys could also do it here
        for arguments in [*BEYOND[role], *NOBODY]:
            with pytest.raises(redis.exceptions.NoPermissionError):
                connected.execute_command(*(word.replace("%", prefix) for word in arguments))
        assert connected.ping()
        if role in ("master", "worker"):
            # A script is no way around. (6.2 wraps the error in the script's own.)
            with pytest.raises(redis.ResponseError, match=r"permission|can't run this command"):
                connected.eval("return redis.call('FLUSHALL')", 0)


def test_an_operator_adds_and_removes_no_subscription(guarded: GuardedLane) -> None:
    group = guarded.lane.keys.group

    def refused(*arguments: str) -> None:
        done = guarded.command("operator", "subscription", *arguments, check=False)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, line.startswith("Error: this Redis user may not do that: ")) == (1, True), line

    refused("add", group)
    assert not guarded.admin.exists("ticket_stream")
    guarded.admin.xgroup_create("ticket_stream", group, "0", mkstream=True)
    refused("remove", group, "--yes")
    assert [one["name"] for one in guarded.admin.xinfo_groups("ticket_stream")] == [group]


def test_a_user_that_was_printed_has_no_password_to_log_in_with(valkey: EmbeddedServer) -> None:
    arguments = rules_of("worker", "--user", "somebody")
    with valkey.client() as admin:
        try:
            admin.execute_command(*arguments)
            with pytest.raises(redis.AuthenticationError), client(f"redis://somebody:@{HOST}:{valkey.port}/0") as one:
                one.ping()
        finally:
            admin.acl_deluser("somebody")
