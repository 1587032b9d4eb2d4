"""Values in the lane's hashes that a leader cannot read: it goes on without them."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import orjson
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

import bridge
from bridge.app.lanes import lane_of
from bridge.leader.consumers import lost_runs, membership
from bridge.leader.consumers.lost_runs import LostRuns
from bridge.leader.consumers.membership import Consumers
from bridge.leader.duties import unknown_tasks
from bridge.leader.duties.unknown_tasks import UnknownTasks
from bridge.leader.leader import Leader
from bridge.link.connections import client
from bridge.link.server_clock import ServerClock
from bridge.protocol.drain_orders import DrainOrder
from bridge.protocol.registration import ChangingFacts, Profile, Registrations, RunnableTasks
from bridge.protocol.unserved import Note, UnservedTask
from bridge.routing.batch import Batch
from bridge.stack.embedded import EmbeddedServer
from tests.script_calls import lead
from tests.unit.leader.lane_world import LaneWorld
from tests.unreadable_values import JSON, like

FACTS = ChangingFacts(1, RunnableTasks(["short"], [], {}, {"short": {"bundle": False}}))
REGISTRATION = Profile("queue:w1", FACTS, "prefork", 7, 1.5, {}).text("life1", 2.5, 6000)
ORDER = DrainOrder(7, 1.5).text().encode()
NOTE = Note(UnservedTask("long", 1, 1, 7, False, None, None), 1.5).text()


class Redis:
    """A server that answers each question with what was made for its key."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._asked: list[Any] = []

    def hgetall(self, key: str) -> Any:
        self._asked.append(self._found.get(key, {}))
        return self._asked[-1]

    get = hgetall

    def pipeline(self, **_: Any) -> Any:
        self._asked = []
        return nullcontext(self)

    def execute(self) -> list[Any]:
        return self._asked


NAMES = st.sampled_from([b"bad@h", b"\xff"])


@given(name=NAMES, registration=like(REGISTRATION), order_of=NAMES | st.just(b"w1@h"), order=like(ORDER))
def test_a_leader_finds_all_other_consumers(name: bytes, registration: bytes, order_of: bytes, order: bytes) -> None:
    world = LaneWorld()
    keys = world.settings.keys
    own = orjson.dumps({**orjson.loads(REGISTRATION), "incarnation": "own"})
    redis = Redis({keys.consumers: {name: registration, b"w1@h": own}, keys.drains: {order_of: order}})
    leases: Any = SimpleNamespace(know=lambda *_: None, ask=lambda *_: {"own": 6000})
    steps: Any = SimpleNamespace(on_notice={})
    traits: Any = SimpleNamespace(forget=lambda: None)
    term = replace(world.term, redis=cast("Any", redis))
    consumers = Consumers(term, world.lane, steps, leases, Registrations(), traits)
    with patch.object(membership, "drain", lambda *_: None):
        for _ in range(2):
            consumers.find()
    assert world.lane.consumers["own"].alive


@given(report=like(b'{"n":1,"fences":[1]}'))
def test_a_leader_compares_all_other_reports(report: bytes) -> None:
    world = LaneWorld()
    for name in ("w1@h", "w2@h"):
        world.join(name)
    probed: list[bytes] = []
    queues: Any = SimpleNamespace(probe=lambda _consumer, oldest, _now: probed.append(oldest))
    held = {world.settings.keys.held("life1"): report}
    lost = LostRuns(replace(world.term, redis=cast("Any", Redis(held))), cast("Any", world), queues)
    with patch.object(lost_runs, "oldest", lambda *_: [b"", b"waits"]):
        lost.find(list(world.lane.consumers.values()))
    assert probed == [b"waits"]


@given(name=NAMES, at=st.binary(max_size=9) | JSON.map(orjson.dumps), note=like(NOTE))
def test_a_new_leader_reads_all_other_notes(name: bytes, at: bytes, note: bytes) -> None:
    world = LaneWorld()
    keys = world.settings.keys
    redis = Redis({keys.known: {name: at, b"short": b"7"}, keys.unserved: {name: note, b"long": NOTE}})
    parts = (cast("Any", world), world.settling, world.breakers, Registrations(), world.refill)
    tasks = UnknownTasks(replace(world.term, redis=cast("Any", redis)), world.lane, *parts)
    tasks.read_notes()
    with patch.object(unknown_tasks, "note_tasks", lambda *_: None):
        tasks.look()
    assert tasks._known["short"] == 7
    assert world.lane.stranded.waiting["long"].waited_s >= 1.5


def test_a_leader_names_a_counter_that_it_cannot_raise_once(
    valkey: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a leader, and a counter that somebody wrote by hand
    app = Celery("shop", broker=valkey.url, set_as_current=False)
    bridge.install(app)
    lane = lane_of(app)
    with client(valkey.url) as redis, client(valkey.url) as other:
        keys = lane.settings.keys
        redis.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
        token = lead(redis, keys, "m", 6000)[1]
        leader = Leader(app, valkey.url, lane, token, ServerClock(6.0))
        other.hset(keys.counts, "done", "garbage")
        # When it counts in two steps
        for _ in range(2):
            leader._steps.advance(Batch(counts={"done": 1, "dead": 1}))
        # Then it goes on, and has said so once
        assert other.hget(keys.counts, "dead") == b"2"
        leader.close()
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"the counter 'done' of the key {keys.counts} is not counted: ")
