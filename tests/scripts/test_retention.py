"""What leaves the stream and what stays: the scripts done.lua, letters.lua and remove.lua."""

from __future__ import annotations

import pytest

from bridge.routing.errors import NotLeading
from bridge.routing.ids import LAST_ID, id_key
from bridge.routing.retention import done, letters, remove
from bridge.routing.transitions import last_id
from tests.scripts.keeping import NEAR, acknowledged, left, letter
from tests.scripts.world import MASTER, World, changes

pytestmark = pytest.mark.scripts


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
