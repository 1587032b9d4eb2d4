"""lead.lua, renew.lua, resign.lua: one leader at a time, and a term is given out once."""

from __future__ import annotations

import pytest

from bridge.routing.leadership import lead, renew, resign
from tests.scripts.world import LEASE_MS, TOKEN, World

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
    assert renew(world.client, world.keys, TOKEN, 2 * LEASE_MS)
    assert world.client.pttl(world.keys.leader) > LEASE_MS
    assert world.snapshot() == before


def test_only_the_token_of_the_term_renews_or_ends_it(world: World) -> None:
    world.client.pexpire(world.keys.leader, 5000)
    before = world.snapshot()
    for token in ("6 master@here", "8 master@here", "7 other@there", "7", ""):
        assert not renew(world.client, world.keys, token, LEASE_MS), token
        assert not resign(world.client, world.keys, token), token
        assert world.snapshot() == before, token
        assert world.client.pttl(world.keys.leader) <= 5000, token


def test_a_lead_that_ended_is_not_revived(world: World) -> None:
    world.client.delete(world.keys.leader)
    before = world.snapshot()
    assert not renew(world.client, world.keys, TOKEN, LEASE_MS)
    assert not resign(world.client, world.keys, TOKEN)
    assert world.snapshot() == before


def test_a_lead_that_the_servers_clock_made_too_long_is_cut_to_one_lease(world: World) -> None:
    # Given a lead that has more left than anybody's lease, as after the server's clock was set back
    world.client.pexpire(world.keys.leader, 3_600_000)
    # When a standby asks
    elected, token, left_ms = lead(world.client, world.keys, "m2@b", 5000)
    assert (elected, token, left_ms) == (False, TOKEN, 5000)
    assert 4000 < world.client.pttl(world.keys.leader) <= 5000
    # And one that is not too long stays as it is
    assert 4000 < lead(world.client, world.keys, "m2@b", 60_000)[2] <= 5000
