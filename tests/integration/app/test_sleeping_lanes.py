"""Lanes at rest of a master that leads many: they have no thread and no connection, and wake up for what happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

import bridge
import bridge.leader.leader
import bridge.master.sleepers
from bridge.operate.orders import give
from bridge.protocol.orders import Park, Release
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.lane import Lane
from bridge.testing.nodes.node import MasterNode
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.app.test_share import SharedLanes

#: More lanes than a process may lead without letting one of them sleep (`bridge.master.sleepers.AWAKE`).
NAMES = ("billing", "trail", "s3", "s4", "s5", "s6")
#: Connections of a master whose lanes all sleep: for leads, blocking reads, glances, heartbeats; also those that are
#: just opened again.
CONNECTIONS = 12


class Kept:
    """Lanes that all sleep, for as many tests as leave their processes alive."""

    def __init__(self, valkey_binary: Path, folders: pytest.TempPathFactory) -> None:
        self._binary = valkey_binary
        self._folders = folders
        self._parts = ExitStack()
        self._lanes: SharedLanes | None = None
        self.server: EmbeddedServer

    def lanes(self) -> SharedLanes:
        """Those of the test before, or new ones. All sleep, after some messages."""
        if self._lanes is None or not all(node.running for node in self._lanes.nodes.nodes):
            self.close()
            self._lanes = self._started(self._folders.mktemp("sleeping"))
        wait_asleep(self._lanes.masters["m1"])
        return self._lanes

    def _started(self, folder: Path) -> SharedLanes:
        self.server = self._parts.enter_context(
            EmbeddedServer(binary=self._binary, data_dir=folder / "server", fsync="no")
        )
        lanes = SharedLanes(
            self._parts.enter_context(closing(ProcessYard(folder, self.server.url))), self.server, NAMES
        )
        lanes.env["SUBSCRIBERS_REST_S"] = "1"
        lanes.worker("w1")
        lanes.master("m1")
        lanes.wait_leaders("m1")
        lanes.push(10)
        lanes.wait_done()
        return lanes

    def close(self) -> None:
        """The next test gets new lanes."""
        self._lanes = None
        self._parts.close()


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with closing(Kept(valkey_binary, tmp_path_factory)) as made:
        yield made


@pytest.fixture
def lanes(kept: Kept) -> SharedLanes:
    return kept.lanes()


def wait_asleep(master: MasterNode) -> None:
    process = psutil.Process(master.pid)
    # To list connections is expensive: threads first.
    wait_until(
        lambda: process.num_threads() <= 8 and len(process.net_connections()) <= CONNECTIONS,
        description="all lanes to sleep",
        timeout_s=180,
        interval_s=0.1,
    )


def test_a_new_message_wakes_each_lane_once_and_they_sleep_again(lanes: SharedLanes) -> None:
    for _ in range(2):
        lanes.push(10)
        lanes.wait_done()
        wait_asleep(lanes.masters["m1"])
    lanes.assert_no_term_was_led_twice()


def test_a_message_that_fails_in_a_lane_that_slept_is_tried_again(lanes: SharedLanes) -> None:
    body = {"n": 7, **{name: {"fail": 1} for name in NAMES}}
    lanes.redis.xadd("ticket_stream", {"ticket_id": "F", "payload": json.dumps(body)})
    wait_until(
        lambda: all(lanes.redis.lrange(f"{name}:F", 0, -1) == ["7"] for name in NAMES),
        description="the second attempt in each lane",
    )
    lanes.others += 1


def test_an_order_reaches_a_lane_that_sleeps_and_a_parked_ticket_lets_it_sleep_on(
    lanes: SharedLanes, kept: Kept
) -> None:
    with kept.server.client() as redis:
        assert give(redis, lanes.keys["s3"], Park("T0", "a test"))["ok"]
        wait_asleep(lanes.masters["m1"])
        lanes.push(10)
        # Each wakes up by itself. Two of the messages are of the parked ticket.
        wanted = {name: lanes.all - 2 * (name == "s3") for name in NAMES}
        wait_until(lambda: lanes.done() == wanted, description="all lanes to do all, but for the parked ticket")
        wait_asleep(lanes.masters["m1"])
        assert lanes.done()["s3"] == lanes.all - 2
        assert give(redis, lanes.keys["s3"], Release("T0"))["ok"]
    lanes.wait_done()


def test_a_delayed_message_lets_its_lanes_sleep_and_wakes_them_when_it_is_due(lanes: SharedLanes) -> None:
    def now_ms() -> int:
        seconds, us = lanes.redis.time()
        return int(seconds) * 1000 + int(us) // 1000

    # A slow machine needs longer until all sleep again: once more, with more time.
    for attempt, seconds in enumerate((2.5, 10, 40, 160)):
        ticket, due_ms = f"D{attempt}", now_ms() + int(1000 * seconds)
        lanes.redis.xadd("ticket_stream", {"ticket_id": ticket, "payload": json.dumps({"n": 7}), "due": due_ms})
        wait_until(
            lambda ticket=ticket: all(  # type: ignore[misc]
                lanes.redis.zcard(lanes.keys[name].delayed) or lanes.redis.llen(f"{name}:{ticket}") for name in NAMES
            ),
            description="each lane to delay it",
        )
        wait_asleep(lanes.masters["m1"])
        slept = now_ms() < due_ms
        wait_until(
            lambda ticket=ticket: all(lanes.redis.lrange(f"{name}:{ticket}", 0, -1) == ["7"] for name in NAMES),  # type: ignore[misc]
            description="each lane to handle it",
            timeout_s=90 + seconds,
        )
        lanes.others += 1
        if slept:
            return
    pytest.fail("the lanes were never asleep before it was due")


def test_a_group_that_is_set_back_while_its_lane_sleeps_is_put_back_and_nothing_runs_again(lanes: SharedLanes) -> None:
    def read_to() -> str:
        groups = {group["name"]: group for group in lanes.redis.xinfo_groups("ticket_stream")}
        return str(groups["s3"]["last-delivered-id"])

    before = read_to()
    lanes.redis.xgroup_setid("ticket_stream", "s3", "0")
    wait_until(lambda: read_to() == before, description="the group to be put back")
    wait_until(lambda: lanes.redis.hget(lanes.keys["s3"].counts, "tampered") == "1", description="it to be counted")
    lanes.push(10)
    lanes.wait_done()


def test_a_group_that_is_destroyed_while_its_lane_sleeps_is_made_again(lanes: SharedLanes) -> None:
    lanes.redis.xgroup_destroy("ticket_stream", "s3")
    wait_until(lambda: lanes.redis.hget(lanes.keys["s3"].counts, "regrouped") == "1", description="a new group")
    lanes.push(10)
    lanes.wait_done()


def test_lanes_that_sleep_survive_a_restart_of_the_server_which_is_said_once(lanes: SharedLanes, kept: Kept) -> None:
    master = lanes.masters["m1"]

    def is_away() -> bool:
        """Whether the master says that the server is away. It says so once, and then that it is back."""
        said = re.findall(r"Redis is (away|back)", master.logs())
        assert said[0::2] == ["away"] * len(said[0::2]), said
        assert said[1::2] == ["back"] * len(said[1::2]), said
        return len(said) % 2 == 1

    kept.server.kill()
    before = len(master.logs())
    wait_until(is_away, description="the master to miss the server")
    # Not by each lane. What it says later is not counted: an answer that a paused machine delays is an outage, too.
    assert master.logs()[before:].count("Redis is away") <= 1
    kept.server.start()
    lanes.push(10)
    lanes.wait_done()
    wait_until(lambda: not is_away(), description="the master to have the server back")
    # It keeps no connection for each lane that was read again.
    wait_asleep(lanes.masters["m1"])


def test_a_master_ends_in_order_with_all_its_lanes_asleep(lanes: SharedLanes) -> None:
    assert lanes.masters["m1"].terminate() == 0
    assert lanes.leaders() == {}


def test_a_worker_that_dies_while_lanes_sleep_gets_no_message(lanes: SharedLanes) -> None:
    [worker] = lanes.nodes.workers()
    worker.vanish()
    lanes.worker("w2")
    lanes.push(10)
    lanes.wait_done()


def test_entries_that_become_old_while_their_lanes_sleep_are_removed(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.master.sleepers, "CHECK_S", 2.0)
    monkeypatch.setattr(bridge.leader.leader, "REST_S", 1.0)
    app = bridge.install(Celery("aged", broker=own_server.url, set_as_current=False))
    app.conf.update(bridge_subscriptions={f"s{n}": {"task": "aged.run"} for n in range(6)}, bridge_retention=8)

    @app.task(bind=True, name="aged.run", shared=False)
    def run(self: Any, ticket_id: str, payload: Any) -> None:
        pass

    with Lane(app, url=own_server.url) as lane:
        woken = watch_wakes(monkeypatch)
        run.push("T", {})
        wait_until(lambda: lane.redis.xlen("ticket_stream") == 1, description="the entry")
        wait_until(lambda: lane.redis.xlen("ticket_stream") == 0, description="its removal", timeout_s=180)
        assert woken


def watch_wakes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes the checks of lanes that sleep."""
    from bridge.leader.leader import Leader

    found: list[bool] = []
    original = Leader.glance

    def glance(self: Leader, redis: Any, wire: Any, *, check: bool) -> bool:
        if check:
            found.append(check)
        return original(self, redis, wire, check=check)

    monkeypatch.setattr(Leader, "glance", glance)
    return found
