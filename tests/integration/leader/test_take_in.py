"""Manual changes of the pending list between any two turns of a new leader that still reads the backlog."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.app.lanes import lane_of
from bridge.leader.leader import Leader
from bridge.link.connections import client
from bridge.link.server_clock import ServerClock
from bridge.master.election import Election
from bridge.operate.orders import give
from bridge.protocol.orders import Park, Release
from bridge.routing.ids import id_key, id_text
from bridge.settings.app import read_settings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest
from tests.script_calls import lead

#: Entries in one page of what a leader reads.
PAGE = 500
PAGES = 3


@pytest.fixture(scope="module")
def lane(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaneUnderTest]:
    """A lane with a history and some pages of waiting messages, without leader and worker. A test leaves it so."""
    folder = tmp_path_factory.mktemp("backlog")
    with (
        EmbeddedServer(binary=valkey_binary, data_dir=folder / "server", fsync="no") as server,
        closing(ProcessYard(folder, server.url)) as nodes,
    ):
        yield with_backlog(LaneUnderTest(nodes, server, folder))


def with_backlog(lane: LaneUnderTest) -> LaneUnderTest:
    master = lane.master("m1")
    worker = lane.worker("w0", "--pool=solo")
    lane.push("warm", {"n": 0})
    lane.wait_done(1)
    worker.terminate()
    wait_until(lambda: lane.redis.exists(lane.keys.floor), description="it to be noted how far all is done")
    with lane.redis.pipeline(transaction=False) as pipe:
        for n in range(PAGES * PAGE):
            pipe.xadd(lane.keys.stream, {"ticket_id": f"T{n % 7}", "payload": json.dumps({"n": n // 7})})
        pipe.execute()
    wait_until(lambda: pending(lane) == PAGES * PAGE, description="all to be read")
    assert master.terminate() == 0
    return lane


def pending(lane: LaneUnderTest) -> int:
    summary: Any = lane.redis.xpending(lane.keys.stream, lane.keys.group)
    return int(summary["pending"])


def never_run(ticket_id: str, payload: Any) -> None:
    """No worker runs it."""


def take_in(lane: LaneUnderTest, deed: Callable[[Leader], None]) -> Leader:
    """Lets a new leader read everything. Calls ``deed`` before each of its turns."""
    app = bridge.install(Celery("counter", broker=lane.server.url))
    app.conf.update(bridge_default_task="counter.append", bridge_leader_lease=30)
    app.task(name="counter.append", shared=False)(never_run)
    settings = read_settings(app)
    redis = client(settings.redis_url)
    # That of the test before.
    redis.delete(settings.lane.keys.leader)
    election = Election(redis, settings.lane, "in this process")
    elected, token, _ = lead(redis, settings.lane.keys, "in this process", 30_000)
    assert elected
    election.elected(token, time.monotonic())
    leader = Leader(app, settings.redis_url, lane_of(app), election.take_term(redis), ServerClock(settings.lane.lease))

    def goes_on() -> bool:
        deed(leader)
        if not leader.lane.behind:
            # It notices the loss of messages in memory by itself.
            leader.manual_changes.compare()
        return leader.lane.behind

    leader.run(goes_on)
    return leader


def acknowledge(lane: LaneUnderTest, leader: Leader, taken: set[str]) -> None:
    """Acknowledges a message that the leader has not read yet, and will read soon."""
    after = id_text(leader.lane.read_to)
    found: Any = lane.redis.xpending_range(lane.keys.stream, lane.keys.group, f"({after}", "+", 5)
    ids = [entry["message_id"] for entry in found if entry["message_id"] not in taken]
    if leader.lane.behind and ids:
        taken.add(ids[0])
        lane.redis.xack(lane.keys.stream, lane.keys.group, ids[0])


def forget_master(lane: LaneUnderTest, leader: Leader, taken: set[str]) -> None:
    """Deletes the master's name in the group, and with it all waiting messages."""
    if leader.lane.behind:
        taken.add(id_text(leader.lane.read_to))
        lane.redis.xgroup_delconsumer(lane.keys.stream, lane.keys.group, "master")


def claim(lane: LaneUnderTest, leader: Leader, taken: set[str]) -> None:
    """Claims a message that the leader has not read yet for an unknown name."""
    after = id_text(leader.lane.read_to)
    found: Any = lane.redis.xpending_range(
        lane.keys.stream, lane.keys.group, f"({after}", "+", 5, consumername="master"
    )
    if leader.lane.behind and found:
        taken.add(found[-1]["message_id"])
        lane.redis.xclaim(lane.keys.stream, lane.keys.group, "stranger", 0, [found[-1]["message_id"]], justid=True)


@pytest.mark.parametrize("deed", [acknowledge, forget_master, claim])
def test_an_entry_taken_by_hand_between_two_turns_of_a_new_leader_is_pending_again(
    lane: LaneUnderTest, deed: Callable[[LaneUnderTest, Leader, set[str]], None]
) -> None:
    taken: set[str] = set()

    leader = take_in(lane, lambda leader: deed(lane, leader, taken))

    assert len(taken) >= PAGES
    assert max(map(id_key, taken)) <= leader.lane.read_to
    assert pending(lane) == PAGES * PAGE
    # And each ticket has all of it, in order
    for ticket in range(7):
        waiting = leader.lane.tickets[f"T{ticket}"].waiting
        assert [json.loads(message.payload)["n"] for message in waiting] == list(
            range(len(range(ticket, PAGES * PAGE, 7)))
        )


@pytest.mark.parametrize("parked", [False, True])
def test_an_entry_taken_by_hand_outside_memory_is_pending_again_before_later_ones(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, parked: bool
) -> None:
    # Given far more messages of a ticket than are kept in memory
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    lane.master("m1").wait_for_log("read the lane")
    if parked:
        lane.worker("w0", "--pool=solo")
        lane.push("T", {"n": 0, "gate": "gate"}, task="counter.held")
        wait_until(lambda: list(lane.ledger.glob("held-*")), description="the first to run")
    count = 4 * PAGE
    ids = [] if not parked else ["the first"]
    with lane.redis.pipeline(transaction=False) as pipe:
        for n in range(len(ids), count):
            pipe.xadd(lane.keys.stream, {"ticket_id": "T", "payload": json.dumps({"n": n})})
        ids += pipe.execute()
    wait_until(lambda: pending(lane) == count, description="all to be read")
    # When some of the others are acknowledged by hand, and the ticket goes on before the next check
    lane.redis.xack(lane.keys.stream, lane.keys.group, *ids[3 * PAGE :: 100])
    if parked:
        order = lane.server.client()
        assert give(order, lane.keys, Park("T"))["ok"]
        (lane.ledger / "gate").touch()
        wait_until(lambda: lane.log("T") == [0], description="it to stand still")
        lane.redis.xack(lane.keys.stream, lane.keys.group, *ids[3 * PAGE + 50 :: 100])
        assert give(order, lane.keys, Release("T"))["ok"]
    else:
        lane.worker("w1", "--pool=solo")
    # Then all is done, in order
    lane.wait_done(count)
    assert lane.log("T") == list(range(count))
    lane.assert_at_rest()
