"""lead.lua, renew.lua, resign.lua: one leader at a time, and a term is given out once.

attend.lua, depart.lua: which masters live.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bridge.routing import leadership
from bridge.routing.errors import LaneGone
from bridge.routing.keys import LaneKeys, layout_key, masters
from bridge.routing.layouts import in_layout
from bridge.routing.leadership import Answered, Candidate, Lead, attend, depart, renew, resign
from bridge.testing.waiting import wait_until
from tests.script_calls import lead
from tests.scripts.world import LEASE_MS, TOKEN, Client, World

pytestmark = pytest.mark.scripts


def test_the_first_master_is_elected_in_term_one(empty: World) -> None:
    # Given a lane that nobody ever led
    assert lead(empty.client, empty.keys, "m1@a", 5000) == (True, "1 m1@a", 5000)
    # Then the leader's key ends by itself, and the term stays
    after = empty.snapshot()
    assert after[empty.keys.leader] == {"type": "string", "expires": True, "value": "1 m1@a"}
    assert after[empty.keys.term] == {"type": "string", "expires": False, "value": "1"}
    assert 4000 < empty.client.pttl(empty.keys.leader) <= 5000


@pytest.mark.parametrize("holder", ["m2@b", "master@here"])
def test_while_one_leads_no_other_is_elected_not_even_with_the_same_name(holder: str, world: World) -> None:
    before = world.snapshot()
    elected, token, left_ms = lead(world.client, world.keys, holder, 5000)
    assert (elected, token) == (False, TOKEN)
    assert 0 < left_ms <= LEASE_MS
    assert world.snapshot() == before


def test_terms_never_repeat(empty: World) -> None:
    tokens = []
    for _ in range(20):
        elected, token, _ = lead(empty.client, empty.keys, "m1@a", 5000)
        assert elected
        tokens.append(token)
        assert resign(empty.client, empty.keys, token)
    assert tokens == [f"{term} m1@a" for term in range(1, 21)]


def test_a_large_term_is_written_exactly(empty: World) -> None:
    empty.client.set(empty.keys.term, 2**50)
    assert lead(empty.client, empty.keys, "m", 5000)[1] == f"{2**50 + 1} m"


def test_the_leader_renews_its_lease(world: World) -> None:
    before = world.snapshot()
    assert renew(world.client, [Lead(world.keys, TOKEN, 2 * LEASE_MS)]) == [True]
    assert world.client.pttl(world.keys.leader) > LEASE_MS
    assert world.snapshot() == before


def test_only_the_token_of_the_term_renews_or_ends_it(world: World) -> None:
    world.client.pexpire(world.keys.leader, 5000)
    before = world.snapshot()
    for token in ("6 master@here", "8 master@here", "7 other@there", "7", ""):
        assert renew(world.client, [Lead(world.keys, token, LEASE_MS)]) == [False], token
        assert not resign(world.client, world.keys, token), token
        assert world.snapshot() == before, token
        assert world.client.pttl(world.keys.leader) <= 5000, token


def test_a_lead_that_ended_is_not_revived(world: World) -> None:
    world.client.delete(world.keys.leader)
    before = world.snapshot()
    assert renew(world.client, [Lead(world.keys, TOKEN, LEASE_MS)]) == [False]
    assert not resign(world.client, world.keys, TOKEN)
    assert world.snapshot() == before


@pytest.mark.parametrize(
    "change", [lambda c, key: c.pexpire(key, 3_600_000), lambda c, key: c.persist(key)], ids=["too long", "no end"]
)
def test_a_lead_that_the_servers_clock_made_too_long_is_cut_to_one_lease(
    change: Callable[[Client, str], object], world: World
) -> None:
    # Given a lead that has more left than anybody's lease, as after the server's clock was set back, or has no end
    change(world.client, world.keys.leader)
    # When a standby asks
    elected, token, left_ms = lead(world.client, world.keys, "m2@b", 5000)
    assert (elected, token, left_ms) == (False, TOKEN, 5000)
    assert 4000 < world.client.pttl(world.keys.leader) <= 5000
    # And one that is not too long stays as it is
    assert 4000 < lead(world.client, world.keys, "m2@b", 60_000)[2] <= 5000


# -- several lanes -----------------------------------------------------------------------------------------------------


def other_lane(world: World, name: str) -> LaneKeys:
    return LaneKeys(world.keys.stream, name)


def test_leads_of_several_lanes_are_renewed_each_by_its_own_token(world: World) -> None:
    # Given leads of this master, of another one, one that ended, and a key that is no lead at all
    mine, theirs, gone, spoilt = (other_lane(world, name) for name in ("mine", "theirs", "gone", "spoilt"))
    world.client.set(mine.leader, "3 me", px=1000)
    world.client.set(theirs.leader, "4 them", px=1000)
    world.client.lpush(spoilt.leader, "x")
    leads = [Lead(keys, "3 me", LEASE_MS) for keys in (theirs, mine, gone, spoilt)]
    # When all are renewed with one script, then only the own one is
    assert renew(world.client, leads) == [False, True, False, False]
    assert world.client.pttl(mine.leader) > 1000 >= world.client.pttl(theirs.leader)
    assert not world.client.exists(gone.leader)
    world.client.delete(spoilt.leader)


def test_several_leads_are_asked_for_in_one_round_trip_and_one_that_is_spoilt_harms_no_other(world: World) -> None:
    free, spoilt = other_lane(world, "free"), other_lane(world, "spoilt")
    world.client.lpush(spoilt.leader, "x")
    world.client.script_flush()
    found = leadership.lead(
        world.client, "me", [Candidate(keys, in_layout(keys.stream), 1000) for keys in (spoilt, world.keys, free)]
    )
    assert "WRONGTYPE" in str(found[0])
    assert found[1][:2] == (False, TOKEN)  # type: ignore[index]
    assert found[2] == (True, "1 me", 1000)
    world.client.delete(spoilt.leader, free.term)


def test_a_master_learns_of_others_only_when_something_changed(empty: World) -> None:
    client, stream = empty.client, empty.keys.stream
    first = attend(client, stream, "m1", 5000, "all", "")
    assert (first.masters, first.first_ms) == ({"m1": "all"}, None)
    assert attend(client, stream, "m1", 5000, "all", first.version).masters is None
    second = attend(client, stream, "m2", 3000, "some", "")
    assert second.masters == {"m1": "all", "m2": "some"}
    again = attend(client, stream, "m1", 5000, "all", first.version)
    assert again.masters == second.masters
    assert again.first_ms is not None
    assert 2000 < again.first_ms <= 3000
    assert attend(client, stream, "m1", 5000, "less", again.version).masters == {"m1": "less", "m2": "some"}


def test_a_master_that_departs_or_whose_time_ends_is_gone(empty: World) -> None:
    client, stream = empty.client, empty.keys.stream
    for holder in ("m1", "m2"):
        attend(client, stream, holder, 5000, holder, "")
    attend(client, stream, "m3", 1, "m3", "")
    wait_until(
        lambda: attend(client, stream, "m1", 5000, "m1", "").masters == {"m1": "m1", "m2": "m2"},
        description="the time of m3 to end",
    )
    known = attend(client, stream, "m1", 5000, "m1", "").version
    depart(client, stream, "m2")
    depart(client, stream, "nobody")
    found = attend(client, stream, "m1", 5000, "m1", known)
    assert (found.masters, found.first_ms) == ({"m1": "m1"}, None)
    # And all that is kept ends by itself
    for key in client.keys("*masters*"):
        assert 0 < client.pttl(key) <= 10_000


def test_the_time_of_a_master_that_the_servers_clock_made_too_long_is_cut(empty: World) -> None:
    # Given two masters, one of whose times ends late, as after the server's clock was set back
    client, stream = empty.client, empty.keys.stream
    attend(client, stream, "m2", 8000, "m2", "")
    client.zincrby(masters(stream), 3_600_000, "m2")
    # When another one looks, then it is cut to the time that it asked for
    found = attend(client, stream, "m1", 3000, "m1", "")
    assert found.first_ms == 8000
    # And a shorter time of one master shortens no other's
    found = attend(client, stream, "m3", 1000, "m3", "")
    assert found.masters is not None
    assert client.zscore(masters(stream), "m2") > client.zscore(masters(stream), "m3") + 5000
    assert client.pttl(masters(stream)) > 10_000


def test_nobody_is_elected_where_the_stream_was_retired_or_left(empty: World) -> None:
    # Given a master that stood still while its partition was left and deleted
    whole = "orders"
    keys = LaneKeys("orders:g1:p0", "g")
    layout = {"partitions": 1, "generation": 2, "since_ms": 1}
    empty.client.set(layout_key(whole), json.dumps(layout))
    candidate = Candidate(keys, in_layout(keys.stream, whole), 5000)
    assert leadership.lead(empty.client, "m1@a", [candidate]) == [None]
    assert not empty.client.exists(keys.leader, keys.term)
    # When the partition is followed, as during a repartition
    empty.client.set(layout_key(whole), json.dumps({**layout, "older": {"partitions": 1, "generation": 1}}))
    assert leadership.lead(empty.client, "m1@a", [candidate]) == [(True, "1 m1@a", 5000)]
    # Then it goes on leading also when the layout changes: deletions wait for its lead's end
    empty.client.set(layout_key(whole), json.dumps(layout))
    [answer] = leadership.lead(empty.client, "m2@b", [candidate])
    assert isinstance(answer, Answered)
    assert answer.token == "1 m1@a"
    empty.client.delete(keys.leader, keys.term, layout_key(whole))


def test_nobody_is_elected_in_a_retired_stream(empty: World) -> None:
    empty.client.set(layout_key(empty.keys.stream), '{"retired_ms":1,"newest":"s2","was":""}')
    with pytest.raises(LaneGone):
        lead(empty.client, empty.keys, "m1@a", 5000)
    assert not empty.client.exists(empty.keys.leader, empty.keys.term)
    empty.client.delete(layout_key(empty.keys.stream))
