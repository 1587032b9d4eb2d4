"""A tick is noted and pushed in one step, once, by the leader of the first lane that has one (tick.lua)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.routing.errors import NotLeading
from bridge.routing.keys import layout_key, schedule_key
from bridge.routing.layouts import claim_layout
from bridge.routing.partitions import Layout
from bridge.routing.return_codes import ReturnCode
from bridge.routing.ticks import LastTick, Pusher, drop_ticks, field_of, read_ticks, tick
from tests.scripts.world import TOKEN, World, entries_of

pytestmark = pytest.mark.scripts

NOW = LastTick(1_700_000_000_000, "every 5 s")
LATER = replace(NOW, at_ms=NOW.at_ms + 5000)
MESSAGES = [(b"A", b'{"n":1}'), (b"B", b'{"n":1}')]
FIELD = field_of("shop", "nightly")


def pusher(world: World, *before: str) -> Pusher:
    return Pusher(world.keys.stream, [*before, world.keys.leader], TOKEN)


def pushed(world: World, known: LastTick | None, now: LastTick = NOW) -> ReturnCode:
    return tick(world.client, pusher(world), FIELD, known, now, Layout(), "shop.close", MESSAGES).code


def test_a_tick_is_noted_with_its_messages(fresh: World) -> None:
    found = tick(fresh.client, pusher(fresh), FIELD, None, NOW, Layout(), "shop.close", MESSAGES)
    entries = entries_of(fresh.client, fresh.keys.stream)
    assert [fields for _, fields in entries] == [
        {"ticket_id": "A", "task": "shop.close", "payload": '{"n":1}'},
        {"ticket_id": "B", "task": "shop.close", "payload": '{"n":1}'},
    ]
    assert (found.code, list(found.ids)) == (ReturnCode.OK, [id_ for id_, _ in entries])
    assert read_ticks(fresh.client, fresh.keys.stream, "shop") == {"nightly": NOW}
    assert fresh.client.hgetall(schedule_key(fresh.keys.stream)) == {b"shop/nightly": b"1700000000000 every 5 s"}


def test_a_tick_that_was_pushed_is_not_pushed_again(fresh: World) -> None:
    assert pushed(fresh, None) is ReturnCode.OK
    again = tick(fresh.client, pusher(fresh), FIELD, None, NOW, Layout(), "shop.close", MESSAGES)
    assert (again.code, again.stored) == (ReturnCode.CHANGED, NOW)
    assert fresh.client.xlen(fresh.keys.stream) == 2
    assert pushed(fresh, NOW, LATER) is ReturnCode.OK
    assert pushed(fresh, NOW, LATER) is ReturnCode.CHANGED
    assert fresh.client.xlen(fresh.keys.stream) == 4


def test_only_a_leader_pushes(fresh: World) -> None:
    fresh.client.set(fresh.keys.leader, "8 another", px=60_000)
    with pytest.raises(NotLeading):
        pushed(fresh, None)
    with pytest.raises(NotLeading):
        drop_ticks(fresh.client, pusher(fresh), [FIELD])
    assert fresh.client.exists(fresh.keys.stream, schedule_key(fresh.keys.stream)) == 1
    assert fresh.client.xlen(fresh.keys.stream) == 0


def test_the_leader_of_an_earlier_lane_goes_first(fresh: World) -> None:
    first = "{tickets}:aside:leader"
    fresh.client.set(first, "3 another", px=60_000)
    found = tick(fresh.client, pusher(fresh, first), FIELD, None, NOW, Layout(), "shop.close", MESSAGES)
    assert found.code is ReturnCode.OTHER
    assert drop_ticks(fresh.client, pusher(fresh, first), [FIELD]) is None
    assert fresh.client.xlen(fresh.keys.stream) == 0
    fresh.client.delete(first)
    found = tick(fresh.client, pusher(fresh, first), FIELD, None, NOW, Layout(), "shop.close", MESSAGES)
    assert found.code is ReturnCode.OK


def test_a_tick_that_has_not_come_by_the_servers_clock_waits(fresh: World) -> None:
    seconds, _ = fresh.client.time()
    early = replace(NOW, at_ms=(seconds + 60) * 1000)
    found = tick(fresh.client, pusher(fresh), FIELD, None, early, Layout(), "shop.close", MESSAGES)
    assert found.code is ReturnCode.WAIT
    assert 50_000 < found.wait_ms <= 60_000
    assert not fresh.client.exists(schedule_key(fresh.keys.stream))


def test_an_entry_begins_without_messages(fresh: World) -> None:
    found = tick(fresh.client, pusher(fresh), FIELD, None, NOW, Layout(), "shop.close", ())
    assert (found.code, found.ids) == (ReturnCode.OK, ())
    assert fresh.client.xlen(fresh.keys.stream) == 0
    assert read_ticks(fresh.client, fresh.keys.stream, "shop") == {"nightly": NOW}


def test_messages_go_to_the_partitions_of_their_tickets(fresh: World) -> None:
    stream = "split"
    layout = claim_layout(fresh.client, stream, 4)
    who = Pusher(stream, [fresh.keys.leader], TOKEN)
    messages = [(f"T{n}".encode(), b"{}") for n in range(20)]
    found = tick(fresh.client, who, FIELD, None, NOW, Layout(), "shop.close", messages)
    assert (found.code, found.layout) == (ReturnCode.LAYOUT, layout)
    assert not fresh.client.exists(schedule_key(stream))
    found = tick(fresh.client, who, FIELD, None, NOW, layout, "shop.close", messages)
    assert found.code is ReturnCode.OK
    by_id = {}
    for partition in range(4):
        for id_, fields in entries_of(fresh.client, f"{stream}:p{partition}"):
            by_id[f"{id_}@p{partition}"] = fields["ticket_id"]
    assert [by_id[id_] for id_ in found.ids] == [ticket.decode() for ticket, _ in messages]
    fresh.client.delete(schedule_key(stream), layout_key(stream), *(f"{stream}:p{n}" for n in range(4)))


def test_a_key_that_is_no_stream_leaves_the_tick_to_be_pushed(fresh: World) -> None:
    fresh.client.delete(fresh.keys.stream)
    fresh.client.set(fresh.keys.stream, "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        pushed(fresh, None)
    assert not fresh.client.exists(schedule_key(fresh.keys.stream))


def test_a_full_server_changes_nothing(fresh: World) -> None:
    used = fresh.client.info("memory")["used_memory"]
    fresh.client.config_set("maxmemory", max(1, used // 2))
    try:
        with pytest.raises(Exception, match=r"maxmemory|OOM"):
            pushed(fresh, None)
    finally:
        fresh.client.config_set("maxmemory", 0)
    assert not fresh.client.exists(schedule_key(fresh.keys.stream))
    assert fresh.client.xlen(fresh.keys.stream) == 0
    assert pushed(fresh, None) is ReturnCode.OK


def test_entries_of_several_apps_share_nothing(fresh: World) -> None:
    names = [("shop", "nightly"), ("shop/x", "nightly"), ("shop", "night:ly"), ("", "nightly")]
    for app, name in names:
        found = tick(fresh.client, pusher(fresh), field_of(app, name), None, NOW, Layout(), "shop.close", ())
        assert found.code is ReturnCode.OK
    assert len(fresh.client.hgetall(schedule_key(fresh.keys.stream))) == len(names)
    assert set(read_ticks(fresh.client, fresh.keys.stream, "shop")) == {"nightly", "night:ly"}
    assert set(read_ticks(fresh.client, fresh.keys.stream, "")) == {"nightly"}
    assert drop_ticks(fresh.client, pusher(fresh), [field_of("shop", "nightly"), field_of("shop", "no")]) == 1
    assert set(read_ticks(fresh.client, fresh.keys.stream, "shop")) == {"night:ly"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-5 every 5 s",
        "٣ every",
        "99999999999999999999 every",
        "999999999999999 every",
        "05 every",
        "5",
        b"5 \xff",
    ],
)
def test_what_was_damaged_by_hand_counts_as_nothing(fresh: World, text: str | bytes) -> None:
    fresh.client.hset(schedule_key(fresh.keys.stream), FIELD, text)
    # Fields that no app has
    fresh.client.hset(schedule_key(fresh.keys.stream), mapping={b"\xff": NOW.text, b"shop": NOW.text, b"": NOW.text})
    assert read_ticks(fresh.client, fresh.keys.stream, "shop") == {}
    if text:
        found = tick(fresh.client, pusher(fresh), FIELD, None, NOW, Layout(), "shop.close", MESSAGES)
        assert (found.code, found.stored) == (ReturnCode.CHANGED, None)
