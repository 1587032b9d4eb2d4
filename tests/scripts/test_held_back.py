"""Entries that look done wait until the leaders of the other lanes have compared (`bridge.leader.stream.held_back`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
import redis

import bridge.leader.stream.held_back
import bridge.leader.stream.retention
from bridge.leader.stream.held_back import COMPARISONS, FEW, LOOK_S, STUCK
from bridge.leader.stream.retention import AGAIN_S, REFUSED_S
from bridge.routing.batch import Batch
from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys
from bridge.routing.transitions import Leadership, all_agreed, floor
from tests.scripts.keeping import NEAR, WRITTEN, Clock, acknowledged, keeper, left, letter
from tests.scripts.world import MASTER, THIRD, TOKEN, Client, World

pytestmark = pytest.mark.scripts


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all tests here."""
    clock = Clock()
    for module in (bridge.leader.stream.retention, bridge.leader.stream.held_back):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Two:
    """Two lanes of one stream that have read eight entries. This leader's lane is done with all."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.near = LaneKeys(world.keys.stream, NEAR)
        world.client.set(self.near.agreed, 0)
        self.ids = world.push("T", count=8)
        world.client.xgroup_create(world.keys.stream, NEAR, "0")
        self.read_again()
        world.read()
        acknowledged(world, self.ids)
        self.retention = keeper(world)

    def read_again(self) -> None:
        stream = self.world.keys.stream
        self.world.client.execute_command("XREADGROUP", "GROUP", NEAR, MASTER, "STREAMS", stream, ">")

    def acknowledge(self, ids: Sequence[str]) -> None:
        """XACK in the group of the other lane, by its leader or by hand."""
        acknowledged(self.world, list(ids), NEAR)

    def make_pending(self, id_: str) -> None:
        """What the leader of the other lane does with an entry that was acknowledged by hand."""
        self.world.client.xclaim(self.world.keys.stream, NEAR, MASTER, 0, [id_], force=True)

    def compare(self, times: int = 1) -> None:
        """The leader of the other lane compares, and counts it."""
        for _ in range(times):
            self.world.client.incr(self.near.agreed)

    def remove(self) -> list[str]:
        """What is left after this leader has looked at the counts, and has removed what may leave."""
        self.clock.now_s += LOOK_S
        self.retention.remove()
        return left(self.world)


@pytest.fixture
def two(fresh: World, clock: Clock) -> Two:
    return Two(fresh, clock)


def by_acknowledgement(two: Two) -> None:
    two.retention.settled(WRITTEN, Batch(acknowledged=two.ids))
    two.retention.remove()


def by_pass(two: Two) -> None:
    two.retention.sweep()


WAYS = pytest.mark.parametrize("find", [by_acknowledgement, by_pass])


@WAYS
def test_an_entry_leaves_after_the_other_leader_has_begun_to_compare_since(
    find: Callable[[Two], None], two: Two
) -> None:
    two.compare(5)
    two.acknowledge(two.ids)
    find(two)
    assert left(two.world) == two.ids
    # The counts are noted at the first look.
    two.compare()
    assert two.remove() == two.ids
    for _ in range(COMPARISONS - 1):
        two.compare()
        assert two.remove() == two.ids
    assert not two.retention.idle
    two.compare()
    assert two.remove() == []
    assert not two.retention.waits


@WAYS
def test_an_entry_that_was_acknowledged_by_hand_stays(find: Callable[[Two], None], two: Two) -> None:
    two.acknowledge(two.ids)
    find(two)
    two.remove()
    # Of two that somebody had acknowledged by hand, one waits again, and one has failed for good since.
    two.make_pending(two.ids[2])
    letter(two.world, two.ids[5], NEAR)
    two.compare(COMPARISONS)
    assert two.remove() == [two.ids[2], two.ids[5]]


def test_a_pass_compares_nothing_for_what_is_held_back_already(two: Two, clock: Clock) -> None:
    compared: list[bool] = []

    def agrees() -> bool:
        compared.append(True)
        return True

    two.retention = keeper(two.world, agrees=agrees)
    two.acknowledge(two.ids)
    by_pass(two)
    clock.now_s += AGAIN_S
    by_pass(two)
    assert len(compared) == 1


def test_each_lane_is_waited_for(two: Two, clock: Clock) -> None:
    world = two.world
    third = LaneKeys(world.keys.stream, THIRD)
    world.client.set(third.agreed, 0)
    world.client.xgroup_create(world.keys.stream, third.group, "$")
    two.acknowledge(two.ids)
    by_pass(two)
    two.remove()
    two.compare(COMPARISONS)
    assert two.remove() == two.ids
    world.client.incr(third.agreed, COMPARISONS)
    assert two.remove() == []


def test_what_is_found_later_waits_for_later_comparisons(two: Two, clock: Clock) -> None:
    two.acknowledge(two.ids[:4])
    by_pass(two)
    two.remove()
    two.compare()
    two.acknowledge(two.ids[4:])
    clock.now_s += AGAIN_S
    by_pass(two)
    two.remove()
    two.compare()
    assert two.remove() == two.ids[4:]
    two.compare()
    assert two.remove() == []


def test_counts_that_begin_again_are_counted_from_there(two: Two) -> None:
    two.compare(7)
    two.acknowledge(two.ids)
    by_pass(two)
    two.remove()
    for text in ("no number", "9" * 5000, "0"):
        two.world.client.set(two.near.agreed, text)
        assert two.remove() == two.ids
    two.world.client.delete(two.near.agreed)
    two.world.client.rpush(two.near.agreed, "a list")
    assert two.remove() == two.ids
    two.world.client.set(two.near.agreed, 0)
    two.compare(COMPARISONS - 1)
    assert two.remove() == two.ids
    two.compare()
    assert two.remove() == []


def test_a_group_that_becomes_a_lane_is_waited_for(two: Two) -> None:
    two.world.client.delete(two.near.agreed)
    third = LaneKeys(two.world.keys.stream, THIRD)
    two.world.client.set(third.agreed, 0)
    two.world.client.xgroup_create(two.world.keys.stream, third.group, "$")
    two.acknowledge(two.ids)
    by_pass(two)
    two.remove()
    # Given that the neighbour was another program's so far
    two.world.client.set(two.near.agreed, 5)
    two.world.client.incr(third.agreed, COMPARISONS)
    assert two.remove() == two.ids
    two.compare(COMPARISONS)
    assert two.remove() == []


def test_another_group_needs_what_was_held_back(two: Two, clock: Clock) -> None:
    two.acknowledge(two.ids)
    by_pass(two)
    two.remove()
    # When another group was made, which has not read them, before they are free
    two.world.client.xgroup_create(two.world.keys.stream, "new", "0")
    two.compare(COMPARISONS)
    assert two.remove() == two.ids
    # And when it has read and done them
    two.world.client.execute_command("XREADGROUP", "GROUP", "new", MASTER, "STREAMS", two.world.keys.stream, ">")
    acknowledged(two.world, two.ids, "new")
    for _ in range(2):
        clock.now_s += AGAIN_S
        two.retention.sweep()
    two.remove()
    two.compare(COMPARISONS)
    assert two.remove() == []


def test_more_entries_than_may_be_held_back_are_found_again(
    two: Two, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.leader.stream.held_back, "MOST", 5)
    two.acknowledge(two.ids)
    by_pass(two)
    # The next pass cannot begin. So nothing is to be called before the next slice.
    for _ in range(3):
        clock.now_s += AGAIN_S
        two.retention.sweep()
        assert two.retention.sweep_at > clock.now_s
    two.remove()
    two.compare(COMPARISONS)
    assert len(two.remove()) == 3
    clock.now_s += AGAIN_S
    two.retention.sweep()
    two.remove()
    two.compare(COMPARISONS)
    assert two.remove() == []


def test_a_lane_without_a_leader_keeps_no_other_one_awake(two: Two, clock: Clock) -> None:
    two.acknowledge(two.ids)
    by_pass(two)
    waited = [two.retention.waits]
    clock.now_s += STUCK * LOOK_S
    waited.append(two.retention.waits)
    assert (waited, two.remove()) == ([True, False], two.ids)
    # Its next leader frees them all the same.
    two.compare(COMPARISONS)
    assert two.remove() == []


def test_beside_many_lanes_a_leader_looks_more_seldom(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.leader.stream.held_back, "FEW", 1 / (3 * FEW))
    two.acknowledge(two.ids)
    by_pass(two)
    two.remove()
    two.compare(COMPARISONS)
    assert [len(two.remove()) for _ in range(3 * FEW)] == [len(two.ids)] * (3 * FEW - 1) + [0]


def test_nothing_waits_where_the_other_groups_are_no_lanes(two: Two) -> None:
    two.world.client.delete(two.near.agreed)
    two.acknowledge(two.ids)
    by_pass(two)
    assert left(two.world) == []


@pytest.mark.parametrize("find", ["remove", "sweep"])
@pytest.mark.parametrize("lacks", ["dead", "agreed"])
def test_a_master_that_may_not_ask_about_other_lanes_says_so_once_and_leaves_all(
    find: str, lacks: str, two: Two, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a user that may touch everything but one key of the other lane
    world = two.world
    two.acknowledge(two.ids)
    prefix = two.near.prefix
    rules = [f"~{world.keys.stream}", f"~{world.keys.prefix}:*", f"~{prefix}:{'agreed' if lacks == 'dead' else 'dead'}"]
    world.client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "resetkeys", "+@all", *rules)
    place = world.client.connection_pool.connection_kwargs
    limited: Client = redis.Redis(host=place["host"], port=place["port"], username="limited", password="any")
    try:
        retention = keeper(world, client=limited)
        for _ in range(3):
            if find == "remove":
                retention.settled(WRITTEN, Batch(acknowledged=two.ids))
            getattr(retention, find)()
        # It asks again after a while.
        for _ in range(3):
            clock.now_s += REFUSED_S
            retention.remove()
            retention.sweep()
            assert retention.sweep_at > clock.now_s, "it would be called again and again"
        assert left(world) == two.ids
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "`bridge acl master` prints" in caplog.text
        # When it may, then they leave as others do.
        world.client.execute_command("ACL", "SETUSER", "limited", f"~{prefix}:{lacks}")
        clock.now_s += REFUSED_S
        retention.sweep()
        two.retention = retention
        assert two.remove() == two.ids
        two.compare(COMPARISONS)
        assert two.remove() == []
    finally:
        limited.close()
        world.client.execute_command("ACL", "DELUSER", "limited")


# -- the count -----------------------------------------------------------------------------------------------------


def counted(world: World) -> int:
    return int(world.client.get(world.keys.agreed) or 0)


def test_a_leader_counts_its_comparisons(world: World) -> None:
    floor(world.client, world.lead, "9-0")
    assert counted(world) == 0
    floor(world.client, world.lead, "9-1", agreed=True)
    floor(world.client, world.lead, "", agreed=True)
    all_agreed(world.client, [world.lead, world.lead])
    assert counted(world) == 4
    assert world.client.get(world.keys.floor) == b"9-1"


@pytest.mark.parametrize(
    "count",
    [partial(floor, id_="9-0", agreed=True), lambda client, lead: all_agreed(client, [lead])],
    ids=["floor", "all_agreed"],
)
def test_only_the_leader_counts(count: Callable[..., None], world: World) -> None:
    before = world.snapshot()
    former = Leadership(world.keys, f"1{TOKEN}", MASTER)
    with suppress(NotLeading):
        count(world.client, former)
    assert world.snapshot() == before


@pytest.mark.parametrize("value", ["no number", "1.5", ["a list"]], ids=str)
def test_a_count_that_was_written_by_hand_begins_again(value: str | list[str], world: World) -> None:
    if isinstance(value, str):
        world.client.set(world.keys.agreed, value)
    else:
        world.client.rpush(world.keys.agreed, *value)
    floor(world.client, world.lead, "9-0", agreed=True)
    floor(world.client, world.lead, "9-0", agreed=True)
    assert counted(world) == 2
