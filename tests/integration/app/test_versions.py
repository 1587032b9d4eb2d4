"""Versions of a stream: a message of a newer one waits until no older one has an undone message of its ticket."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.link.connections import client
from bridge.operate.orders import give
from bridge.protocol.orders import Replay
from bridge.routing import records
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.chaos.run import default_seed
from tests.integration.lanes import Kept
from tests.integration.versions import STREAMS, THREE, Versions, check


class KeptVersions(Versions):
    """Two versions of a stream with a master and a worker."""

    def end_test(self) -> None:
        """Nothing but messages is left."""

    def is_at_rest(self) -> bool:
        def rests(keys: LaneKeys) -> bool:
            pending: Any = self.redis.xpending(keys.stream, keys.group)
            return not (pending["pending"] or self.redis.xlen(keys.outcomes) or self.redis.exists(keys.tickets))

        return rests(self.keys["v1"]) and rests(self.keys["v2"])

    def forget(self) -> None:
        own = [key for keys in self.keys.values() for key in (keys.counts, keys.dead)]
        self.redis.delete(*own, *self.redis.scan_iter("log:*"))
        for path in self.ledger.iterdir():
            path.unlink()
        self.pushed.clear()
        self.pushed_us.clear()


def begin(nodes: NodeYard, server: EmbeddedServer, folder: Path) -> KeptVersions:
    chain = KeptVersions(nodes, server, folder)
    chain.worker("w1")
    # The newer lane is led when the older one has been read.
    chain.master("m1").wait_for_log("on orders:v2] read the lane")
    return chain


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[KeptVersions]]:
    with closing(Kept(valkey_binary, tmp_path_factory, begin)) as made:
        yield made


@pytest.fixture
def served(kept: Kept[KeptVersions]) -> Iterator[Versions]:
    """Two versions that a master leads and a worker serves."""
    yield from kept.lend()


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
        assert producer.AsyncResult(id_).get(timeout=60) == f"{ticket} 1"


def test_a_message_waits_for_one_in_flight_and_for_one_in_backoff(served: Versions) -> None:
    served.push("v1", "T", gate="go on")
    served.push("v1", "T", fail=2)
    wait_until(lambda: served.started("T"), description="v1 in flight")
    served.push("v2", "T")
    served.push("v2", "other")
    wait_until(lambda: served.log("other"), description="another ticket, which does not wait")
    assert served.started("T") == ["v1:0"]
    served.open("go on")
    served.wait_all()
    assert served.log("T") == ["v1:0", "v1:1", "v2:0"]
    check(served)


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


def test_a_ticket_is_parked_and_released_in_all_versions(served: Versions) -> None:
    def is_parked(version: str) -> bool:
        record = served.redis.hget(served.keys[version].tickets, "T")
        return record is not None and records.parse(record).parked

    served.push("v1", "T", gate="go on")
    for _ in range(29):
        served.push("v1", "T", ms=100)
    served.push("v2", "T")
    wait_until(lambda: served.started("T"), description="v1 in flight")
    assert "T will be parked when" in served.operate("ticket", "park", "T")
    assert "in the older version orders it is in flight" in served.why("T")
    served.open("go on")
    wait_until(lambda: is_parked("v1") and is_parked("v2"), description="T to be parked in both versions")
    done = served.log("T")
    assert len(done) < 30
    served.push("v1", "other")
    served.push("v2", "other")
    served.wait_ended("v2", 1)
    assert served.log("T") == done
    listed = json.loads(served.operate("ticket", "list", "--parked", "--json"))["tickets"]
    assert [(one["ticket_id"], one["stream"]) for one in listed] == [("T", "orders"), ("T", "orders:v2")]
    assert "ticket T is parked already" in served.operate("ticket", "park", "T", code=1)
    served.operate("ticket", "release", "T")
    served.wait_all()
    assert served.log("T") == [*(f"v1:{n}" for n in range(30)), "v2:0"]
    assert "ticket T is not parked" in served.operate("ticket", "release", "T", code=1)
    check(served)


def test_a_worker_is_drained_and_resumed_in_all_versions(chain: Versions) -> None:
    def drained() -> set[str]:
        return {version for version in ("v1", "v2") if any(chain.redis.hvals(chain.keys[version].drains))}

    chain.worker("w1")
    chain.worker("w2")
    chain.master("m1")
    for version in ("v1", "v2"):
        chain.push(version, "T")
    chain.wait_all()
    assert "takes nothing new" in chain.operate("consumer", "drain", "w1")
    assert drained() == {"v1", "v2"}
    chain.operate("consumer", "resume", "w1")
    assert drained() == set()
    chain.operate("consumer", "drain", "w1", "--stream", "orders")
    assert drained() == {"v1"}
    check(chain)


def test_a_transfer_is_not_refused_for_a_version_without_a_ticket_of_the_worker(chain: Versions) -> None:
    chain.worker("w1")
    master = chain.master("m1")
    chain.push("v2", "T", gate="go on")
    for _ in range(2):
        chain.push("v2", "T")
    wait_until(lambda: chain.started("T"), description="v2 in flight")
    other = chain.worker("w2", bridge_follows=[])
    # The leader knows it a moment after it registered.
    master.wait_for_log(f"consumer {other.hostname()} is here")
    assert "1 ticket more when" in chain.operate("consumer", "transfer", "w1", "w2")
    chain.push("v1", "other")
    chain.open("go on")
    chain.wait_all()
    chain.check_one_at_a_time()
    chain.check_at_rest()


def test_a_dead_message_of_an_older_version_holds_nothing_up(served: Versions) -> None:
    served.push("v1", "T", fail=9)
    served.push("v2", "T")
    served.wait_all()
    assert served.log("T") == ["v2:0"]
    assert served.started("T") == ["v1:0"] * 3 + ["v2:0"]
    check(served)


def test_a_message_waits_for_spilled_and_unread_ones_of_a_full_window(chain: Versions) -> None:
    chain.conf["bridge_window"] = 100
    for n in range(240):
        chain.push("v1", "T" if n % 4 else f"S{n % 40}", ms=0)
    for n in range(24):
        chain.push("v2", "T" if n % 2 else f"S{n}")
    chain.worker("w1")
    chain.master("m1")
    chain.wait_all()
    assert chain.log("T")[:180] == [f"v1:{n}" for n in range(180)]
    check(chain)


def test_an_older_message_that_comes_while_a_newer_one_runs_is_next(served: Versions) -> None:
    served.push("v2", "T", gate="go on")
    wait_until(lambda: served.started("T"), description="v2 in flight")
    served.push("v2", "T")
    served.push("v1", "T")
    served.push("v1", "other")
    wait_until(lambda: served.log("other"), description="another ticket of the older version, which does not wait")
    assert served.started("T") == ["v2:0"]
    served.open("go on")
    served.wait_all()
    assert served.log("T") == ["v2:0", "v1:0", "v2:1"]
    check(served)


# `test_whatever_happens_at_random` has three versions, too.
@pytest.mark.long
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


def test_a_dead_message_of_an_older_version_is_replayed(served: Versions) -> None:
    served.push("v1", "T", fail=3)
    served.wait_ended("v1", 1)
    served.push("v2", "T", gate="go on")
    wait_until(lambda: served.started("T")[3:], description="v2 in flight")
    served.push("v2", "T")
    keys = served.keys["v1"]
    letters: Any = served.redis.xrange(keys.dead)
    with client(served.url) as raw:
        give(raw, keys, Replay([letters[0][0]]))
    served.open("go on")
    served.wait_ended("v2", 2)
    assert served.log("T")[:1] == ["v2:0"]
    assert served.started("T")[4] == "v1:0", "the replayed message goes before the next one of v2"
    served.check_one_at_a_time()


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


def test_versions_of_a_split_stream(chain: Versions) -> None:
    chain.conf["bridge_partitions"] = 3
    chain.master("m1")
    chain.wait_for_lanes(3)
    for n in range(12):
        for version in ("v2", "v1"):
            chain.push_split(version, f"T{n % 6}", 3, ms=5)
    # Only now: a message of v2 may start when none of v1 has come yet.
    chain.worker("w1")
    wait_until(lambda: all(len(chain.log(f"T{n}")) == 4 for n in range(6)), description="all messages", timeout_s=180)
    chain.check_one_at_a_time()
    chain.check_each_version_in_order()
    for n in range(6):
        assert chain.started(f"T{n}") == ["v1:0", "v1:1", "v2:0", "v2:1"]
