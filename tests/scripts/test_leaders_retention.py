"""What a leader removes from the stream, and when (`bridge.leader.stream.retention`)."""

from __future__ import annotations

import time
from typing import Any

import pytest

import bridge.leader.stream.retention
from bridge.routing.batch import Batch, DeadLetter
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import LAST_ID
from bridge.routing.retention import done, letters
from tests.scripts.keeping import NEAR, WRITTEN, Clock, acknowledged, keeper, left, letter
from tests.scripts.world import MASTER, World

pytestmark = pytest.mark.scripts


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all tests here: on a slow machine too, a sweep ends for lack of time only where a test says so."""
    clock = Clock()
    monkeypatch.setattr(bridge.leader.stream.retention, "time", clock)
    return clock


def test_acknowledged_entries_leave_and_dead_ones_stay(fresh: World) -> None:
    ids = acknowledged(fresh, fresh.pushed("T", 4))
    retention = keeper(fresh)
    letter(fresh, ids[1])
    retention.settled(WRITTEN, Batch(acknowledged=ids[:3], dead=[DeadLetter(ids[1], ["reason", "gave up"])]))
    # It gathers first.
    assert left(fresh) == ids
    retention.remove()
    assert left(fresh) == [ids[1], ids[3]]
    # What this leader did not acknowledge itself is found in the stream; the dead one stays.
    retention.sweep()
    assert left(fresh) == [ids[1]]


def test_entries_that_were_acknowledged_by_hand_just_now_stay(fresh: World) -> None:
    ids = acknowledged(fresh, fresh.pushed("T", 4))
    compared: list[bool] = []

    def agrees() -> bool:
        compared.append(len(compared) > 0)
        return compared[-1]

    retention = keeper(fresh, agrees=agrees)
    retention.sweep()
    assert (left(fresh), compared) == (ids, [False])
    # The same page is looked at again.
    retention.sweep()
    assert (left(fresh), compared) == ([], [False, True])


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_entries_with_ids_ahead_of_the_clock_leave_where_nothing_is_kept(fresh: World, seconds: float) -> None:
    ids = [f"{time.time_ns()}-0", LAST_ID]
    for id_ in ids:
        fresh.client.execute_command("XADD", fresh.keys.stream, id_, "ticket_id", "T")
    fresh.read()
    acknowledged(fresh, ids)
    keeper(fresh, seconds).sweep()
    assert left(fresh) == (ids if seconds else [])


@pytest.mark.parametrize("group", ["own", NEAR])
def test_what_was_added_behind_a_group_that_stands_beyond_the_end_stays(fresh: World, group: str) -> None:
    # Given groups of which one stands beyond the newest id that the stream ever gave out
    done_ids = acknowledged(fresh, fresh.pushed("T"))
    fresh.client.xgroup_create(fresh.keys.stream, NEAR, "$")
    beyond = fresh.keys.group if group == "own" else group
    fresh.client.xgroup_setid(fresh.keys.stream, beyond, "9-0")
    unread = fresh.push("T", count=3)
    fresh.client.xgroup_setid(fresh.keys.stream, NEAR if group == "own" else fresh.keys.group, "$")
    # When the leader looks for what is done, then nothing is removed, and for its own group it reads the lane again
    retention = keeper(fresh)
    if group == "own":
        with pytest.raises(LaneConflict, match="beyond the end"):
            retention.sweep()
    else:
        retention.sweep()
    assert left(fresh) == [*done_ids, *unread]


def test_many_leave_without_being_asked(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.leader.stream.retention, "BATCH", 10)
    ids = acknowledged(fresh, fresh.pushed("T", 12))
    retention = keeper(fresh)
    retention.settled(WRITTEN, Batch(acknowledged=ids[:4]))
    assert len(left(fresh)) == 12
    retention.settled(WRITTEN, Batch(acknowledged=ids[4:10]))
    assert left(fresh) == ids[10:]


@pytest.mark.parametrize("other", [NEAR, "no lane's\xff".encode("latin-1")])
def test_an_entry_leaves_when_the_last_group_has_done_with_it(other: Any, fresh: World, clock: Clock) -> None:
    # Given two groups, of which this lane's is the faster one
    ids = fresh.push("T", count=3)
    fresh.client.xgroup_create(fresh.keys.stream, other, "0")
    fresh.read()
    acknowledged(fresh, ids)
    retention = keeper(fresh)
    retention.settled(WRITTEN, Batch(acknowledged=ids))
    retention.remove()
    retention.sweep()
    assert left(fresh) == ids
    # When the other one reads all, and acknowledges one
    fresh.client.execute_command("XREADGROUP", "GROUP", other, MASTER, "STREAMS", fresh.keys.stream, ">")
    fresh.client.xack(fresh.keys.stream, other, ids[1])
    clock.now_s += bridge.leader.stream.retention.AGAIN_S
    retention.sweep()
    assert left(fresh) == [ids[0], ids[2]]
    # And when that lane gives one up: it may be replayed there
    if other == NEAR:
        fresh.client.xack(fresh.keys.stream, other, ids[0])
        letter(fresh, ids[0], NEAR)
        clock.now_s += bridge.leader.stream.retention.AGAIN_S
        retention.sweep()
        assert left(fresh) == [ids[0], ids[2]]


def test_the_lane_that_is_done_last_removes_its_entries_without_a_look_at_the_whole_stream(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.leader.stream.retention, "SHARED_BATCH", 4)
    # Given a lane beside another one that is done with most, has a letter of one, and has one pending
    ids = fresh.push("T", count=8)
    fresh.client.xgroup_create(fresh.keys.stream, NEAR, "0")
    fresh.client.execute_command("XREADGROUP", "GROUP", NEAR, MASTER, "COUNT", 7, "STREAMS", fresh.keys.stream, ">")
    fresh.client.xack(fresh.keys.stream, NEAR, *ids[:5], ids[6])
    letter(fresh, ids[2], NEAR)
    fresh.read()
    retention = keeper(fresh)
    retention.sweep()
    assert left(fresh) == ids
    # When it is done with all, an older one comes last, and one was acknowledged by hand
    acknowledged(fresh, ids)
    retention.settled(WRITTEN, Batch(acknowledged=[ids[3], ids[2], *ids[4:]]))
    # Then those leave that the other one is done with
    assert left(fresh) == [*ids[:3], ids[5], ids[7]]
    retention.settled(WRITTEN, Batch(acknowledged=[ids[0]]))
    retention.remove()
    assert left(fresh) == [*ids[1:3], ids[5], ids[7]]


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("first", ["remove", "sweep"])
def test_entries_stay_a_while_after_a_group_of_another_lane_is_gone(
    first: str, comes_back: bool, fresh: World, clock: Clock
) -> None:
    # Given two lanes, whose leaders know each other's group
    fresh.client.xgroup_create(fresh.keys.stream, NEAR, "0", mkstream=True)
    retention = keeper(fresh, clock=clock)
    clock.now_s = time.time()
    retention.sweep()
    # When one group is destroyed, and the other lane is done with a new entry
    ids = fresh.push("T")
    fresh.client.xgroup_destroy(fresh.keys.stream, NEAR)
    fresh.read()
    acknowledged(fresh, ids)
    clock.now_s = time.time() + 1
    retention.settled(WRITTEN, Batch(acknowledged=ids))
    getattr(retention, first)()
    for _ in range(3):
        clock.now_s += 4.9
        retention.remove()
        retention.sweep()
        assert retention.sweep_at > clock.now_s, "it would be called again and again"
    # Then the entry is there until the group was made again, or for a while
    assert left(fresh) == ids
    if comes_back:
        fresh.client.xgroup_create(fresh.keys.stream, NEAR, "0")
    clock.now_s += bridge.leader.stream.retention.GONE_S + 1
    retention.remove()
    retention.sweep()
    assert left(fresh) == (ids if comes_back else [])


def test_a_dropped_letter_lets_its_entry_go(fresh: World, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.leader.stream.retention, "LETTERS", 2)
    ids = acknowledged(fresh, fresh.pushed("T", 5))
    letter_ids = [letter(fresh, id_) for id_ in ids]
    retention = keeper(fresh)
    retention.sweep()
    assert left(fresh) == ids
    fresh.client.xdel(fresh.keys.dead, letter_ids[3])
    clock.now_s += bridge.leader.stream.retention.AGAIN_S
    retention.sweep()
    assert left(fresh) == [*ids[:3], ids[4]]


@pytest.mark.parametrize("by_hand", [{"note": "x"}, {"message_id": "no id"}], ids=str)
def test_a_letter_that_was_written_by_hand_hides_no_later_one(
    by_hand: dict[str, str], fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.leader.stream.retention, "LETTERS", 2)
    ids = acknowledged(fresh, fresh.pushed("T", 7))
    for id_ in ids[:6]:
        letter(fresh, id_)
        fresh.client.xadd(fresh.keys.dead, by_hand)
    keeper(fresh).sweep()
    assert left(fresh) == ids[:6]


def test_no_entry_goes_while_there_are_letters_that_were_not_read(
    fresh: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more letters than there is time to read in one look
    monkeypatch.setattr(bridge.leader.stream.retention, "LETTERS", 2)
    ids = acknowledged(fresh, fresh.pushed("T", 7))
    for id_ in ids[:6]:
        letter(fresh, id_)

    def slow(*arguments: Any) -> Any:
        clock.now_s += bridge.leader.stream.retention.LETTERS_S
        return letters(*arguments)

    monkeypatch.setattr(bridge.leader.stream.retention, "letters", slow)
    retention = keeper(fresh)
    seen = []
    for _ in range(9):
        retention.sweep()
        seen.append(len(left(fresh)))
    # Then nothing left before all were known, and it got there all the same
    assert seen[0] == 7
    assert seen[-1] == 6
    assert left(fresh) == ids[:6]


def test_a_pass_is_made_of_pages_with_pauses(fresh: World, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a server that takes its time, and a stream of three pages, of which the second one has done entries
    module = bridge.leader.stream.retention
    monkeypatch.setattr(module, "BATCH", 4)
    ids = fresh.pushed("T", 12)
    acknowledged(fresh, ids[4:7])

    def slow(*arguments: Any, **options: Any) -> Any:
        clock.now_s += module.SLICE_S
        return done(*arguments, **options)

    monkeypatch.setattr(module, "done", slow)
    retention = keeper(fresh)
    pauses, found = [], []
    while not retention.passed:
        clock.now_s = max(clock.now_s, retention.sweep_at)
        began = clock.now_s
        retention.sweep()
        pauses.append(round(retention.sweep_at - began, 6))
        found.append(len(left(fresh)))
    # Then each slice is a page, the next one comes soon where something was found, and the next pass much later
    assert found[:3] == [12, 9, 9]
    assert pauses[:3] == [module.PAUSE_S, module.SOON_S, module.PAUSE_S]
    assert pauses[-1] == module.AGAIN_S


def test_entries_stay_as_long_as_they_are_to_be_kept(fresh: World, clock: Clock) -> None:
    # Given entries of second 1, 2 and 3, all done, to be kept for 997.5 s
    for second in (1, 2, 3):
        fresh.client.execute_command("XADD", fresh.keys.stream, f"{second}000-7", "ticket_id", "T")
    fresh.read()
    ids = acknowledged(fresh, ["1000-7", "2000-7", "3000-7"])
    retention = keeper(fresh, 997.5, clock)
    retention.settled(WRITTEN, Batch(acknowledged=ids))
    retention.remove()
    assert left(fresh) == ids
    retention.sweep()
    assert left(fresh) == ids[2:]
    # When the third one is old enough
    clock.now_s += 1
    retention.sweep()
    assert left(fresh) == []


def test_everything_stays_when_all_is_to_be_kept(fresh: World) -> None:
    ids = acknowledged(fresh, fresh.pushed("T", 3))
    retention = keeper(fresh, None)
    retention.settled(WRITTEN, Batch(acknowledged=ids))
    retention.remove()
    retention.sweep()
    assert left(fresh) == ids


def test_a_message_that_is_not_done_is_never_removed(world: World) -> None:
    # Given one lane with everything in it
    world.client.xgroup_destroy(world.keys.stream, NEAR)
    retention = keeper(world)
    retention.sweep()
    # Then exactly the done one left: not what is in flight, waits, awaits a retry, is delayed, parked, dead, or unread
    kept = {*world.busy, *world.other, *world.late, *world.idle, *world.dead, *world.parked, *world.unread}
    kept |= {*world.delayed}
    assert set(left(world)) == kept
