"""Several masters share the lanes of an app: each leads its share, and every message is done once, in order."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.master.share import Share
from bridge.routing.keys import LaneKeys, masters, masters_stand
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.waiting import wait_until
from tests.keycheck import check_keys

APP = "tests.apps.subscribers"
#: The app names two of them at its tasks.
NAMES = ("billing", "trail", *(f"s{n}" for n in range(6)))
LEADER_LEASE_S = 2.0
TICKETS = 5


def conf_of(names: Sequence[str]) -> dict[str, Any]:
    return {
        "bridge_subscriptions": {name: {"task": "billing.apply"} for name in names},
        "bridge_leader_lease": LEADER_LEASE_S,
        "bridge_backoff": {"base": 0.05, "limit": 1.0},
    }


class SharedLanes:
    """Lanes of one stream on the test's own server, and their masters. ``names``: of the lanes."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, names: Sequence[str] = NAMES) -> None:
        self.nodes = nodes
        self.names = names
        self.redis: Any = server.client(decode_responses=True)
        self.keys = {name: LaneKeys("ticket_stream", name) for name in names}
        self.masters: dict[str, MasterNode] = {}
        #: Messages that `push` added, and others.
        self.pushed = 0
        self.others = 0
        self.env = {"SUBSCRIBERS_CONF": json.dumps(conf_of(names))}

    def worker(self, name: str) -> None:
        self.nodes.worker(name, app=APP, arguments=("--concurrency=2", "--without-mingle"), env=self.env)

    def master(self, name: str, *arguments: str) -> MasterNode:
        made = self.nodes.master(name, app=APP, env=self.env, ready_text="standing by", arguments=arguments)
        self.masters[name] = made
        return made

    def leaders(self) -> dict[str, str]:
        """Lane -> name of the master that leads it; lanes that nobody leads are missing."""
        tokens = self.redis.mget([keys.leader for keys in self.keys.values()])
        found = zip(self.keys, tokens, strict=True)
        return {lane: self._name(token) for lane, token in found if token is not None}

    def _name(self, holder: str) -> str:
        return next(name for name, node in self.masters.items() if f":{node.pid}:" in holder)

    def shares(self) -> dict[str, str]:
        """Lane -> name of the master that should lead it, of those that live."""
        stands = self.redis.hgetall(masters_stand("ticket_stream"))
        share = Share("the test", 0.0)
        share.update({holder: text.partition(" ")[2] for holder, text in stands.items() if holder}, 0.0)
        return {lane: self._name(share.owner(lane) or "") for lane in self.names}

    def wait_leaders(self, *names: str) -> dict[str, str]:
        """Waits until just these masters live, and each leads its share. Returns the leaders."""

        def found() -> dict[str, str] | None:
            alive = self.redis.zcard(masters("ticket_stream"))
            leaders = self.leaders()
            return leaders if alive == len(names) and leaders == self.shares() else None

        # A look costs as much as a moment of a master.
        result: Any = wait_until(
            found, description=f"{', '.join(names)} to lead all lanes", timeout_s=180, interval_s=0.15
        )
        assert set(result.values()) <= set(names)
        return dict(result)

    def push(self, count: int) -> None:
        with self.redis.pipeline(transaction=False) as pipe:
            for _ in range(count):
                ticket, n = self.pushed % TICKETS, self.pushed // TICKETS
                pipe.xadd("ticket_stream", {"ticket_id": f"T{ticket}", "payload": json.dumps({"n": n})})
                self.pushed += 1
            pipe.execute()

    @property
    def all(self) -> int:
        return self.pushed + self.others

    def done(self) -> dict[str, int]:
        with self.redis.pipeline(transaction=False) as pipe:
            for keys in self.keys.values():
                pipe.hget(keys.counts, "done")
            return {name: int(found or 0) for name, found in zip(self.keys, pipe.execute(), strict=True)}

    def wait_done(self) -> None:
        """Waits until each lane has done all messages, then checks that it did each once, in order."""
        wait_until(
            lambda: set(self.done().values()) == {self.all},
            description=f"each lane to have done {self.all}",
            timeout_s=180,
            interval_s=0.1,
        )
        for name in self.names:
            for ticket in range(TICKETS):
                wanted = list(range(len(range(ticket, self.pushed, TICKETS))))
                assert [int(n) for n in self.redis.lrange(f"{name}:T{ticket}", 0, -1)] == wanted

    def assert_no_term_was_led_twice(self) -> None:
        """By what the masters say of themselves."""
        terms: Counter[tuple[str, str]] = Counter()
        for node in self.masters.values():
            terms.update(re.findall(r"^(\S+) on ticket_stream: leading, term (\d+)$", node.logs(), re.MULTILINE))
        assert {lane for lane, _ in terms} == set(self.names)
        assert set(terms.values()) == {1}


@pytest.fixture
def lanes(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> SharedLanes:
    return SharedLanes(nodes, own_server)


def test_masters_share_the_lanes_through_a_kill_a_stop_and_a_start(lanes: SharedLanes) -> None:
    # Given three masters: the later ones got their shares from the first
    lanes.worker("w1")
    lanes.master("m1")
    lanes.wait_leaders("m1")
    lanes.push(15)
    lanes.master("m2")
    first = lanes.wait_leaders("m1", "m2")
    lanes.master("m3")
    second = lanes.wait_leaders("m1", "m2", "m3")
    # It may be that none is its share: that depends on the names of the processes.
    assert {second[lane] for lane in NAMES if first[lane] != second[lane]} <= {"m3"}

    # When one is killed, then its lanes go to the others, and no other lane moves
    lanes.push(15)
    lanes.masters["m2"].kill_main()
    third = lanes.wait_leaders("m1", "m3")
    assert {lane for lane in NAMES if second[lane] != third[lane]} == {lane for lane in NAMES if second[lane] == "m2"}

    # When one stops, then it gives its lanes up itself, and the last one has all
    lanes.push(15)
    assert lanes.masters["m3"].terminate() == 0
    assert "m3" not in lanes.leaders().values()
    lanes.wait_leaders("m1")

    # When one starts under load, then it gets its share, and nothing else moves
    lanes.push(15)
    lanes.master("m4")
    last = lanes.wait_leaders("m1", "m4")
    lanes.push(15)
    lanes.wait_done()
    assert lanes.leaders() == last
    lanes.assert_no_term_was_led_twice()
    check_keys(lanes.redis, *lanes.keys.values(), allowed=("_kombu.*", *(f"{name}:T*" for name in NAMES)))
    assert lanes.redis.zcard(masters("ticket_stream")) == 2


def test_a_lane_moves_to_a_new_master_although_it_is_never_quiet(lanes: SharedLanes) -> None:
    lanes.worker("w1")
    lanes.master("m1")
    lanes.wait_leaders("m1")
    # Given lanes in which something is in flight all the time
    body = json.dumps({"n": 0, **{name: {"ms": 30_000} for name in NAMES}})
    lanes.redis.xadd("ticket_stream", {"ticket_id": "slow", "payload": body})
    wait_until(
        lambda: all(lanes.redis.hlen(keys.tickets) for keys in lanes.keys.values()), description="all to be in flight"
    )
    lanes.master("m2")
    lanes.wait_leaders("m1", "m2")


def test_a_lost_set_of_masters_is_made_again_and_no_lane_moves(lanes: SharedLanes) -> None:
    lanes.worker("w1")
    for name in ("m1", "m2", "m3"):
        lanes.master(name)
    before = lanes.wait_leaders("m1", "m2", "m3")
    who, what = masters("ticket_stream"), masters_stand("ticket_stream")
    for lost in ([who], [what], [who, what]):
        lanes.push(25)
        lanes.redis.delete(*lost)
        # One of its fields is the version.
        wait_until(lambda: lanes.redis.hlen(what) == 4, description="all to stand again")
        assert lanes.wait_leaders("m1", "m2", "m3") == before
    lanes.wait_done()
    lanes.assert_no_term_was_led_twice()
    terms = [lanes.redis.get(keys.term) for keys in lanes.keys.values()]
    lanes.masters["m1"].kill_main()
    lanes.wait_leaders("m2", "m3")
    after = [lanes.redis.get(keys.term) for keys in lanes.keys.values()]
    assert sum(old != new for old, new in zip(terms, after, strict=True)) == list(before.values()).count("m1")


def test_a_master_that_is_named_for_lanes_leads_these_and_no_others(lanes: SharedLanes) -> None:
    lanes.worker("w1")
    lanes.master("m1")
    lanes.wait_leaders("m1")
    lanes.master("m2", "--lanes", "s1, billing")
    found = lanes.wait_leaders("m1", "m2")
    assert {lane for lane, master in found.items() if master == "m2"} == {"s1", "billing"}
    # When it is gone, then the other one has its lanes again
    lanes.masters["m2"].kill_main()
    lanes.wait_leaders("m1")
    lanes.push(10)
    lanes.wait_done()
    lanes.assert_no_term_was_led_twice()


def test_a_frozen_master_loses_its_lanes_and_gets_its_share_back(lanes: SharedLanes) -> None:
    lanes.worker("w1")
    frozen, _ = lanes.master("m1"), lanes.master("m2")
    before = lanes.wait_leaders("m1", "m2")
    frozen.send(signal.SIGSTOP)
    lanes.wait_leaders("m2")
    lanes.push(25)
    frozen.send(signal.SIGCONT)
    wait_until(lambda: lanes.leaders() == before, description="the shares to be as before", timeout_s=90)
    lanes.push(25)
    lanes.wait_done()
    lanes.assert_no_term_was_led_twice()
