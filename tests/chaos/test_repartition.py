"""A run with repartitions: its lanes, what is judged over layouts, its producer, and how it looks after the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

import tests.chaos.repartition
from bridge.routing.layouts import claim_layout, find_layout
from bridge.routing.partitions import Layout, partition_of
from bridge.routing.repartitioning import forget_layout, leave_layout, next_layout, repartition
from bridge.routing.return_codes import ReturnCode
from bridge.stack.embedded import EmbeddedServer
from tests.chaos import chains
from tests.chaos.facts import Effect, Evidence, Execution, Message, Notes, Rest
from tests.chaos.feeder import FollowingFeeder, Planned
from tests.chaos.repartition import Lanes, Repartitions, layouts
from tests.chaos.subscriptions import ONE, STREAM, Subscription, split

BEFORE = Layout(2)
AFTER = next_layout(BEFORE, 3)


def lanes() -> Lanes:
    found = Lanes(list(split((Subscription("a", label="a/"), Subscription("b", label="b/")), 2)))
    found.split(AFTER)
    return found


def test_each_layout_has_the_lanes_of_all_subscriptions() -> None:
    found = lanes()
    assert {one.keys.stream for one in found.older} == set(BEFORE.streams(STREAM))
    assert {one.keys.stream for one in found.newest} == set(AFTER.streams(STREAM))
    assert len(found.every) == 2 * (2 + 3)
    pairs = layouts(found.every)
    assert [(len(before), len(after)) for before, after in pairs] == [(2, 3), (2, 3)]
    assert all({one.name for one in before} == {one.name for one in after} for before, after in pairs)


def test_a_lane_has_the_messages_and_the_rows_of_its_layout() -> None:
    ticket = next(f"T{n}" for n in range(99) if partition_of(f"T{n}", 2) == partition_of(f"T{n}", 3) == 0)
    older = split(ONE, 2)[0]
    newer = replace(older, partitions=3, generation=1)
    pushed = [
        Message("1-0", ticket, 0),
        Message("2-0", ticket, 1, generation=1),
        Message("3-0", ticket, 2, generation=1),
    ]
    assert [one.message_id for one in older.wanted(pushed)] == ["1-0"]
    assert [(one.message_id, one.n) for one in newer.wanted(pushed)] == [("2-0", 0), ("3-0", 1)]
    assert (older.own_id("1-0@p0"), older.own_id("2-0@g1p0")) == ("1-0", "")
    assert (newer.own_id("1-0@p0"), newer.own_id("2-0@g1p0"), newer.own_id("2-0@g11p0")) == ("", "2-0", "")


MS = 1_000_000
WALL_MS = 1_700_000_000_000


def ran(ticket: str, generation: int, pushed: int, start: int) -> Evidence:
    """The evidence of a lane with one message, all times in ms. It works for 10 ms."""
    id_ = f"{WALL_MS + pushed}-0"
    fence = (WALL_MS + start) * 1000
    execution = Execution(
        ticket=ticket,
        message_id=id_,
        n=0,
        attempt=1,
        fence=fence,
        consumer="w1",
        pool="prefork",
        pid=1,
        parent=0,
        start_ns=start * MS,
        wall_ns=(WALL_MS + start) * MS,
        seen_ns=(start + 10) * MS,
        end_ns=(start + 10) * MS,
        outcome="done",
    )
    effect = Effect(ticket, id_, 0, fence, WALL_MS + start + 11, place=generation)
    message = Message(id_, ticket, 0, generation=generation)
    return Evidence([message], [execution], [effect], [], Rest(), Notes(), 5)


def over(before: Sequence[Evidence], after: Sequence[Evidence]) -> set[str]:
    found = chains.check_chain(chains.together(before), chains.together(after))
    return {violation.invariant for violation in found}


def test_a_message_of_the_later_layout_before_one_of_an_earlier_one_is_found_in_whatever_partition() -> None:
    other = ran("U", 0, 0, 400)
    assert over([other, ran("T", 0, 0, 50)], [ran("T", 1, 20, 90)]) == set(), "ids of two partitions may be equal"
    assert over([other, ran("T", 0, 0, 90)], [ran("T", 1, 20, 50)]) >= {chains.OVERTAKEN}


@pytest.mark.parametrize("first", [1, 2])
def test_the_producer_follows_the_layout_and_knows_what_arrived_where(
    server: EmbeddedServer, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source(counts: dict[str, int]) -> Planned:
        n = sum(counts.values())
        ticket = f"T{n % 5}"
        return ticket, ("chaos.work", "chaos.limited")[n % 3 == 0], {"n": counts.get(ticket, 0)}, False

    with server.client() as raw, server.client(decode_responses=True) as redis:
        claim_layout(raw, STREAM, first)
        feeder = FollowingFeeder(redis, source, server.url, first)
        assert feeder.push(20) == 20
        made = next_layout(find_layout(raw, STREAM, first), 3)
        assert repartition(raw, STREAM, find_layout(raw, STREAM, first), made)[0] is ReturnCode.OK
        assert feeder.push(20) == 20
        add = feeder._add
        # The reply to a push is lost, of which some has arrived.
        with monkeypatch.context() as patched:

            def lose(batch: Sequence[Planned]) -> list[str]:
                add(batch[:7])
                raise RedisConnectionError("cut off")

            patched.setattr(feeder, "_add", lose)
            assert feeder.push(20) == 0
        assert feeder.settle()
        assert len(feeder.messages) == 47
        assert feeder.push(13) == 13
        feeder.close()
        assert {message.generation for message in feeder.messages} == {0, 1}
        layouts_of = (Layout(first), made)
        for message in feeder.messages:
            layout = layouts_of[message.generation]
            stream = layout.stream(STREAM, partition_of(message.ticket, layout.partitions))
            [(_, fields)] = redis.xrange(stream, message.message_id, message.message_id)
            assert (fields["ticket_id"], json.loads(fields["payload"])) == (message.ticket, {"n": message.n})
        redis.flushall()


class FakeCommand:
    """A process that runs until it is ended."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def wait(self) -> None:
        return


def test_what_is_left_of_old_partitions_is_noted_before_the_command_may_delete_it(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.chaos.repartition, "LOOK_S", 0.0)
    monkeypatch.setattr(tests.chaos.repartition, "AGAIN_S", 0.0)
    started: list[FakeCommand] = []
    switched: list[int] = []
    closed: list[int] = []
    certain = [False]

    def start(words: Sequence[str]) -> Any:
        started.append(FakeCommand(words))
        return started[-1]

    producer: Any = SimpleNamespace(settle=lambda: certain[0])
    with server.client() as raw, server.client(decode_responses=True) as redis:
        claim_layout(raw, STREAM, 2)
        found = Lanes(list(split(ONE, 2)))
        under_test = Repartitions(
            redis, found, start, producer, lambda: switched.append(1), lambda gone: closed.append(len(gone))
        )
        assert under_test.begin(0.3, 0.0, 0.0)
        assert not under_test.begin(0.3, 0.0, 0.0), "one at a time"
        under_test.tick()
        assert [one.words for one in started] == [["3"]]
        # A dead letter in an old partition is kept, and does not hold the partition
        old = found.newest[0].keys
        fields: Any = {"message_id": "1-0@p0", "ticket_id": "T", "attempts": "5", "reason": "r"}
        redis.xadd(old.dead, fields)
        redis.hset(old.counts, "dead", "1")
        known = find_layout(raw, STREAM, 2)
        assert repartition(raw, STREAM, known, next_layout(known, 3))[0] is ReturnCode.OK
        under_test.tick()
        assert switched == [1]
        under_test.tick()
        assert redis.xlen(old.dead) == 0
        [letter] = found.letters[found.older[0]].values()
        assert letter.message_id == "1-0@p0"
        # They are left, and the run looks when it knows what was pushed
        assert leave_layout(raw, STREAM, find_layout(raw, STREAM, 2), [])[0] is ReturnCode.OK
        under_test.tick()
        assert not closed
        certain[0] = True
        under_test.tick()
        assert closed == [2]
        assert found.left[found.older[0]].counts == {"dead": "1"}
        assert found.there == found.newest
        under_test.tick()
        assert [one.words for one in started] == [["3"], ["3", "--drop-kept"]]
        assert under_test.busy
        forget_layout(raw, STREAM, find_layout(raw, STREAM, 2))
        under_test.tick()
        assert (under_test.busy, under_test.done) == (False, 1)
        # The next one does not begin with what deletes
        started[-1].code = 0
        assert under_test.begin(0.0, 0.9, 0.0)
        under_test.tick()
        assert started[-1].words == ["1"]
        # It is killed, and run again
        monkeypatch.setattr(under_test, "_kill_at", 0.0)
        under_test.tick()
        under_test.tick()
        assert (under_test.killed, len(started)) == (1, 4)
        under_test.stop()
        redis.flushall()
