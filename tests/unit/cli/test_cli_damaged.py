"""Commands that read a lane of which somebody destroyed or damaged a part by hand: they show the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from bridge.operate.draining import wait_empty
from bridge.protocol import unreadable
from bridge.protocol.agreement import leaders_facts
from bridge.protocol.drain_orders import DrainOrder, read_drain_order
from bridge.protocol.registration import read_registration
from bridge.protocol.unreadable import UNREADABLE
from bridge.protocol.unserved import Note, UnservedTask, read_note
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.connection import with_raw_replies
from bridge.routing.errors import OrderFailed
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane

READ = [
    *(("status",), ("consumer", "list"), ("ticket", "list"), ("ticket", "list", "--parked"), ("ticket", "show", "A")),
    *(("pending",), ("pending", "--limit", "9"), ("pending", "--state", "in-flight"), ("pending", "--ticket", "A")),
    *(("delayed", "list"), ("dead", "list"), ("subscription", "list"), ("stream", "list")),
]


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    """A lane with tickets that are in flight, await a retry, wait and are parked."""
    made = Lane(server)
    made.make_group()
    made.lead()
    made.join("w1@h")
    ids = made.add("A", "B", "C", "D")
    made.read()
    made.dispatch("w1@h", "A", ids[:1])
    made.hold_back("B", ids[1], 2, 60_000, "ValueError: no")
    parked = records.record(records.PARKED, records.tail("", "", 1, [], 1, "by hand"))
    made._do(Batch(expected={"D": ""}, records=["D", parked]))
    yield made
    made.redis.close()


def without_its_group(lane: Lane) -> None:
    lane.redis.xgroup_destroy(lane.keys.stream, lane.keys.group)


def without_its_stream(lane: Lane) -> None:
    lane.redis.delete(lane.keys.stream)


@pytest.mark.parametrize("destroy", [without_its_group, without_its_stream], ids=lambda destroy: destroy.__name__)
def test_what_is_left_is_shown(destroy: Callable[[Lane], None], shell: CommandLine, lane: Lane) -> None:
    destroy(lane)
    said = {command: shell(*command) for command in READ}
    assert {command: result.stderr for command, result in said.items() if result.exit_code} == {}
    assert {one["ticket_id"] for one in shell.json("ticket", "list")["tickets"]} == {"A", "B", "D"}


#: Values in the place of any other.
ANY = [b"garbage", b"", b"[]", b"{}", b"7", b"null", b"\xff", b"1e999", b'"x"', b"[[]]", b'{"settings": 7}']


def damaged(dice: random.Random, good: bytes) -> bytes:
    """``good`` with one part changed or taken away, or another value."""
    fields = orjson.loads(good)
    name = dice.choice(list(fields) if isinstance(fields, dict) else range(len(fields)))
    changed = fields.copy()
    if dice.random() < 0.3:
        del changed[name]
    else:
        changed[name] = dice.choice([None, True, -1, 2**63, 1.5, "x", "", [], [7], {}, {"a": 7}])
    return dice.choice([*ANY, *[orjson.dumps(changed)] * len(ANY)])


def is_read(read: Callable[[bytes], Any], text: bytes) -> bool:
    try:
        read(text)
    except UNREADABLE:
        return False
    return True


@pytest.mark.parametrize("seed", range(12))
def test_what_cannot_be_read_is_left_out_and_named(
    seed: int, shell: CommandLine, lane: Lane, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreadable, "_said", set())
    dice = random.Random(seed)
    keys, redis = lane.keys, lane.redis
    registration: Any = redis.hget(keys.consumers, "w1@h")
    record: Any = redis.hget(keys.tickets, "A")
    facts = orjson.dumps({"version": "1", "settings": {"lease": 6.0}, "kinds": ["http"]})
    note = Note(UnservedTask("shop.pay", 1, 1, 7, False, None, None), 1.5).text()
    # Given values that somebody wrote by hand
    values: list[tuple[str, str, bytes, Callable[[bytes], Any]]] = [
        (keys.consumers, "w2@h", registration, read_registration),
        (keys.drains, "w1@h", DrainOrder(7, 1.5).text().encode(), read_drain_order),
        (keys.unserved, "shop.pay", note, lambda text: read_note(b"shop.pay", text)),
        (keys.about, "master", facts, leaders_facts),
        (keys.tickets, "C", record, records.parse),
    ]
    bad = [(key, name, damaged(dice, good), read) for key, name, good, read in values]
    for key, name, value, _ in bad:
        redis.hset(key, name, value)
    redis.hset(keys.counts, "done", "garbage")
    redis.set(keys.held(lane.incarnations["w1@h"]), damaged(dice, b'{"n":1,"fences":[1]}'))
    redis.lpush(
        keys.queue("w1@h"), dice.choice([b"bridge_request", b'{"headers":{"bridge_request":1}}', b'"bridge_request"'])
    )
    # Then each command shows the rest
    commands = [*READ, ("ticket", "show", "C")]
    said = {command: shell(*command) for command in commands}
    assert {command: result.stderr for command, result in said.items() if result.exit_code} == {}
    assert {"A", "B", "D"} <= {one["ticket_id"] for one in shell.json("ticket", "list")["tickets"]}
    found = shell.json("status")
    assert "w1@h" in [one["name"] for one in found["consumers"]]
    # And names what it left out
    where = [
        f"the field {name!r} of the key {key} cannot be read"
        for key, name, value, read in bad
        if not is_read(read, value)
    ]
    told = "\n".join(found["problems"]) + caplog.text
    assert [one for one in where if one not in told] == []
    assert f"the counter 'done' of the key {keys.counts} is not counted: it holds no number" in told
    assert ("cannot be read" in shell.json("ticket", "show", "C")["why"]) != is_read(records.parse, bad[-1][2])
    assert ("w2@h" in said["consumer", "list"].stdout) == is_read(read_registration, bad[0][2])
    assert ("'w2@h'" in said["consumer", "list"].stderr) != is_read(read_registration, bad[0][2])


def test_a_lane_is_not_deleted_while_a_registration_in_it_cannot_be_read(shell: CommandLine, lane: Lane) -> None:
    lane.depose()
    lane.end_lease("w1@h")
    lane.redis.hset(lane.keys.consumers, "w2@h", "garbage")
    before = set(lane.redis.keys())
    remove = ("subscription", "remove", lane.keys.group, "--yes")
    refused = shell(*remove)
    assert (refused.exit_code, len(refused.stderr.splitlines()), set(lane.redis.keys())) == (1, 1, before)
    assert f"the field 'w2@h' of the key {lane.keys.consumers} cannot be read, so its consumer may be" in refused.stderr
    lane.redis.hdel(lane.keys.consumers, "w2@h")
    assert shell(*remove).exit_code == 0


def test_a_drain_waits_for_a_consumer_whose_registration_cannot_be_read(lane: Lane) -> None:
    lane.redis.hset(lane.keys.consumers, "w1@h", "garbage")
    told: list[int] = []
    with pytest.raises(OrderFailed, match=r"1 message in flight after .*; it goes on draining"):
        wait_empty(with_raw_replies(lane.redis), [lane.keys], "w1@h", 0, told.append)
    assert told == [1]
