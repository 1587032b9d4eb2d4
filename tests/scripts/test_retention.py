"""What leaves the stream (done.lua, letters.lua, remove.lua, `bridge.leader.stream.retention`), and what stays."""

from __future__ import annotations

import time
from typing import Any

import pytest

import bridge.leader.stream.retention
from bridge.routing.batch import Batch, DeadLetter
from bridge.routing.errors import LaneConflict, NotLeading
from bridge.routing.ids import LAST_ID, id_key
from bridge.routing.retention import done, letters, remove
from bridge.routing.transitions import last_id
from tests.scripts.keeping import NEAR, WRITTEN, Clock, acknowledged, keeper, left, letter
from tests.scripts.world import MASTER, World, changes

pytestmark = pytest.mark.scripts


# -- the scripts ---------------------------------------------------------------------------------------------------


def test_done_is_what_no_group_has_unread_or_pending(world: World) -> None:
    # Given a world in which the neighbour has read three entries of `busy`, and acknowledges the first of them
    assert done(world.client, world.keys.stream, "-", "99-0", 100).ids == []
    # When both have done with one, and this lane alone with others
    acknowledged(world, world.busy[:1], NEAR)
    acknowledged(world, world.busy[:2])
    before = world.snapshot()
    found = done(world.client, world.keys.stream, "-", "99-0", 100)
    # Then only that one is done, nothing beyond what the slower group has read is looked at, and nothing changed
    assert found.ids == world.busy[:1]
    assert (found.more, found.last) == (False, world.busy[2])
    assert found.groups == {world.keys.group.encode(), NEAR.encode()}
    assert world.snapshot() == before


def test_done_compares_ids_as_numbers_of_any_size(fresh: World) -> None:
    keys, large = fresh.keys, 2**64 - 1
    ids = ["9-0", "10-0", f"10-{large - 1}", f"10-{large}", "11-0"]
    for id_ in ids:
        fresh.client.execute_command("XADD", keys.stream, id_, "ticket_id", "T")
    fresh.read()
    acknowledged(fresh, ids)
    assert done(fresh.client, keys.stream, "-", f"10-{large - 1}", 100).ids == ids[:3]
    # A group that was only read up to 10-0 holds the later ones back.
    fresh.client.xgroup_create(keys.stream, "slow", "10-0")
    assert done(fresh.client, keys.stream, "-", "99-0", 100).ids == ids[:2]


def test_done_is_read_a_page_at_a_time(fresh: World) -> None:
    ids = fresh.pushed("T", 25)
    acknowledged(fresh, ids[::2])
    found, start = [], "-"
    for _ in range(3):
        page = done(fresh.client, fresh.keys.stream, start, "99-0", 10)
        found += page.ids
        start = f"({page.last}"
    assert (found, page.more) == (ids[::2], False)
    assert done(fresh.client, fresh.keys.stream, start, "99-0", 10).last == ""


@pytest.mark.parametrize("pending", [False, True])
def test_done_goes_up_to_the_largest_id_that_there_can_be(fresh: World, pending: bool) -> None:
    ids = ["5-0", LAST_ID]
    for id_ in ids:
        fresh.client.execute_command("XADD", fresh.keys.stream, id_, "ticket_id", "T")
    fresh.read()
    acknowledged(fresh, ids[:1] if pending else ids)
    looks = []
    for count in (1, 2, 100):
        page = done(fresh.client, fresh.keys.stream, "(5-0", LAST_ID, count)
        looks.append(page.ids)
        assert not done(fresh.client, fresh.keys.stream, f"({page.last}", LAST_ID, count).more
    assert looks == [[] if pending else ids[1:]] * 3


def test_pages_hold_more_pending_entries_than_entries(fresh: World) -> None:
    # Given entries that are pending, and deleted: there are more pending ones in the range than entries
    ids = fresh.pushed("T", 40)
    fresh.client.xdel(fresh.keys.stream, *ids[1:30])
    acknowledged(fresh, ids[35:36])
    found, start, more = [], "-", True
    while more:
        page = done(fresh.client, fresh.keys.stream, start, "99-0", 10)
        found += page.ids
        start, more = f"({page.last}", page.more
    assert found == ids[35:36]


def test_a_stream_without_groups_or_none_at_all_has_nothing_done(empty: World) -> None:
    assert done(empty.client, empty.keys.stream, "-", "99-0", 10).ids == []
    empty.push("T")
    assert done(empty.client, empty.keys.stream, "-", "99-0", 10).ids == []


def test_a_look_reads_nothing_that_is_pending_and_little_of_what_is_not(fresh: World) -> None:
    # Given entries of a megabyte each, some of them pending, some done, some done and to be spared
    text = "x" * 1024 * 1024
    ids = [fresh.client.xadd(fresh.keys.stream, {"ticket_id": "T", "payload": text}).decode() for _ in range(40)]
    fresh.read()
    acknowledged(fresh, ids[10:])
    spared = [*ids[12:20], *ids[25:27]]
    # When they are looked through
    found, start, more, looks = [], "-", True, 0
    while more:
        page = done(fresh.client, fresh.keys.stream, start, "9999999999999999-0", 100, spared=spared)
        found += page.ids
        start, more, looks = f"({page.last}", page.more, looks + 1
        # Then each look reads about as much as it may
        assert len(page.ids) <= 8
        spared = [id_ for id_ in spared if id_key(id_) > id_key(page.last)]
    assert found == [id_ for id_ in ids[10:] if id_ not in [*ids[12:20], *ids[25:27]]]
    assert looks > 3


def test_letters_name_their_messages(fresh: World) -> None:
    ids = fresh.pushed("T", 5)
    for id_ in ids:
        letter(fresh, id_)
    first, last, _ = letters(fresh.client, fresh.keys.dead, "", 3)
    second, _, number = letters(fresh.client, fresh.keys.dead, last, 3)
    assert (first, second, number) == (ids[:3], ids[3:], 2)
    assert letters(fresh.client, "no such key", "", 3) == ([], "", 0)


def test_remove_spares_what_another_group_has_pending(world: World) -> None:
    acknowledged(world, world.busy[:2])
    acknowledged(world, world.busy[:1], NEAR)
    before = world.snapshot()
    assert remove(world.client, world.lead, [NEAR.encode()], world.busy[:2]) == world.busy[:1]
    assert world.busy[0] not in left(world)
    assert world.busy[1] in left(world)
    assert changes(before, world.snapshot()) == {world.keys.stream}


def test_remove_spares_what_another_group_has_not_read(world: World) -> None:
    # Given a neighbour that was set back after the caller's look
    acknowledged(world, world.busy)
    acknowledged(world, world.busy, NEAR)
    world.client.xgroup_setid(world.keys.stream, NEAR, world.busy[0])
    assert remove(world.client, world.lead, [NEAR.encode()], world.busy[:2], only_looks=True) == world.busy[:1]
    assert remove(world.client, world.lead, [NEAR.encode()], world.busy[:2]) == world.busy[:1]
    assert world.busy[1] in left(world)


@pytest.mark.parametrize("between", [1, 7])
def test_remove_spares_what_is_pending_behind_more_pending_entries_than_it_has_ids(fresh: World, between: int) -> None:
    # Given done entries, with pending ones of another group between them
    ids = fresh.pushed("T", 8 * (between + 1))
    acknowledged(fresh, ids)
    fresh.client.xgroup_create(fresh.keys.stream, NEAR, "0")
    fresh.client.execute_command("XREADGROUP", "GROUP", NEAR, MASTER, "STREAMS", fresh.keys.stream, ">")
    done_ids = acknowledged(fresh, ids[:: between + 1], NEAR)
    # When the caller believes that two more of them are done
    asked = sorted([*done_ids, ids[1], ids[-1]], key=id_key)
    before = fresh.snapshot()
    assert remove(fresh.client, fresh.lead, [NEAR.encode()], asked, only_looks=True) == done_ids
    assert fresh.snapshot() == before
    # Then exactly the done ones leave
    assert remove(fresh.client, fresh.lead, [NEAR.encode()], asked) == done_ids
    assert left(fresh) == [id_ for id_ in ids if id_ not in done_ids]


@pytest.mark.parametrize("others", [[], [b"neighbour", b"more"], [b"another"]])
def test_remove_touches_nothing_when_the_groups_are_others(others: list[bytes], world: World) -> None:
    before = world.snapshot()
    assert remove(world.client, world.lead, others, world.done) is None
    assert remove(world.client, world.lead, others, world.done, only_looks=True) is None
    assert world.snapshot() == before


def test_remove_is_the_leaders_alone(world: World) -> None:
    world.client.set(world.keys.leader, "8 other@there", px=60_000)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        remove(world.client, world.lead, [NEAR.encode()], world.done)
    assert world.snapshot() == before


def test_remove_takes_more_ids_than_lua_unpacks(fresh: World) -> None:
    ids = acknowledged(fresh, fresh.pushed("T", 9000))
    assert remove(fresh.client, fresh.lead, [], ids) == ids
    assert left(fresh) == []


def test_remove_touches_nothing_without_the_lanes_group(fresh: World) -> None:
    # Given an entry that was done, and a stream that was made again with an entry of the same id
    ids = acknowledged(fresh, fresh.pushed("T"))
    fresh.client.delete(fresh.keys.stream)
    fresh.client.execute_command("XADD", fresh.keys.stream, ids[0], "ticket_id", "T")
    assert remove(fresh.client, fresh.lead, [], ids) is None
    assert left(fresh) == ids


def test_last_id_is_that_of_the_newest_entry_there_ever_was(fresh: World) -> None:
    assert last_id(fresh.client, fresh.keys.stream) == "0-0"
    ids = fresh.push("T", count=3)
    fresh.client.xdel(fresh.keys.stream, *ids[1:])
    assert last_id(fresh.client, fresh.keys.stream) == ids[2]
    fresh.client.delete(fresh.keys.stream)
    assert last_id(fresh.client, fresh.keys.stream) == "0-0"


# -- the leader's part ---------------------------------------------------------------------------------------------


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
