"""Delayed messages, with real masters and workers: when they go out, in which order, and what a killed leader does."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.audit.audit import audit
from bridge.operate.orders import give
from bridge.protocol.orders import ChangeDelayed, DelayedAct, Park, Release
from bridge.routing.history import What
from bridge.routing.ids import member_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, Kept, LaneUnderTest, kept_in_each_mode


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def unled(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


kept = kept_in_each_mode()


@pytest.fixture
def lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A lane with a master and a worker."""
    yield from kept.lend()


def now_ms(lane: LaneUnderTest) -> int:
    seconds, us = lane.redis.time()
    return seconds * 1000 + us // 1000


def push(lane: LaneUnderTest, ticket: str, n: int, delay_ms: int = 0, *, hold: bool = False) -> str:
    fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": n})}
    if delay_ms:
        fields["due"] = now_ms(lane) + delay_ms
    if hold:
        fields["hold"] = 1
    id_: Any = lane.redis.xadd(lane.keys.stream, fields)
    return str(id_)


def push_at(lane: LaneUnderTest, ticket: str, n: int, at_ms: int, due_ms: int | None = None) -> None:
    """Pushes a message as if it were that time, however late a slow machine is."""
    fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": n})}
    lane.redis.xadd(lane.keys.stream, fields if due_ms is None else fields | {"due": due_ms}, id=f"{at_ms}-0")


def delayed(lane: LaneUnderTest) -> int:
    return int(lane.redis.zcard(lane.keys.delayed))


def assert_nothing_left(lane: LaneUnderTest) -> None:
    lane.assert_at_rest()
    assert not lane.redis.exists(lane.keys.delayed, lane.keys.late, lane.keys.holding)


def test_others_overtake_a_delayed_message_and_a_held_ticket_waits(lane: LaneUnderTest) -> None:
    ids = push(lane, "over", 2, 60_000), push(lane, "held", 0, 60_000, hold=True)
    for n in range(2):
        push(lane, "over", n)
        push(lane, "held", 1 + n)
    wait_until(lambda: lane.log("over") == [0, 1], description="what came later to overtake")
    assert (delayed(lane), lane.log("held")) == (1, [])
    # They are due soon after that, however slow it was
    order = ChangeDelayed(DelayedAct.RESCHEDULE, ids, now_ms(lane) + 500)
    assert give(lane.server.client(), lane.keys, order)["changed"] == list(ids)
    lane.wait_done(6)
    assert (lane.log("over"), lane.log("held")) == ([0, 1, 2], [0, 1, 2])
    assert_nothing_left(lane)


def test_what_is_due_while_nobody_leads_goes_before_what_comes_later(unled: LaneUnderTest) -> None:
    now = now_ms(unled)
    push_at(unled, "A", 0, now, now + 300)
    push_at(unled, "A", 2, now + 1, now + 700)
    wait_until(lambda: now_ms(unled) > now + 301, description="the first to be due")
    push_at(unled, "A", 1, now + 301)
    unled.worker("w1")
    unled.master("m1")
    unled.wait_done(3)
    assert unled.log("A") == [0, 1, 2]
    assert_nothing_left(unled)


def test_what_was_due_goes_first_and_a_deleted_entry_is_a_dead_letter_although_the_ended_leader_read_on(
    unled: LaneUnderTest,
) -> None:
    master = unled.master("m1")
    ids = [push(unled, "A", n, 60_000) for n in range(3)]
    wait_until(lambda: delayed(unled) == 3, description="the messages to be delayed")
    master.kill()
    unled.redis.xdel(unled.keys.stream, ids[1])
    # As by an order that reschedules them. They are not due before the leader has ended, however late that is
    due = now_ms(unled) + 10
    unled.redis.zadd(unled.keys.delayed, {member_of(id_): due + n for n, id_ in enumerate(ids)}, xx=True)
    wait_until(lambda: now_ms(unled) > due + 3, description="the messages to be due")
    push(unled, "A", 3)
    # The leader ended between its read and the move of what was due.
    unled.redis.xreadgroup(unled.keys.group, "master", {unled.keys.stream: ">"})
    unled.worker("w1")
    unled.master("m2")
    unled.wait_done(4)
    assert unled.log("A") == [0, 2, 3]
    assert [letter["message_id"] for letter in unled.dead_letters()] == [ids[1]]
    assert_nothing_left(unled)


def test_a_delayed_message_waits_under_a_name_of_its_own_and_keeps_its_id(lane: LaneUnderTest) -> None:
    id_ = push(lane, "A", 0, 60_000)
    wait_until(lambda: delayed(lane), description="the message to be delayed")
    assert lane.in_flight("master/delayed") == [id_]
    assert lane.redis.zrange(lane.keys.delayed, 0, -1) == [member_of(id_)]
    # Nothing of it is in the window: a ticket has no record
    assert not lane.redis.exists(lane.keys.tickets, lane.keys.retries)
    answer = give(lane.server.client(), lane.keys, ChangeDelayed(DelayedAct.NOW, (id_,)))
    assert answer == {"ok": True, "changed": [id_], "refused": []}
    lane.wait_done(1)
    assert_nothing_left(lane)


def test_orders_cancel_and_reschedule_what_is_not_due(lane: LaneUnderTest) -> None:
    client = lane.server.client()
    gone, moved = push(lane, "A", 9, 60_000), push(lane, "A", 1, 60_000)
    held, later = push(lane, "H", 9, 60_000, hold=True), push(lane, "H", 1, 60_000, hold=True)
    push(lane, "A", 0)
    push(lane, "H", 2)
    wait_until(lambda: lane.redis.zcard(lane.keys.holding) == 2, description="the held ones to be read")
    answer = give(client, lane.keys, ChangeDelayed(DelayedAct.CANCEL, (gone, held, "5-5")))
    assert answer["changed"] == [gone, held]
    assert answer["refused"] == [["5-5", "message 5-5 is not delayed"]]
    push(lane, "H", 3)
    holds_for(lambda: lane.log("H") == [], description="the next held one to be waited for", duration_s=0.3)
    answer = give(client, lane.keys, ChangeDelayed(DelayedAct.RESCHEDULE, (moved, later), now_ms(lane) + 500))
    assert answer["changed"] == [moved, later]
    lane.wait_done(5)
    assert (lane.log("A"), lane.log("H")) == ([0, 1], [1, 2, 3])
    assert lane.count("cancelled") == 2
    assert_nothing_left(lane)


def test_a_due_message_of_a_parked_ticket_is_put_aside_and_goes_out_in_order(lane: LaneUnderTest) -> None:
    client = lane.server.client()
    give(client, lane.keys, Park("A"))
    now = now_ms(lane) + 1
    push_at(lane, "A", 1, now, now + 300)
    push_at(lane, "A", 0, now + 1)
    shelf = lane.keys.parked_consumer("master", "A")
    wait_until(lambda: len(lane.in_flight(shelf)) == 2, description="both to be put aside")
    wait_until(lambda: now_ms(lane) > now + 300, description="the first one to be due")
    push(lane, "A", 2)
    wait_until(lambda: len(lane.in_flight(shelf)) == 3, description="the last one to be put aside")
    give(client, lane.keys, Release("A"))
    lane.wait_done(3)
    assert lane.log("A") == [0, 1, 2]
    assert_nothing_left(lane)


def test_delayed_entries_that_were_changed_by_hand_are_delayed_again(lane: LaneUnderTest) -> None:
    ids = [push(lane, "A", n, 60_000) for n in range(4)]
    wait_until(lambda: delayed(lane) == 4, description="the messages to be delayed")
    stream, group = lane.keys.stream, lane.keys.group
    # One is acknowledged, one claimed, one deleted, and one is not in the set any more
    lane.redis.xack(stream, group, ids[0])
    lane.redis.xclaim(stream, group, "somebody", 0, [ids[1]])
    lane.redis.xdel(stream, ids[2])
    lane.redis.zrem(lane.keys.delayed, member_of(ids[3]))
    left = [ids[0], ids[1], ids[3]]
    wait_until(
        lambda: lane.in_flight("master/delayed") == left and delayed(lane) == 3,
        description="them to be delayed again",
    )
    wait_until(lane.dead_letters, description="the letter of the deleted one")
    assert [letter["message_id"] for letter in lane.dead_letters()] == [ids[2]]
    wait_until(lambda: lane.count("tampered"), description="the changes to be counted")
    give(lane.server.client(), lane.keys, ChangeDelayed(DelayedAct.NOW, tuple(left)))
    wait_until(lambda: lane.log("A") == [0, 1, 3], description="the others to be handled")
    assert_nothing_left(lane)


def test_members_that_are_no_messages_end_no_leader_and_keep_no_message_back(lane: LaneUnderTest) -> None:
    leader = lane.redis.get(lane.keys.leader)
    first = push(lane, "A", 0, 60_000)
    wait_until(lambda: delayed(lane) == 1, description="the message to be delayed")
    # One that is due, and two that are not, as somebody may write them by hand
    lane.redis.zadd(lane.keys.delayed, {b"due": 1, b"later": 2**45, b"\xff": 2**45})
    wait_until(lambda: delayed(lane) == 1, description="them to be removed")
    # Among late messages they are found when some are looked at
    lane.redis.zadd(lane.keys.late, {b"late": 1, b"\xff": 1})
    lane.redis.xack(lane.keys.stream, lane.keys.group, first)
    wait_until(lambda: not lane.redis.exists(lane.keys.late), description="those to be removed")
    push(lane, "A", 1)
    give(lane.server.client(), lane.keys, ChangeDelayed(DelayedAct.NOW, (first,)))
    lane.wait_done(2)
    assert sorted(lane.log("A")) == [0, 1]
    # In one term
    assert lane.redis.get(lane.keys.leader) == leader
    assert_nothing_left(lane)


@pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_leader_killed_around_the_moving_loses_and_doubles_nothing(
    unled: LaneUnderTest, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**9)
    dice = random.Random(seed)
    with capsys.disabled():
        print(f"seed {seed}", end=" ")
    unled.worker("w1")
    masters = [unled.master("m1"), unled.master("m2")]
    tickets = 5
    expected: dict[str, list[tuple[Any, int]]] = {f"T{t}": [] for t in range(tickets)}
    n = 0
    for _ in range(rounds):
        for _ in range(60):
            ticket = f"T{dice.randrange(tickets)}"
            delay_ms = dice.choice([0, 0, 300, 600, 900])
            due = now_ms(unled) + delay_ms
            fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": n})}
            if delay_ms:
                fields["due"] = due
            raw: Any = unled.redis.xadd(unled.keys.stream, fields)
            key = tuple(map(int, str(raw).split("-")))
            late = delay_ms > 0 and due > key[0]
            expected[ticket].append(((due, 2**64, *key) if late else key, n))
            n += 1
        kill_at = now_ms(unled) + dice.randrange(200, 1000)
        wait_until(lambda kill_at=kill_at: now_ms(unled) >= kill_at, description="the time to kill", interval_s=0.005)  # type: ignore[misc]
        token = unled.wait_leader()
        # The token may still be that of the one that was killed before.
        victim = next((master for master in masters if f":{master.pid}:" in token), masters[0])
        victim.kill()
        victim.wait()
        victim.start()
    unled.wait_done(n, timeout_s=180)
    found = {ticket: unled.log(ticket) for ticket in expected}
    assert found == {ticket: [number for _, number in sorted(those)] for ticket, those in expected.items()}, seed
    assert unled.count("done") == n
    assert_nothing_left(unled)
    with unled.server.client(protocol=2) as client:
        verdict = audit(client, unled.keys, since="0")
    assert verdict.ok, (seed, verdict.examples)


def test_a_lane_beyond_its_lag_skips_nothing_that_others_overtake(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    conf = {"bridge_max_lag": {"count": 20, "then": "skip"}}
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_CONF=json.dumps(conf))
    dice = random.Random(secrets.randbits(32))
    due, over = now_ms(lane) + 3_600_000, now_ms(lane) - 1000
    # Of all sizes and forms: a leader that skips asks for the beginnings of entries only.
    forms: list[dict[Any, Any]] = [
        {"payload": '{"n": 1}'},
        {"payload": json.dumps({"n": 1, "text": "x" * 10_000})},
        {f"field{n}": "x" * 500 for n in range(40)},
        {f"field{n}": "x" for n in range(40)},
    ]
    later = set()
    for n in range(330):
        # The last ones may stay unread.
        whens: list[dict[Any, Any]] = [{"due": due}, {"due": due, "hold": 1}, {"due": over}, {"due": "soon"}, {}]
        when = dice.choice(whens) if n < 300 else {}
        fields = {"ticket_id": f"T{n}", **dice.choice(forms), **when}
        id_ = str(lane.redis.xadd(lane.keys.stream, fields))
        if when == {"due": due}:
            later.add(id_)
    lane.master("m1")
    wait_until(lambda: lane.count("skipped") + delayed(lane) > 200, description="most to be read")
    wait_until(lambda: delayed(lane) == len(later), description="all that are due later to be delayed")
    assert set(lane.redis.zrange(lane.keys.delayed, 0, -1)) == {member_of(id_) for id_ in later}
    assert set(lane.in_flight("master/delayed")) == later
    found = audit(lane.server.client(), lane.keys)
    assert found.ok, found.examples
    assert (found.rows[What.SKIPPED], found.rows[What.DELAYED]) == (lane.count("skipped"), len(later))
