"""Versions of a stream: a message of a newer one waits until no older one has an undone message of its ticket."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.link.connections import client
from bridge.operate.orders import give
from bridge.protocol.orders import Replay
from bridge.routing.errors import StreamRetired
from bridge.routing.keys import follows_key, layout_key, newer_key
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.chaos.run import default_seed
from tests.integration.versions import GROUP, ONLY_V1, STREAMS, THREE, Versions


@pytest.fixture
def chain(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Versions:
    return Versions(nodes, own_server, tmp_path)


def check(chain: Versions) -> None:
    chain.check_one_at_a_time()
    chain.check_older_first()
    chain.check_each_version_in_order()
    chain.check_at_rest()


def test_each_version_has_its_own_task_and_the_older_goes_first(chain: Versions) -> None:
    for n in range(5):
        for ticket in ("A", "B"):
            chain.push("v2", ticket)
            chain.push("v1", ticket, fail=1 if n == 2 else 0, ms=5)
    chain.push("v2", "C")
    chain.worker("w1")
    chain.master("m1")
    chain.wait_all()
    for ticket in ("A", "B"):
        assert chain.log(ticket) == [f"{version}:{n}" for version in ("v1", "v2") for n in range(5)]
    assert chain.log("C") == ["v2:0"]
    check(chain)


def test_a_producer_of_an_older_version_finds_the_result_of_its_message(chain: Versions) -> None:
    # The ids are equal on purpose: each producer looks under the name of its own stream.
    id_ = "1700000000000-0"
    for stream, ticket in (("orders", "OLD"), ("orders:v2", "NEW")):
        fields: dict[Any, Any] = {"ticket_id": ticket, "task": "versions.answer", "payload": '{"n": 1}'}
        chain.redis.xadd(stream, fields, id=id_)
    chain.master("m1")
    chain.worker("w1")
    for stream, ticket in (("orders", "OLD"), ("orders:v2", "NEW")):
        producer = Celery("versions", broker=chain.url, backend=chain.url, set_as_current=False)
        bridge.install(producer)
        producer.conf.bridge_stream = stream
        assert producer.AsyncResult(id_).get(timeout=20) == f"{ticket} 1"


def test_a_message_waits_for_one_in_flight_and_for_one_in_backoff(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "T", ms=400)
    chain.push("v1", "T", fail=2)
    wait_until(lambda: chain.started("T"), description="v1 in flight")
    chain.push("v2", "T")
    chain.push("v2", "other")
    chain.wait_all()
    assert chain.log("T") == ["v1:0", "v1:1", "v2:0"]
    assert chain.executions("other")[0][0] < chain.executions("T")[0][1], "another ticket waited, too"
    check(chain)


def test_a_message_waits_for_a_parked_ticket_until_it_is_released(chain: Versions) -> None:
    chain.conf["bridge_on_dead"] = "park"
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "T", fail=9)
    chain.push("v1", "T")
    wait_until(lambda: chain.count("v1", "parked"), description="the ticket to be parked")
    chain.push("v2", "T")
    chain.push("v2", "other")
    chain.wait_ended("v2", 1)
    assert (chain.log("other"), chain.log("T")) == (["v2:0"], [])
    assert "the older version orders, where the ticket is parked" in chain.why("T")
    chain.operate("ticket", "release", "T", "--stream", "orders")
    chain.wait_all()
    assert chain.log("T") == ["v1:1", "v2:0"]
    chain.check_one_at_a_time()
    chain.check_at_rest()


def test_status_and_audit_count_the_messages_of_all_versions(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    for version in ("v1", "v1", "v2"):
        chain.push(version, "T")
    chain.wait_all()
    chain.operate("ticket", "park", "P", "--stream", "orders")
    chain.push("v1", "P")
    wait_until(lambda: chain.redis.xpending("orders", GROUP)["pending"], description="the message to be read")

    def audited(*options: str) -> tuple[int, int]:
        found = json.loads(chain.operate("audit", "--json", *options))
        return found["deliveries"], found["undone"]

    assert audited() == (3, 1)
    assert audited("--stream", "orders:v2") == (1, 0)
    assert audited("--ticket", "T", "--stream", "orders:v2") == (1, 0)
    assert "added up over the versions: orders, orders:v2" in chain.operate("audit")
    for options in ((), ("-s", GROUP)):
        found = json.loads(chain.operate("status", "--json", *options))
        assert [(one["name"], one["undone"]) for one in found["subscriptions"]] == [(GROUP, 1)]
        assert [(one["name"], one["undone"]) for one in found["lanes"]] == [
            (f"{GROUP} on orders", 1),
            (f"{GROUP} on orders:v2", 0),
        ]


def test_a_dead_message_of_an_older_version_holds_nothing_up(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "T", fail=9)
    chain.push("v2", "T")
    chain.wait_all()
    assert chain.log("T") == ["v2:0"]
    assert chain.started("T") == ["v1:0"] * 3 + ["v2:0"]
    check(chain)


def test_a_message_waits_for_spilled_and_unread_ones_of_a_full_window(chain: Versions) -> None:
    chain.conf["bridge_window"] = 100
    for n in range(400):
        chain.push("v1", "T" if n % 4 else f"S{n % 40}", ms=0)
    for n in range(40):
        chain.push("v2", "T" if n % 2 else f"S{n}")
    chain.worker("w1")
    chain.master("m1")
    chain.wait_all()
    assert chain.log("T")[:300] == [f"v1:{n}" for n in range(300)]
    check(chain)


def test_an_older_message_that_comes_while_a_newer_one_runs_is_next(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    chain.push("v2", "T", ms=500)
    wait_until(lambda: chain.started("T"), description="v2 in flight")
    chain.push("v2", "T")
    chain.push("v1", "T", ms=100)
    chain.push("v1", "other")
    chain.wait_ended("v1", 1)
    assert chain.log("other") == ["v1:0"], "another ticket of the older version waited, too"
    chain.wait_all()
    assert chain.log("T") == ["v2:0", "v1:0", "v2:1"]
    check(chain)


@pytest.mark.parametrize("follows", [[], ["orders"]], ids=["dropped", "in between"])
def test_a_master_that_does_not_name_a_version_with_undone_messages_is_refused(
    chain: Versions, follows: list[str]
) -> None:
    left = "v2" if follows else "v1"
    master, worker = chain.master("m1"), chain.worker("w1")
    wait_until(lambda: chain.redis.smembers(newer_key("orders")), description="the versions to be noted")
    chain.redis.xadd(STREAMS[left], {"ticket_id": "T", "payload": '{"n": 1, "fail": 99}'})
    worker.kill()
    wait_until(lambda: chain.redis.xpending(STREAMS[left], GROUP)["pending"], description="the message to be read")
    master.kill()
    newest = "orders:v3" if follows else "orders:v2"
    other = chain.master("m2", wait=False, bridge_stream=newest, bridge_follows=follows)
    assert other.wait() == 2
    assert f"{STREAMS[left]!r}, an older version of {newest!r}, has messages" in other.logs()


def test_three_versions(chain: Versions) -> None:
    chain.conf.update(THREE)
    for n in range(6):
        for version in ("v3", "v2", "v1"):
            chain.push(version, f"T{n % 2}", ms=10)
    chain.push("v3", "later")
    chain.worker("w1")
    chain.master("m1")
    chain.wait_all()
    for ticket in ("T0", "T1"):
        assert chain.log(ticket) == [f"{version}:{n}" for version in ("v1", "v2", "v3") for n in range(3)]
    check(chain)


def test_the_stream_of_an_older_version_is_deleted_by_hand(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "T", ms=600)
    wait_until(lambda: chain.started("T"), description="v1 in flight")
    for _ in range(3):
        chain.push("v1", "T")
        chain.push("v2", "T")
    chain.redis.delete(STREAMS["v1"])
    chain.wait_ended("v2", 3)
    chain.check_one_at_a_time()
    assert [entry for entry in chain.log("T") if entry.startswith("v2")] == ["v2:0", "v2:1", "v2:2"]
    assert chain.log("T")[0] == "v1:0", "what was in flight ended first"
    chain.push("v1", "T")
    chain.push("v2", "T")
    chain.wait_ended("v2", 4)
    assert chain.log("T")[-2:] == ["v1:4", "v2:3"]


def test_a_dead_message_of_an_older_version_is_replayed(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "T", fail=3)
    chain.wait_ended("v1", 1)
    chain.push("v2", "T", ms=1500)
    wait_until(lambda: chain.started("T")[3:], description="v2 in flight")
    chain.push("v2", "T")
    keys = chain.keys["v1"]
    letters: Any = chain.redis.xrange(keys.dead)
    with client(chain.url) as raw:
        give(raw, keys, Replay([letters[0][0]]))
    assert chain.log("T") == [], "the message of v2 was over too soon"
    chain.wait_ended("v2", 2)
    assert chain.log("T")[:1] == ["v2:0"]
    assert chain.started("T")[4] == "v1:0", "the replayed message goes before the next one of v2"
    chain.check_one_at_a_time()


@pytest.mark.parametrize("what", ["master", "worker"])
def test_a_process_is_killed_in_the_middle(chain: Versions, what: str) -> None:
    workers = [chain.worker("w1"), chain.worker("w2")]
    master = chain.master("m1")
    for n in range(60):
        chain.push("v1", f"T{n % 6}", ms=20, fail=n % 7 == 0)
        chain.push("v2", f"T{n % 6}", ms=20, fail=n % 11 == 0)
    chain.wait_ended("v1", 20)
    if what == "master":
        standby = chain.master("m2")
        master.kill()
        standby.wait_for_log("on orders:v2: leading", timeout=30)
    else:
        workers[0].kill()
    chain.wait_all()
    check(chain)


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
    old.terminate()
    chain.wait_all()
    check(chain)
    # An old master comes back and leads the older version again, while a message of the newer one runs.
    chain.push("v2", "X", ms=6000)
    wait_until(lambda: chain.started("X"), description="v2 in flight")
    back = chain.master("m3", **ONLY_V1)
    new.kill()
    back.wait_for_log("leading", timeout=30)
    chain.push("v1", "X")
    chain.push("v1", "other")
    wait_until(lambda: chain.log("other"), description="another ticket")
    assert chain.started("X") == ["v2:0"]
    assert "waits for a message in flight in the newer version orders:v2" in chain.why("X", **ONLY_V1)
    chain.master("m4")
    back.terminate()
    chain.wait_all()
    assert chain.log("X") == ["v2:0", "v1:0"]
    chain.check_one_at_a_time()


def test_whatever_happens_at_random(chain: Versions) -> None:
    """Pushes to three versions, failures, deaths, kills and pauses of masters and workers, by a seed."""
    seed = default_seed("VERSIONS_SEED")
    print(f"VERSIONS_SEED={seed}")
    dice = random.Random(seed)
    chain.conf.update(THREE, bridge_window=dice.choice([100, 50_000]), bridge_bundle_ms=dice.choice([0.0, 10.0]))
    for _ in range(dice.randint(0, 300)):
        push_at_random(chain, dice)
    masters = [chain.master(f"m{n}") for n in range(2)]
    workers = [chain.worker(f"w{n}") for n in range(2)]
    for step in range(6):
        for _ in range(dice.randint(20, 80)):
            push_at_random(chain, dice)
        what = dice.choice(["master", "worker", "nothing", "pause"])
        print(f"step {step}: {what}")
        if what == "master":
            at = dice.randrange(2)
            masters[at].kill()
            masters[at] = chain.master(f"m{step + 2}", wait=False)
        elif what == "worker":
            at = dice.randrange(2)
            workers[at].kill()
            workers[at] = chain.worker(f"w{step + 2}", wait=False)
        elif what == "pause":
            masters[0].pause()
            chain.push("v2", "T0")
            masters[0].resume()
    chain.wait_all(120)
    check(chain)


def push_at_random(chain: Versions, dice: random.Random) -> None:
    version = dice.choices(["v1", "v2", "v3"], [3, 3, 2])[0]
    fail = dice.choices([0, 1, 2, 9], [20, 2, 1, 1])[0]
    chain.push(version, f"T{dice.randrange(12)}", ms=dice.choice([0, 0, 0, 5, 30]), fail=fail)


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


def test_status_says_why_each_lane_stands_still_and_what_it_advises_can_be_run(chain: Versions) -> None:
    chain.conf["bridge_dead_max"] = 1
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "dead", fail=9)
    chain.wait_ended("v1", 1)
    chain.operate("ticket", "park", "P", "--stream", "orders")
    for n in range(600):
        chain.push("v1", f"T{n}")
    chain.push("v2", "N")
    chain.push("v2", "P")
    chain.redis.xadd("orders:v2", {"ticket_id": "U", "task": "versions.none", "payload": "{}"})
    full = "1 dead letter, and bridge_dead_max is 1: nothing new is read"
    unread = "it waits until the older version orders is read: 600 messages are unread there, of any ticket"
    wait_until(lambda: chain.why("N").startswith(f"{unread}; {full}"), description="the reason")
    assert full in chain.why("T500", bridge_stream="orders", bridge_follows=[]), "an unread ticket of the full lane"
    wait_until(lambda: "for versions.none" in chain.status(), description="the task to be noted")
    status = chain.status()
    for lane, problem in (
        ("orders", full),
        ("orders", "1 ticket parked"),
        ("orders:v2", "1 message of 1 ticket waits"),
    ):
        assert f"! {GROUP} on {lane}: {problem}" in status
    assert f"{GROUP} on orders     " in status
    advised = advised_in(status, chain.why("N"), chain.why("P"))
    assert ["ticket", "release", "P", "--stream", "orders"] in [words[3:] for words in advised]
    assert ["dead", "list", "--stream", "orders"] in [words[3:] for words in advised]
    assert ["status", "-s", GROUP, "--stream", "orders"] in [words[3:] for words in advised]
    for words in advised:
        assert words[:3] == ["bridge", "-A", "tests.apps.versions"]
        chain.operate(*words[3:])
    assert f"lane       orders / {GROUP}" in chain.operate("status", "--stream", "orders")


def advised_in(*texts: str) -> list[list[str]]:
    """The commands of `bridge` in sentences."""
    found = [shlex.split(one) for text in texts for one in re.findall("`([^`]*)`", text)]
    return [words for words in found if words[0] == "bridge"]


def test_the_oldest_of_three_versions_is_retired_while_everything_runs(chain: Versions) -> None:
    chain.conf.update(THREE)
    worker, masters = chain.worker("w1"), [chain.master("m1"), chain.master("m2")]
    pushed = 0

    def push(*versions: str) -> None:
        nonlocal pushed
        pushed += 1
        for version in versions:
            chain.push(version, f"T{pushed % 3}", ms=5)

    for _ in range(6):
        push("v3", "v2", "v1")
    chain.wait_all()
    new = {"bridge_follows": THREE["bridge_follows"][1:]}
    push("v3", "v2")
    chain.worker("w2", **new)
    push("v3", "v2")
    worker.terminate()
    for n, master in enumerate(masters):
        chain.master(f"m{n + 3}", **new)
        push("v3", "v2")
        master.terminate()
        push("v3", "v2")
        chain.wait_all()
    assert "retired orders" in chain.operate("stream", "retire", "orders", "--yes", **new)
    for _ in range(3):
        push("v3", "v2")
    for version in ("v2", "v3"):
        chain.wait_ended(version, sum(len(found) for (_, of), found in chain.pushed.items() if of == version))
    chain.check_one_at_a_time()
    chain.check_older_first()
    chain.check_each_version_in_order()
    assert left_of("orders", chain) == []
    assert chain.redis.get(follows_key("orders:v3")) == '["orders:v2"]'


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


def test_versions_of_a_split_stream(chain: Versions) -> None:
    chain.conf["bridge_partitions"] = 3
    chain.master("m1")
    chain.wait_for_lanes(3)
    for n in range(12):
        for version in ("v2", "v1"):
            chain.push_split(version, f"T{n % 6}", 3, ms=5)
    # Only now: a message of v2 may start when none of v1 has come yet.
    chain.worker("w1")
    wait_until(lambda: all(len(chain.log(f"T{n}")) == 4 for n in range(6)), description="all messages", timeout_s=60)
    chain.check_one_at_a_time()
    chain.check_each_version_in_order()
    for n in range(6):
        assert chain.started(f"T{n}") == ["v1:0", "v1:1", "v2:0", "v2:1"]


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


def test_an_old_version_is_retired_when_nothing_of_it_is_undone_or_in_use(chain: Versions) -> None:
    worker, master = chain.worker("w1"), chain.master("m1")
    chain.push("v1", "T")
    chain.push("v1", "dead", fail=9)
    chain.push("v2", "T")
    chain.wait_all()

    def refused() -> str:
        error = chain.operate("stream", "retire", "orders", "--yes", code=1)
        assert chain.redis.exists("orders", chain.keys["v1"].counts, chain.keys["v1"].fence) == 3
        return error

    assert "is led by the master" in refused()
    master.terminate()
    assert "the worker w1@" in refused()
    worker.terminate()
    chain.push("v1", "late")
    assert "has not read all its messages" in refused()
    assert "has not read all its messages" in chain.operate("stream", "retire", "orders", "--dry-run", code=1)
    worker, master = chain.worker("w2"), chain.master("m2")
    chain.wait_ended("v1", 3)
    master.terminate()
    worker.terminate()
    assert "has dead letters" in refused()
    assert "has dead letters" in chain.operate("stream", "retire", "orders", "--dry-run", code=1)
    looked = chain.operate("stream", "retire", "orders", "--dry-run", "--drop-dead")
    assert "would delete orders with" in looked
    assert ", 1 group, 1 dead letter; " in looked
    keys = looked.rpartition("; ")[2].strip()
    assert "is the stream of this app" in chain.operate("stream", "retire", "orders:v2", "--yes", code=1)
    retired = chain.operate("stream", "retire", "orders", "--drop-dead", "--yes", bridge_follows=[])
    assert retired.startswith("retired orders")
    assert retired.endswith(f"; {keys} deleted\n")
    assert left_of("orders", chain) == []
    assert chain.redis.get(follows_key("orders:v2")) == "[]"
    assert "was retired on" in chain.operate("stream", "retire", "orders", "--yes", code=1)
    chain.worker("w3", bridge_follows=[])
    chain.master("m3", bridge_follows=[])
    chain.push("v2", "T")
    chain.wait_ended("v2", 2)


def left_of(stream: str, chain: Versions) -> list[str]:
    """The keys of a retired stream, without the note that it was retired."""
    found = [key for key in chain.redis.scan_iter() if key == stream or key.startswith(f"{{{stream}}}")]
    assert layout_key(stream) in found
    return [key for key in found if key != layout_key(stream)]


def test_a_stream_that_was_deleted_by_hand_is_retired_with_all_keys(chain: Versions) -> None:
    worker, master = chain.worker("w1", **ONLY_V1), chain.master("m1", **ONLY_V1)
    chain.push("v1", "T")
    chain.push("v1", "dead", fail=9)
    chain.wait_ended("v1", 2)
    chain.operate("ticket", "park", "P", **ONLY_V1)
    worker.terminate()
    master.terminate()
    chain.redis.delete("orders")
    refused = chain.operate("stream", "retire", "orders", "--yes", code=1, bridge_follows=[])
    assert "has dead letters" in refused
    retired = chain.operate("stream", "retire", "orders", "--yes", "--drop-dead", bridge_follows=[])
    assert "retired orders with 0 done messages, 1 group, 1 dead letter" in retired
    assert left_of("orders", chain) == []


def test_a_producer_that_names_a_retired_stream_is_refused(chain: Versions) -> None:
    chain.push("v1", "T")
    worker, master = chain.worker("w1"), chain.master("m1")
    chain.wait_ended("v1", 1)
    worker.terminate()
    master.terminate()
    producer = Celery("versions", broker=chain.url, set_as_current=False)
    bridge.install(producer)
    producer.conf.bridge_stream = "orders"

    @producer.task(name="versions.v1", bind=True, shared=False)
    def task(self: Any, ticket_id: str, payload: Any) -> None:
        """Only pushed here."""

    task.push("T", {"n": 1})
    chain.redis.xtrim("orders", maxlen=0)
    chain.redis.xgroup_setid("orders", GROUP, "$")
    chain.operate("stream", "retire", "orders", "--yes")
    again: Any = task
    with pytest.raises(StreamRetired, match=r"stream orders was retired on .*; push to orders:v2"):
        again.push("T", {"n": 2})
    with pytest.raises(StreamRetired, match="push to orders:v2"):
        again.push_many([("T", {"n": 2})], idempotency_key="k")
    assert not chain.redis.exists("orders")
    assert "orders     retired  20" in chain.operate("stream", "list")
    # An app that still names it leaves it out. An app whose stream it is does not start.
    late = chain.master("m2", wait=False, **ONLY_V1)
    assert late.wait() == 2
    assert "stream orders was retired on" in late.logs()
    worker, master = chain.worker("w2"), chain.master("m3")
    assert "bridge_follows names 'orders': stream orders was retired on" in master.logs()
    assert "bridge_follows names 'orders': stream orders was retired on" in worker.logs()
    chain.push("v2", "T")
    chain.wait_ended("v2", 1)
    assert left_of("orders", chain) == []
    # Foreign programs are not refused.
    chain.push("v1", "T")
    assert "orders was retired, and 1 message came since then, by XADD" in chain.operate("status")
    assert "1 message came since then" in chain.operate("stream", "retire", "orders", "--yes", code=1)
    chain.redis.delete("orders")
    chain.operate("stream", "retire", "orders", "--undo")
    assert task.push("T", {"n": 3})
