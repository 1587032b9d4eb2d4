"""repartition.lua, leave_layout.lua, forget_layout.lua: a layout changes in whole steps, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.operate.deleting import LanesOfStream
from bridge.operate.repartitioning import clear
from bridge.routing.errors import LaneGone
from bridge.routing.keys import LaneKeys, layout_copy_key, layout_key, schedule_key
from bridge.routing.layouts import Retired, claim_layout, find_layout, in_layout, restore_layout, text_of_layout
from bridge.routing.membership import meet
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of, push_rows
from bridge.routing.pushes import Columns, Partition, Tickets, append_once, append_per_ticket, guard_of
from bridge.routing.repartitioning import forget_layout, leave_layout, next_layout, repartition
from bridge.routing.return_codes import ReturnCode
from bridge.routing.subscribing import make_group
from bridge.routing.unread_streams import UnreadStream, advice_on, unread_streams
from tests.script_calls import LayoutChanged, push_many, push_once
from tests.scripts.world import SPLIT as STREAM
from tests.scripts.world import World

pytestmark = pytest.mark.scripts

OLD, NEW = Layout(2), next_layout(Layout(2), 3)
LEFT = replace(NEW, older=None, leaving=Layout(2))


def split(world: World, *groups: str) -> Any:
    """A stream of two partitions with ``groups``; the client."""
    client = world.client
    client.set(layout_key(STREAM), text_of_layout(OLD))
    for stream in OLD.streams(STREAM):
        for group in groups:
            client.xgroup_create(stream, group, "0", mkstream=True)
    return client


def known(client: Any) -> Layout:
    return find_layout(client, STREAM, 1)


def unchanged(world: World, code: ReturnCode, *detail: str) -> None:
    """The older partitions cannot be left, for this reason, and nothing is changed."""
    before = world.snapshot()
    assert leave_layout(world.client, STREAM, known(world.client), ["a", "b"])[: 1 + len(detail)] == (code, *detail)
    assert world.snapshot() == before


@pytest.fixture
def followed(fresh: World) -> World:
    client = split(fresh, "a", "b")
    assert repartition(client, STREAM, known(client), NEW) == (ReturnCode.OK, "")
    return fresh


def test_the_new_partitions_have_all_groups_of_the_old_ones(fresh: World) -> None:
    client = split(fresh, "a")
    client.xgroup_create("orders:p1", "b", "$")
    client.xadd("orders:p1", {"ticket_id": "T"})
    assert repartition(client, STREAM, known(client), NEW) == (ReturnCode.OK, "")
    assert known(client) == NEW
    for stream in NEW.streams(STREAM):
        found = {group["name"]: group["last-delivered-id"] for group in client.xinfo_groups(stream)}
        assert found == {b"a": b"0-0", b"b": b"0-0"}


def test_a_stream_without_a_stored_layout_and_without_entries_can_be_split(fresh: World) -> None:
    made = next_layout(Layout(), 2)
    assert repartition(fresh.client, STREAM, Layout(), made) == (ReturnCode.OK, "")
    assert known(fresh.client) == made


def test_another_layout_or_a_key_of_another_type_changes_nothing(fresh: World) -> None:
    client = split(fresh, "a")
    before = fresh.snapshot()
    assert repartition(client, STREAM, Layout(2, text="other"), NEW) == (ReturnCode.LAYOUT, text_of_layout(OLD))
    assert fresh.snapshot() == before
    client.set("orders:g1:p2", "mine")
    before = fresh.snapshot()
    assert repartition(client, STREAM, known(client), NEW) == (ReturnCode.HELD, "orders:g1:p2")
    assert fresh.snapshot() == before
    # Nor a stream that has groups already: those of another stream's partition, by its name
    client.delete("orders:g1:p2")
    client.xgroup_create("orders:g1:p1", "theirs", "$", mkstream=True)
    before = fresh.snapshot()
    assert repartition(client, STREAM, known(client), NEW) == (ReturnCode.HELD, "orders:g1:p1")
    assert fresh.snapshot() == before
    client.xgroup_destroy("orders:g1:p1", "theirs")
    assert repartition(client, STREAM, known(client), NEW) == (ReturnCode.OK, "")


def test_old_partitions_are_left_when_all_groups_are_done(followed: World) -> None:
    client = followed.client
    for stream in OLD.streams(STREAM):
        id_ = client.xadd(stream, {"ticket_id": "T"})
        for group in ("a", "b"):
            client.xreadgroup(group, "m", {stream: ">"})
            client.xack(stream, group, id_)
    # Given fences of the future, as after a clock that was set back
    client.set(LaneKeys("orders:p0", "a").fence, "9007199254740000")
    client.set(LaneKeys("orders:p1", "a").fence, "17")
    client.set(LaneKeys("orders:g1:p2", "a").fence, "9007199254740001")
    client.set(LaneKeys("orders:g1:p1", "b").fence, "5")
    assert leave_layout(client, STREAM, known(client), ["a", "b"]) == (ReturnCode.OK, "", "")
    assert known(client).shape == LEFT.shape
    assert known(client).leaving == Layout(2)
    fences = {group: [client.get(LaneKeys(one, group).fence) for one in NEW.streams(STREAM)] for group in ("a", "b")}
    assert fences == {
        "a": [b"9007199254740000", b"9007199254740000", b"9007199254740001"],
        "b": [None, b"5", None],
    }


def test_unread_messages_hold_the_old_partitions(followed: World) -> None:
    client = followed.client
    client.xadd("orders:p1", {"ticket_id": "T"})
    client.xreadgroup("a", "m", {"orders:p1": ">"}, noack=True)
    unchanged(followed, ReturnCode.UNREAD, "orders:p1", "b")
    # An entry that was deleted is not missed
    client.xtrim("orders:p1", maxlen=0)
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK


def test_pending_messages_hold_them(followed: World) -> None:
    client = followed.client
    client.xadd("orders:p0", {"ticket_id": "T"})
    for group in ("a", "b"):
        client.xreadgroup(group, "m", {"orders:p0": ">"}, noack=group == "a")
    unchanged(followed, ReturnCode.UNDONE, "orders:p0", "b")


@pytest.mark.parametrize("kind", ["tickets", "dead"])
def test_tickets_and_dead_letters_hold_them(followed: World, kind: str) -> None:
    key = getattr(LaneKeys("orders:p1", "b"), kind)
    if kind == "dead":
        followed.client.xadd(key, {"reason": "r"})
    else:
        followed.client.hset(key, "T", "[0]")
    unchanged(followed, ReturnCode.HELD, key)


def test_dead_letters_that_were_replayed_or_dropped_hold_nothing(followed: World) -> None:
    client, keys = followed.client, LaneKeys("orders:p1", "b")
    client.xdel(keys.dead, client.xadd(keys.dead, {"reason": "r"}))
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK
    LanesOfStream(client, "orders:p1", letters=False).delete()
    assert not client.exists(keys.dead, "orders:p1")


def test_no_push_is_accepted_that_goes_by_the_layout_before(followed: World) -> None:
    client = followed.client
    stale = replace(OLD, text=text_of_layout(OLD))
    places = places_of(STREAM, stale, [0, 1])
    ticket = [b"T1", b"1"]
    with pytest.raises(LayoutChanged) as refused:
        push_many(client, places, "t", 2 * ticket)
    assert str(refused.value) == NEW.text
    with pytest.raises(LayoutChanged) as refused:
        push_once(client, places, "t", 2 * ticket, "key", 0, "ab")
    assert str(refused.value) == NEW.text
    assert push_rows(client, places, 2 * [["ticket_id", "T1"]]) == [ReturnCode.LAYOUT, NEW.text.encode()]
    columns, guard = Columns(("ticket_id", "payload")), guard_of(STREAM, "run")
    once = append_once(
        client, Partition(STREAM, guard, 0, 0, 1, None, 60), "0 0", "2 7", columns, 2 * ticket, places=places
    )
    numbered = append_per_ticket(
        client, Tickets(STREAM, "{orders}/push", None, 60), columns, [b"1", *ticket, b"2", *ticket], places=places
    )
    for answer in (once, numbered):
        assert (answer.code, answer.detail) == (ReturnCode.LAYOUT, NEW.text)
    assert not any(client.xlen(stream) for stream in NEW.all_streams(STREAM))


def test_a_group_that_came_meanwhile_holds_them(followed: World) -> None:
    followed.client.xgroup_create("orders:p0", "c", "0")
    unchanged(followed, ReturnCode.CHANGED, "c")


def test_a_stream_without_a_group_and_with_messages_holds_them(followed: World) -> None:
    for group in ("a", "b"):
        followed.client.xgroup_destroy("orders:p0", group)
    followed.client.xadd("orders:p0", {"ticket_id": "T"})
    unchanged(followed, ReturnCode.UNREAD, "orders:p0", "")


def test_a_layout_that_another_call_changed_is_left_alone(followed: World) -> None:
    before = followed.snapshot()
    stale = replace(NEW, text="stale")
    assert leave_layout(followed.client, STREAM, stale, ["a", "b"])[:2] == (ReturnCode.LAYOUT, NEW.text)
    assert forget_layout(followed.client, STREAM, stale) == NEW
    assert followed.snapshot() == before


def test_the_layout_is_forgotten_last(followed: World) -> None:
    client = followed.client
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK
    assert forget_layout(client, STREAM, known(client)).leaving is None
    assert known(client).shape == ((3, 1), None, None)


@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_a_lost_layout_that_is_not_the_first_is_found_again(fresh: World, old: int, partitions: int) -> None:
    """Whatever a process sets, and though it never knew the layout."""
    client = split(fresh, "a") if old == 2 else fresh.client
    made = next_layout(known(client), 3)
    assert repartition(client, STREAM, known(client), made)[0] is ReturnCode.OK
    assert leave_layout(client, STREAM, known(client), ["a"])[0] is ReturnCode.OK
    client.delete(*Layout(old).streams(STREAM))
    kept = forget_layout(client, STREAM, known(client))
    client.delete(layout_key(STREAM))
    assert find_layout(client, STREAM, partitions) == kept
    assert claim_layout(client, STREAM, partitions) == kept
    assert client.get(layout_key(STREAM)).decode() == kept.text


def test_what_is_lost_in_the_middle_of_a_repartition_is_found_again(fresh: World) -> None:
    made = next_layout(Layout(), 2)
    for step in (
        lambda: repartition(fresh.client, STREAM, Layout(), made),
        lambda: leave_layout(fresh.client, STREAM, known(fresh.client), []),
    ):
        assert step()[0] is ReturnCode.OK
        before = known(fresh.client)
        fresh.client.delete(layout_key(STREAM))
        assert claim_layout(fresh.client, STREAM, 1) == before


def test_the_copy_is_that_of_the_stored_layout_after_each_step_and_lives_in_a_key_of_its_own(fresh: World) -> None:
    fresh.client.set("orders:p0", "mine")
    made = next_layout(Layout(), 2)

    def same() -> None:
        stored = fresh.client.get(layout_key(STREAM))
        assert stored
        assert fresh.client.get(layout_copy_key(STREAM)) == stored

    assert repartition(fresh.client, STREAM, Layout(), made)[0] is ReturnCode.OK
    same()
    assert leave_layout(fresh.client, STREAM, known(fresh.client), [])[0] is ReturnCode.OK
    same()
    last = forget_layout(fresh.client, STREAM, known(fresh.client))
    same()
    # After FLUSHALL, who knew the layout stores both again
    fresh.client.delete(layout_key(STREAM), layout_copy_key(STREAM))
    assert restore_layout(fresh.client, STREAM, last) == last
    same()
    assert fresh.client.get("orders:p0") == b"mine"


def test_a_first_layout_has_no_copy(fresh: World) -> None:
    assert claim_layout(fresh.client, STREAM, 2).partitions == 2
    assert not fresh.client.exists(layout_copy_key(STREAM))


def test_messages_that_nobody_reads_in_a_partition_that_is_being_left_are_named(followed: World) -> None:
    client = followed.client
    done = client.xadd("orders:p0", {"ticket_id": "T"})
    for group in ("a", "b"):
        client.xreadgroup(group, "m", {"orders:p0": ">"})
        client.xack("orders:p0", group, done)
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK
    # A done entry that is kept is no such message
    assert unread_streams(client, STREAM, known(client)) == []
    client.xadd("orders:p0", {"ticket_id": "T"})
    client.xadd("orders:p1", {"ticket_id": "T"})
    found = unread_streams(client, STREAM, known(client))
    assert found == [UnreadStream("orders:p0", 1, left=True), UnreadStream("orders:p1", 1, left=True)]
    said = advice_on(found[0], STREAM, known(client))
    assert said.startswith("orders:p0, an old partition that is being left, has 1 message that nobody reads: ")
    assert "orders:g1:p0 to orders:g1:p2" in said


def test_what_belongs_to_the_whole_stream_stays_when_it_is_split(fresh: World) -> None:
    """The home of its tickets' states, the states, and the ticks of its schedule."""
    client, lane = fresh.client, LaneKeys(STREAM, "a")
    client.xgroup_create(STREAM, "a", "0", mkstream=True)
    client.set(lane.state_home, "orders:v0")
    client.hset(lane.state("T"), "total", "1")
    client.hset(schedule_key(STREAM), "shop/nightly", "1 1")
    assert repartition(client, STREAM, known(client), next_layout(Layout(), 2))[0] is ReturnCode.OK
    assert leave_layout(client, STREAM, known(client), ["a"])[0] is ReturnCode.OK
    client.set(lane.fence, "7")
    assert clear(client, STREAM, known(client)) == ""
    assert not client.exists(STREAM, lane.fence)
    kept = (lane.state_home, lane.state("T"), schedule_key(STREAM))
    assert client.exists(*kept) == 3
    client.delete(*kept)


@pytest.mark.parametrize("how", ["entries", "stream"])
def test_messages_that_were_added_after_an_old_partition_was_left_are_not_deleted(followed: World, how: str) -> None:
    client = followed.client
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK
    id_ = client.xadd("orders:p1", {"ticket_id": "T"})
    client.hset(LaneKeys("orders:p1", "a").about, "app", "shop")
    assert clear(client, STREAM, known(client)).startswith("orders:p1 has messages that nobody reads: ")
    assert client.xlen("orders:p1") == 1
    # As soon as they are pushed again, the partition goes with all its keys
    if how == "entries":
        client.xdel("orders:p1", id_)
    else:
        client.delete("orders:p1")
    assert clear(client, STREAM, known(client)) == ""
    assert not [key for key in client.scan_iter() if b"orders:p1" in key]


def test_a_group_that_came_to_an_old_partition_has_the_new_ones_from_their_first_entry(followed: World) -> None:
    client = followed.client
    client.xadd("orders:g1:p2", {"ticket_id": "T"})
    client.xgroup_destroy("orders:p0", "b")
    client.xgroup_destroy("orders:p1", "b")
    for new in NEW.streams(STREAM):
        client.xgroup_destroy(new, "b")
    # When a group is made on one of the old partitions, by a command that did not see the new layout yet
    assert make_group(client, LaneKeys("orders:p1", "late"), "0", in_layout("orders:p1", STREAM))
    before = followed.snapshot()
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[:2] == (ReturnCode.CHANGED, "late")
    assert followed.snapshot() == before
    assert leave_layout(client, STREAM, known(client), ["a", "b", "late"])[0] is ReturnCode.OK
    # Then it misses nothing, and one that was removed meanwhile does not come back
    for new in NEW.streams(STREAM):
        found = {group["name"]: group["last-delivered-id"] for group in client.xinfo_groups(new)}
        assert found == {b"a": b"0-0", b"late": b"0-0"}


@pytest.mark.parametrize("state", ["left", "cleared", "forgotten", "retired"])
def test_nothing_is_made_where_the_stream_has_left_or_was_retired(followed: World, state: str) -> None:
    client = followed.client
    keys, layout = LaneKeys("orders:p1", "late"), in_layout("orders:p1", STREAM)
    assert leave_layout(client, STREAM, known(client), ["a", "b"])[0] is ReturnCode.OK
    if state == "cleared":
        assert clear(client, STREAM, known(client)) == ""
    elif state == "forgotten":
        # The keys of the old partitions still exist: the layout alone decides
        forget_layout(client, STREAM, known(client))
    elif state == "retired":
        client.set(layout_key(STREAM), Retired(1, "orders:v2", known(client).text).text)
    before = followed.snapshot()
    with pytest.raises(LaneGone):
        make_group(client, keys, "0", layout)
    assert meet(client, keys, 1, "shop", layout) == (ReturnCode.LAYOUT, "")
    assert followed.snapshot() == before
    if state != "retired":
        new = LaneKeys("orders:g1:p0", "late")
        assert make_group(client, new, "0", in_layout(new.stream, STREAM))
        assert meet(client, new, 1, "shop", in_layout(new.stream, STREAM))[0] is ReturnCode.OK
        client.delete(new.about)
