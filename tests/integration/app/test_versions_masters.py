"""Which masters may lead a chain of versions, and what they refuse or warn of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.master.lane_versions import LaneVersions
from bridge.routing.keys import LaneKeys, follows_key, layout_key, newer_key
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.versions import GROUP, ONLY_V1, STREAMS, THREE, Versions, check


@pytest.mark.parametrize("follows", [[], ["orders"]], ids=["dropped", "in between"])
def test_a_master_that_does_not_name_a_version_with_undone_messages_is_refused(
    chain: Versions, follows: list[str]
) -> None:
    left = "v2" if follows else "v1"
    master, worker = chain.master("m1"), chain.worker("w1")
    wait_until(lambda: chain.redis.smembers(newer_key("orders")), description="the versions to be noted")
    fields: dict[Any, Any] = {"ticket_id": "T", "payload": '{"n": 1, "fail": 99}', "max_attempts": "1000"}
    chain.redis.xadd(STREAMS[left], fields)
    wait_until(lambda: chain.redis.xpending(STREAMS[left], GROUP)["pending"], description="the message to be read")
    worker.kill()
    master.kill()
    newest = "orders:v3" if follows else "orders:v2"
    other = chain.master("m2", wait=False, bridge_stream=newest, bridge_follows=follows)
    assert other.wait() == 2
    assert f"{STREAMS[left]!r}, an older version of {newest!r}, has messages" in other.logs()


def test_a_master_that_may_not_look_at_a_dropped_version_says_so_once(
    own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    lane: Any = SimpleNamespace(
        settings=SimpleNamespace(keys=LaneKeys("orders:v2", "g")), older=(), partition_streams=frozenset()
    )
    versions = LaneVersions(lane)
    with own_server.client() as redis:
        redis.set(follows_key("orders:v2"), '["orders"]')
        redis.execute_command("ACL", "SETUSER", "low", "reset", "on", ">pw", "+@all", "~{orders:v2}*", "~orders:v2*")
        versions.read_dropped(redis)
        assert not caplog.records
        with own_server.client(username="low", password="pw") as low:
            for _ in range(2):
                versions.read_dropped(low)
        redis.execute_command("ACL", "DELUSER", "low")
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("this Redis user may not look at orders, an older version of orders:v2")


def test_old_processes_beside_new_ones_in_a_rolling_deploy(chain: Versions) -> None:
    chain.worker("w1", **ONLY_V1)
    old = chain.master("m1", **ONLY_V1)
    chain.wait_leader("v1")
    chain.worker("w2")
    new = chain.master("m2")
    for n in range(20):
        chain.push("v1", f"T{n % 4}", ms=10)
        chain.push("v2", f"T{n % 4}", ms=10)
    # A master that knows only the older version leads it: the newer one's messages wait.
    chain.wait_ended("v1", 20)
    assert chain.count("v2") == 0
    assert chain.redis.get(chain.keys["v2"].leader) is None
    assert "leads the older version orders: if its app does not name both, stop it" in chain.why("T0")
    # The master that waits for it says so, too: it may be that two apps do not know of each other.
    new.wait_for_log("leads the older version orders: if its app does not name both, stop it", timeout=30)
    old.terminate()
    chain.wait_all()
    check(chain)
    # An old master comes back and leads the older version again, while a message of the newer one runs.
    chain.push("v2", "X", gate="go on")
    wait_until(lambda: chain.started("X"), description="v2 in flight")
    back = chain.master("m3", **ONLY_V1)
    new.kill()
    back.wait_for_log("leading", timeout=30)
    chain.push("v1", "X")
    chain.push("v1", "other")
    wait_until(lambda: chain.log("other"), description="another ticket")
    assert chain.started("X") == ["v2:0"]
    assert "waits for a message in flight in the newer version orders:v2" in chain.why("X", **ONLY_V1)
    chain.open("go on")
    chain.master("m4")
    back.terminate()
    chain.wait_all()
    assert chain.log("X") == ["v2:0", "v1:0"]
    chain.check_one_at_a_time()


def test_streams_that_follow_each_other_are_refused(chain: Versions) -> None:
    chain.master("m1")
    chain.wait_leader("v2")
    circle = chain.master("m2", wait=False, bridge_stream="orders", bridge_follows=["orders:v2"])
    assert circle.wait() != 0
    assert "streams cannot follow each other" in circle.logs()
    late = chain.master("m3", wait=False, bridge_stream="orders:v3", bridge_follows=["orders:v2", "orders"])
    assert late.wait() != 0
    assert "streams cannot follow each other" in late.logs()
    assert not chain.redis.exists(chain.keys["v3"].leader)


def test_masters_of_before_and_after_a_drop_never_work_beside_each_other(chain: Versions) -> None:
    """A master of before comes back, leads the dropped version again, and has a message there."""
    chain.conf.update(THREE)
    chain.worker("w1")
    before = chain.master("m1")
    chain.push("v1", "T")
    chain.push("v3", "T")
    chain.wait_all()
    after = chain.master("m2", bridge_follows=THREE["bridge_follows"][1:])
    before.kill()
    after.wait_for_log("on orders:v3: leading", timeout=30)
    chain.push("v3", "T")
    chain.wait_ended("v3", 2)
    chain.push("v1", "T", ms=1500)
    chain.push("v3", "T")
    chain.push("v3", "other")
    wait_until(lambda: chain.log("other"), description="another ticket")
    wait_until(lambda: "orders', an older version" in after.logs(), description="the warning")
    assert chain.log("T") == ["v1:0", "v3:0", "v3:1"]
    chain.master("m3")
    chain.wait_all()
    assert chain.log("T") == ["v1:0", "v3:0", "v3:1", "v1:1", "v3:2"]
    chain.check_one_at_a_time()
    assert after.running


def test_a_master_warns_of_an_older_stream_that_is_not_there(chain: Versions) -> None:
    chain.push("v1", "T")
    chain.worker("w1", bridge_follows=["order"])
    typo = chain.master("m1", bridge_follows=["order"])
    assert "bridge_follows names 'order', and there is no such stream: is the name right?" in typo.logs()
    chain.wait_leader("v2")
    typo.terminate()
    chain.redis.delete("order")
    for name, follows in (("m2", ["order"]), ("m3", ["orders"])):
        again = chain.master(name, bridge_follows=follows)
        assert "no such stream" not in again.logs(), "it was led before, or is there"
        again.terminate()


def test_a_master_whose_group_has_another_name_on_an_older_version_warns_or_is_refused(chain: Versions) -> None:
    worker, master = chain.worker("w1", **ONLY_V1), chain.master("m1", **ONLY_V1)
    chain.push("v1", "T", ms=1)
    chain.wait_ended("v1", 1)
    chain.operate("ticket", "park", "T", **ONLY_V1)
    chain.push("v1", "T")
    wait_until(lambda: chain.redis.xpending("orders", GROUP)["pending"], description="the message to be read")
    master.terminate()
    renamed = chain.master("m2", wait=False, bridge_group="renamed")
    assert renamed.wait() == 2
    assert f"the group {GROUP!r} of 'orders', an older version, has messages that are not done" in renamed.logs()
    assert not chain.redis.exists("{orders}:renamed:about")
    master = chain.master("m3", **ONLY_V1)
    chain.operate("ticket", "release", "T", **ONLY_V1)
    chain.wait_ended("v1", 2)
    master.terminate()
    worker.terminate()
    warned = chain.master("m4", bridge_group="renamed")
    assert f"bridge_follows names 'orders', which has the group {GROUP}, and not renamed" in warned.logs()


def test_a_master_is_refused_while_one_leads_that_knows_nothing_of_the_older_version(chain: Versions) -> None:
    """The leader would not compare what the other one does in the older version."""
    unaware = chain.master("m1", bridge_follows=[])
    chain.wait_leader("v2")
    refused = chain.master("m2", wait=False)
    assert refused.wait() == 2
    assert "another master leads 'orders:v2', and its app does not name 'orders' in bridge_follows" in refused.logs()
    unaware.terminate()
    chain.worker("w1")
    for name in ("m3", "m4"):
        # The second one comes before the first one has noted what it follows.
        chain.master(name, wait=False)
    chain.push("v1", "T")
    chain.push("v2", "T")
    chain.wait_all()
    check(chain)


def test_versions_with_different_partitions_are_refused(chain: Versions) -> None:
    chain.push("v1", "T")
    before = sorted(chain.redis.scan_iter())
    split = chain.master("m1", wait=False, bridge_partitions=4)
    assert split.wait() != 0
    assert "stream orders has 1 partition, and orders:v2, which follows it, has 4 partitions" in split.logs()
    assert [key for key in chain.redis.scan_iter() if key not in before and "/layout" not in key] == []


def test_an_older_version_that_a_master_made_has_the_layout_of_the_newest(chain: Versions) -> None:
    chain.conf["bridge_partitions"] = 3
    chain.master("m1").terminate()
    assert json.loads(str(chain.redis.get(layout_key("orders"))))["partitions"] == 3
    chain.redis.delete(layout_key("orders"))
    chain.master("m2")
    chain.worker("w1")
    assert json.loads(str(chain.redis.get(layout_key("orders"))))["partitions"] == 3


def test_members_come_one_after_the_other_to_a_split_stream_whose_older_version_is_new(chain: Versions) -> None:
    chain.conf["bridge_partitions"] = 3
    first = chain.master("m1")
    chain.wait_for_lanes(3)
    worker = chain.worker("w1", wait=False)
    chain.master("m2")
    worker.wait_ready()
    assert chain.redis.get(layout_key("orders"))
    first.kill()
    chain.push_split("v2", "T", 3)
    chain.push_split("v1", "T", 3)
    wait_until(lambda: len(chain.log("T")) == 2, description="both messages")
