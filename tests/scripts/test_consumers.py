"""register, goodbye, died, forget: a name has one live incarnation, and the last one leaves nothing behind."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from bridge.leader.consumers.leases import Leases
from bridge.link.server_clock import ServerClock
from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import in_layout
from bridge.routing.membership import died, goodbye, register
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import forget, shorten
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import LEASE_MS, World, changes, fields_of, incarnation

pytestmark = pytest.mark.scripts

NEW = "a-new-life"


def end_lease(world: World, name: str) -> None:
    world.client.delete(world.keys.lease(incarnation(name)))


def begin(world: World, name: str, found: Any) -> tuple[ReturnCode, int]:
    return register(world.client, world.keys, name, NEW, LEASE_MS, b'{"incarnation":"a-new-life"}', found)


# -- register ------------------------------------------------------------------------------------------------------


def test_a_new_consumer_registers_with_a_lease(world: World) -> None:
    keys = world.keys
    before = world.snapshot()
    assert begin(world, "w3@c", None) == (ReturnCode.OK, 0)
    after = world.snapshot()
    expected = deepcopy(before)
    expected[keys.consumers]["value"]["w3@c"] = '{"incarnation":"a-new-life"}'
    expected[keys.lease(NEW)] = {"type": "string", "expires": True, "value": "w3@c"}
    assert fields_of(after, keys.outcomes)[-1] == {"i": NEW, "joined": "w3@c"}
    expected[keys.outcomes] = after[keys.outcomes]
    assert after == expected
    assert 0 < world.client.pttl(keys.lease(NEW)) <= LEASE_MS


def test_a_name_whose_lease_is_over_registers_with_an_empty_queue(world: World) -> None:
    # Given a consumer that died with a message in its queue
    keys = world.keys
    end_lease(world, "w1@a")
    before = world.snapshot()
    # When it comes back
    assert begin(world, "w1@a", (world.registrations["w1@a"], incarnation("w1@a"))) == (ReturnCode.OK, 0)
    # Then the queue is gone, its registration is new, and its tickets are still where the leader finds them
    after = world.snapshot()
    assert changes(before, after) == {keys.consumers, keys.lease(NEW), keys.queue("w1@a"), keys.outcomes}
    assert keys.queue("w1@a") not in after
    assert after[keys.consumers]["value"]["w1@a"] == '{"incarnation":"a-new-life"}'


def test_while_the_other_lease_holds_it_waits(world: World) -> None:
    before = world.snapshot()
    code, left_ms = begin(world, "w1@a", (world.registrations["w1@a"], incarnation("w1@a")))
    assert code is ReturnCode.HELD
    assert 0 < left_ms <= LEASE_MS
    assert world.snapshot() == before


@pytest.mark.parametrize(
    "found",
    [None, (b'{"incarnation":"older"}', "older"), (b"", "older")],
    ids=["saw none", "saw an older one", "saw an empty one"],
)
def test_a_name_that_was_registered_meanwhile_is_read_again(found: Any, world: World) -> None:
    # Given somebody who saw another registration than the one that is there, whose lease is over
    end_lease(world, "w1@a")
    before = world.snapshot()
    assert begin(world, "w1@a", found) == (ReturnCode.CHANGED, 0)
    assert world.snapshot() == before


def test_one_of_two_workers_that_start_under_one_name_wins(world: World) -> None:
    assert begin(world, "w3@c", None)[0] is ReturnCode.OK
    before = world.snapshot()
    second = register(world.client, world.keys, "w3@c", "another-life", LEASE_MS, b"{}", None)
    assert second == (ReturnCode.CHANGED, 0)
    assert world.snapshot() == before


@pytest.mark.parametrize(
    ("part", "layout", "is_served"),
    [
        ("", "", True),
        ("", "no JSON", True),
        ("", "[]", True),
        ("", '{"partitions":4,"generation":0,"since_ms":1}', True),
        ("", '{"partitions":4,"generation":1,"since_ms":2,"older":{"partitions":1,"generation":0,"since_ms":0}}', True),
        ("", '{"partitions":4,"generation":1,"since_ms":2,"leaving":{"partitions":1,"generation":0}}', False),
        ("", '{"partitions":4,"generation":1,"since_ms":2}', False),
        ("", '{"retired_ms":1,"newest":"s2","was":""}', False),
        (":p0", '{"partitions":4,"generation":0,"since_ms":1}', True),
        (":p0", '{"retired_ms":1,"newest":"s2","was":"{}"}', False),
        (":g1:p3", '{"partitions":4,"generation":1,"since_ms":2}', True),
        (":g1:p3", '{"partitions":2,"generation":2,"since_ms":3,"older":{"partitions":4,"generation":1}}', True),
        (":g1:p3", '{"partitions":2,"generation":2,"since_ms":3}', False),
        (":g12:p3", '{"partitions":4,"generation":12,"since_ms":2}', True),
    ],
)
def test_nobody_registers_where_the_stream_was_retired_or_left(
    part: str, layout: str, is_served: bool, world: World
) -> None:
    # Given a consumer that lost its lease, and knew an older layout than the stream has now
    whole = f"{world.keys.stream}:g7"
    keys = LaneKeys(whole + part, world.keys.group)
    if layout:
        world.client.set(layout_key(whole), layout)
    before = world.snapshot()
    # When it comes back
    code, _ = register(world.client, keys, "w1@a", NEW, LEASE_MS, b"{}", None, in_layout(keys.stream, whole))
    # Then it is refused where nobody would ever delete what it writes
    assert code is (ReturnCode.OK if is_served else ReturnCode.LAYOUT)
    assert (world.snapshot() == before) is not is_served
    world.client.delete(keys.consumers, keys.outcomes, keys.lease(NEW), layout_key(whole))


def test_a_layout_of_another_type_refuses_nobody(world: World) -> None:
    world.client.rpush(layout_key(world.keys.stream), "no layout")
    assert begin(world, "w3@c", None) == (ReturnCode.OK, 0)
    world.client.delete(layout_key(world.keys.stream))


# -- goodbye -------------------------------------------------------------------------------------------------------


def test_a_goodbye_ends_the_lease_and_writes_a_notice_to_the_leader(world: World) -> None:
    keys = world.keys
    before = world.snapshot()
    goodbye(world.client, keys, "w1@a", incarnation("w1@a"))
    after = world.snapshot()
    expected = deepcopy(before)
    del expected[keys.lease(incarnation("w1@a"))]
    del expected[keys.held(incarnation("w1@a"))]
    assert fields_of(after, keys.outcomes)[-1] == {"i": incarnation("w1@a"), "gone": "w1@a"}
    expected[keys.outcomes] = after[keys.outcomes]
    assert after == expected


def test_a_goodbye_after_the_lease_writes_nothing(world: World) -> None:
    # Given an incarnation whose lease is over: the lane may have been deleted since
    end_lease(world, "w1@a")
    world.client.delete(world.keys.outcomes)
    goodbye(world.client, world.keys, "w1@a", incarnation("w1@a"))
    assert not world.client.exists(world.keys.outcomes, world.keys.held(incarnation("w1@a")))


# -- died ----------------------------------------------------------------------------------------------------------


def test_a_death_notice_ends_the_lease_and_names_what_ran(world: World) -> None:
    keys = world.keys
    before = world.snapshot()
    assert died(world.client, keys, "w1@a", incarnation("w1@a"), [2**52 + 1, 7]) is ReturnCode.OK
    after = world.snapshot()
    expected = deepcopy(before)
    del expected[keys.lease(incarnation("w1@a"))]
    del expected[keys.held(incarnation("w1@a"))]
    notice = {"i": incarnation("w1@a"), "died": "w1@a", "ran": f"[{2**52 + 1},7]"}
    assert fields_of(after, keys.outcomes)[-1] == notice
    expected[keys.outcomes] = after[keys.outcomes]
    assert after == expected


def test_a_death_notice_says_that_the_worker_was_asked_to_end(world: World) -> None:
    assert died(world.client, world.keys, "w1@a", incarnation("w1@a"), [7], asked=True) is ReturnCode.OK
    notice = {"i": incarnation("w1@a"), "died": "w1@a", "ran": "[7]", "asked": "1"}
    assert fields_of(world.snapshot(), world.keys.outcomes)[-1] == notice


@pytest.mark.parametrize("asked", [False, True])
def test_a_death_notice_says_how_many_messages_of_other_lanes_ran(asked: bool, world: World) -> None:
    code = died(world.client, world.keys, "w1@a", incarnation("w1@a"), [7], asked=asked, beside=12)
    assert code is ReturnCode.OK
    notice = {"i": incarnation("w1@a"), "died": "w1@a", "ran": "[7]", **({"asked": "1"} if asked else {})}
    assert fields_of(world.snapshot(), world.keys.outcomes)[-1] == {**notice, "beside": "12"}


@pytest.mark.parametrize("how", ["died", "goodbye", "register"])
def test_a_full_server_still_takes_comings_and_goings(how: str, world: World) -> None:
    # Given a server that refuses whatever needs memory
    keys = world.keys
    if how == "register":
        end_lease(world, "w1@a")
    world.client.config_set("maxmemory", 1)
    try:
        if how == "died":
            assert died(world.client, keys, "w1@a", incarnation("w1@a"), [7]) is ReturnCode.OK
        elif how == "goodbye":
            goodbye(world.client, keys, "w1@a", incarnation("w1@a"))
        else:
            assert begin(world, "w1@a", (world.registrations["w1@a"], incarnation("w1@a"))) == (ReturnCode.OK, 0)
    finally:
        world.client.config_set("maxmemory", 0)
    assert not world.client.exists(keys.lease(incarnation("w1@a")))


# -- forget --------------------------------------------------------------------------------------------------------


def forgotten(world: World, name: str) -> ReturnCode:
    return forget(world.client, world.lead, name, incarnation(name), world.registrations[name])


def test_a_consumer_without_pending_entries_is_forgotten_completely(world: World) -> None:
    # Given a consumer that is gone, and has nothing in flight any more
    keys = world.keys
    end_lease(world, "w1@a")
    world.client.xack(keys.stream, keys.group, *world.busy[:2])
    before = world.snapshot()
    # When the leader forgets it
    assert forgotten(world, "w1@a") is ReturnCode.OK
    # Then registration, queue and name are gone, and nothing else
    expected = deepcopy(before)
    del expected[keys.consumers]["value"]["w1@a"]
    del expected[keys.queue("w1@a")]
    expected[keys.stream]["value"]["groups"][keys.group]["consumers"].remove("w1@a")
    assert world.snapshot() == expected


def test_a_name_with_pending_entries_stays_in_the_group(world: World) -> None:
    # Given one whose pending entries were not taken back: deleting its name would lose them
    end_lease(world, "w1@a")
    before = world.snapshot()
    assert forgotten(world, "w1@a") is ReturnCode.OK
    after = world.snapshot()
    assert after[world.keys.stream] == before[world.keys.stream]
    assert changes(before, after) == {world.keys.consumers, world.keys.queue("w1@a")}


def test_a_live_consumer_is_not_forgotten(world: World) -> None:
    before = world.snapshot()
    assert forgotten(world, "w1@a") is ReturnCode.ALIVE
    assert world.snapshot() == before


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_that_does_not_lead_forgets_no_consumer(how: Any, world: World) -> None:
    end_lease(world, "w1@a")
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        forgotten(world, "w1@a")
    assert world.snapshot() == before


def test_a_lease_that_the_servers_clock_made_too_long_is_cut_to_its_length(world: World) -> None:
    lease = world.keys.lease(incarnation("w1@a"))
    world.client.pexpire(lease, 3_600_000)
    shorten(world.client, world.lead, incarnation("w1@a"), 5000)
    assert 4000 < world.client.pttl(lease) <= 5000
    # One that is not too long, or not there, stays as it is; and only the leader may do this.
    shorten(world.client, world.lead, incarnation("w1@a"), 60_000)
    assert world.client.pttl(lease) <= 5000
    shorten(world.client, world.lead, "nobody", 5000)
    assert not world.client.exists(world.keys.lease("nobody"))
    world.client.pexpire(lease, 3_600_000)
    with pytest.raises(NotLeading):
        shorten(world.client, replace(world.lead, token="1 another"), incarnation("w1@a"), 5000)
    assert world.client.pttl(lease) > 5000


@pytest.mark.parametrize(("known_ms", "length_ms"), [(5000, 5000), (None, 8000)])
def test_a_lease_without_an_end_holds_for_its_length(known_ms: int | None, length_ms: int, world: World) -> None:
    life, lease = incarnation("w1@a"), world.keys.lease(incarnation("w1@a"))
    leases = Leases(ServerClock(8.0), 8.0)
    leases.know(life, known_ms)
    # When somebody takes its end away, then it holds, and ends in its time
    world.client.persist(lease)
    left = leases.ask(world.client, world.lead, [life])
    assert (left, leases.over(left)) == ({life: length_ms}, set())
    assert length_ms - 1000 < world.client.pttl(lease) <= length_ms
