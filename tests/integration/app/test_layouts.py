"""The layout of a split stream in use: it is lost, damaged, refused, or not known to a program that adds messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.app.joining import read_layouts, store_layout
from bridge.routing.errors import LayoutLost
from bridge.routing.keys import layout_key
from bridge.routing.layouts import text_of_layout
from bridge.routing.partitions import Layout, partition_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.app.test_partitions import STREAM, Partitions
from tests.integration.producer.test_producers import shop_of
from tests.integration.servers import run_command
from tests.integration.versions import Versions

KEY = layout_key(STREAM)


@pytest.fixture
def four(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Partitions:
    return Partitions(nodes, own_server, tmp_path, 4)


@pytest.fixture
def chain(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Versions:
    return Versions(nodes, own_server, tmp_path)


def test_masters_store_a_lost_layout_again_and_other_producers_find_it(
    four: Partitions, own_server: EmbeddedServer
) -> None:
    master = four.lane.master("m1")
    wait_until(lambda: all(four.redis.exists(keys.leader) for keys in four.keys), description="leaders")
    text = four.redis.get(KEY)
    four.redis.flushall()
    wait_until(lambda: four.redis.get(KEY) == text, description="the layout")
    master.wait_for_log("the layout of stream ticket_stream was lost, and is stored again")
    # Of an app that does not set the partitions
    other = shop_of(own_server.url)
    ids = other.push_many([("T42", {"n": n}) for n in range(3)])
    assert [f"{id_}@p1" for id_, _ in four.redis.xrange(f"{STREAM}:p1")] == ids
    assert not four.redis.exists(STREAM)
    other.app.bridge.client.close()


@pytest.mark.parametrize(
    ("stream", "join"),
    [("orders:v2", read_layouts), ("orders:v2", store_layout), ("orders", store_layout)],
    ids=["its own, read", "its own, stored", "of an older version, stored"],
)
def test_a_process_that_starts_waits_for_a_lost_layout(
    own_server: EmbeddedServer, join: Callable[..., Any], stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its stream, or of an older version: a master that runs stores it again."""
    app = bridge.install(Celery("shop", broker=own_server.url, set_as_current=False))
    split = stream == "orders"
    app.conf.update(bridge_stream="orders:v2", bridge_follows=["orders"], bridge_partitions=2 if split else 1)
    with own_server.client() as redis, own_server.client() as master:
        # Given a stream whose second partition a producer has not used yet, or one that another app has split
        redis.xgroup_create(f"{stream}:p0", "g", "0", mkstream=True)
        monkeypatch.setattr("bridge.app.joining.LOST_S", 0.2)
        with pytest.raises(LayoutLost, match="its layout is lost"):
            join(app, redis)
        monkeypatch.setattr("bridge.app.joining.LOST_S", 20.0)
        text = text_of_layout(Layout(2))
        store = threading.Timer(0.5, master.set, (layout_key(stream), text))
        store.start()
        join(app, redis)
        store.join()
        assert redis.get(layout_key(stream)) == text.encode()
        redis.flushall()


def test_messages_that_no_partition_has_are_named(four: Partitions, own_server: EmbeddedServer) -> None:
    env = {**four.lane.env, **broker_environment(own_server.url)}
    fields = {"ticket_id": "T42", "payload": "{}"}
    four.task("append").push("T42", {"n": 1})
    right = four.redis.xadd(f"{STREAM}:p1", fields)

    def seen(*arguments: str) -> Any:
        done = run_command(env, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def unread() -> list[str]:
        return [problem for problem in seen("status")["problems"] if "nobody reads" in problem]

    assert right
    assert unread() == []
    assert seen("stream", "list")["unread"] == seen("stream", "info")["unread"] == []
    for stream in (STREAM, STREAM, f"{STREAM}:p9"):
        four.redis.xadd(stream, fields)
    # Another program's
    four.redis.set(f"{STREAM}:p5", "x")
    master = four.lane.master("m1")
    said = [
        "ticket_stream:p9 has 1 message that nobody reads, since ticket_stream has 4 partitions: a program adds them "
        "with XADD; let it choose among ticket_stream:p0 to ticket_stream:p3 by the ticket, push these again, and "
        "delete ticket_stream:p9",
        "ticket_stream has 2 messages that nobody reads, since ticket_stream is split: a program adds them with XADD; "
        "let it choose among ticket_stream:p0 to ticket_stream:p3 by the ticket, push these again, and delete "
        "ticket_stream",
    ]
    for line in said:
        master.wait_for_log(line)
    assert unread() == said
    for found in (seen("stream", "list")["unread"], seen("stream", "info")["unread"]):
        assert [(one["stream"], one["entries"], one["problem"]) for one in found] == [
            (f"{STREAM}:p9", 1, said[0]),
            (STREAM, 2, said[1]),
        ]
    assert "! ticket_stream has 2 messages that nobody reads" in run_command(env, "status").stdout
    assert "nobody reads it" in run_command(env, "stream", "list").stdout
    assert f"unread     {said[0]}" in run_command(env, "stream", "info").stdout
    four.redis.xadd(f"{STREAM}:p4", fields)
    master.wait_for_log("ticket_stream:p4 has 1 message that nobody reads", timeout=30)
    assert master.logs().count("that nobody reads") == 3


@pytest.mark.parametrize("named", [[], ["v1"]], ids=["unsplit", "split-otherwise"])
def test_a_refused_split_changes_nothing_and_starts_nobody(chain: Versions, named: list[str]) -> None:
    has = "3 partitions" if named else "1 partition"
    if named:
        chain.redis.set(layout_key("orders"), '{"partitions":3,"generation":0,"since_ms":1}')
    else:
        chain.push("v1", "T")
    before = sorted(chain.redis.scan_iter())
    said = (
        f"stream orders has {has}, and orders:v2, which follows it, has 4 partitions: versions of a stream need the "
        f"same partitions; set bridge_partitions = {has[0]} while it follows"
    )
    for node in (
        chain.master("m1", wait=False, bridge_partitions=4),
        chain.worker("w1", wait=False, bridge_partitions=4),
    ):
        assert node.wait() != 0
        assert said in node.logs()
        assert "Traceback" not in node.logs()
        # One line that says what to set, and no other one.
        assert node.logs().count("bridge_partitions = ") == 1
        assert sorted(chain.redis.scan_iter()) == before


def test_a_stored_split_and_its_older_version_say_what_can_be_done(chain: Versions) -> None:
    chain.push("v1", "T")
    chain.redis.set(layout_key("orders:v2"), '{"partitions":4,"generation":0,"since_ms":1}')
    before = sorted(chain.redis.scan_iter())
    for node in (
        chain.master("m1", wait=False, bridge_partitions=4),
        chain.worker("w1", wait=False, bridge_partitions=4),
    ):
        assert node.wait() != 0
        # A command names the app, too.
        said = node.logs().replace("`bridge -A tests.apps.versions stream", "`bridge stream")
        assert (
            "versions of a stream need the same partitions; name a new stream in bridge_stream, or `bridge stream "
            "retire orders:v2` first"
        ) in said
        assert "set bridge_partitions" not in node.logs()
        assert sorted(chain.redis.scan_iter()) == before


@pytest.mark.parametrize("why", ["newer", "other", "misplaced"])
def test_a_lane_that_is_refused_leaves_no_layout(four: Partitions, why: str) -> None:
    keys = four.keys[2]
    if why == "misplaced":
        four.redis.set(keys.tickets, "x")
    else:
        four.redis.hset(keys.about, mapping={"format": "99" if why == "newer" else "1", "app": "another"})
    before = sorted(four.redis.scan_iter())
    said = {"newer": "in format 99", "other": "belongs to the app 'another'", "misplaced": "not a hash"}[why]
    nodes: list[Any] = [four.lane.master("m1", wait=False)]
    if why != "misplaced":
        # Only masters use that key.
        nodes.append(four.lane.worker("w1", wait=False))
    for node in nodes:
        assert node.wait() != 0
        assert said in node.logs()
    assert sorted(four.redis.scan_iter()) == before


@pytest.mark.parametrize("damage", [("RPUSH", KEY, "x"), ("SET", KEY, '{"partitions":')], ids=["list", "json"])
def test_a_key_that_is_no_layout_ends_members_with_one_line(four: Partitions, damage: tuple[str, ...]) -> None:
    four.redis.execute_command(*damage)
    for node in (four.lane.master("m1", wait=False), four.lane.worker("w1", wait=False)):
        assert node.wait() != 0
        [line] = [line for line in node.logs().splitlines() if "Error: " in line]
        assert "Error: the layout of stream ticket_stream cannot be read: " in line
        assert " in the key {ticket_stream}/layout; " in line
        assert "Traceback" not in node.logs()


def test_a_layout_that_is_damaged_while_a_master_runs_is_named_once_and_left_alone(four: Partitions) -> None:
    four.lane.worker("w1")
    master = four.lane.master("m1")
    append = four.task("append")
    append.push("T42", {"n": 1})
    four.wait_done(1)
    text = four.redis.get(KEY)
    four.redis.set(KEY, "x")
    master.wait_for_log("stream ticket_stream has no layout that can be read: ")
    # It goes on with what it leads.
    fields = {"ticket_id": "T42", "task": "counter.append", "payload": '{"n": 2}'}
    four.redis.xadd(f"{STREAM}:p{partition_of('T42', 4)}", fields)
    four.wait_done(2)
    assert four.redis.get(KEY) == "x"
    four.redis.delete(KEY)
    wait_until(lambda: four.redis.get(KEY) == text, description="the layout")
    assert master.logs().count("no layout that can be read") == 1
    append.push("T42", {"n": 3})
    four.wait_done(3)
    assert four.lane.log("T42") == [1, 2, 3]
