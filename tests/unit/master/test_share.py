"""The share of each master: balance, small moves, and when a lane is handed over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.master.share import REFUSED_S, Share
from bridge.protocol.standing import Standing, read_standing

SETTLE_S = 5.0
CHAINS = tuple(f"lane-{n}" for n in range(2000))
ALL = Standing(frozenset(CHAINS)).text()
#: For properties that must hold for each chain.
SOME = CHAINS[:60]
FEW = Standing(frozenset(SOME)).text()

holders = st.text("abcdef0123456789:", min_size=1, max_size=12)


def share(holder: str, masters: dict[str, str], now: float = 0.0) -> Share:
    made = Share(holder, SETTLE_S)
    made.update(masters, now)
    return made


def owners(masters: dict[str, str], chains: tuple[str, ...] = SOME) -> dict[str, str | None]:
    made = share("nobody", masters)
    return {chain: made.owner(chain) for chain in chains}


@given(st.sets(holders, min_size=2, max_size=8))
def test_only_the_lanes_of_the_master_that_comes_or_goes_move(names: set[str]) -> None:
    joiner, *others = sorted(names)
    before, after = owners(dict.fromkeys(others, FEW)), owners(dict.fromkeys(names, FEW))
    moved = {chain for chain in SOME if before[chain] != after[chain]}
    assert moved == {chain for chain in SOME if after[chain] == joiner}


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_the_shares_are_about_even(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.sets(holders, min_size=2, max_size=8))
    def are_about_even(names: set[str]) -> None:
        counts = Counter(owners(dict.fromkeys(names, ALL), CHAINS).values())
        even = len(CHAINS) / len(names)
        assert counts.keys() == names
        assert max(abs(count - even) for count in counts.values()) < 0.35 * even

    are_about_even()


@given(st.sets(holders, min_size=1, max_size=6))
def test_all_masters_come_to_the_same_result_whatever_they_saw_before(names: set[str]) -> None:
    masters = dict.fromkeys(names, FEW)
    found = []
    for holder in sorted(names):
        made = share(holder, {holder: FEW, "gone": FEW})
        made.update(dict(reversed(masters.items())), 1.0)
        found.append([made.owner(chain) for chain in SOME])
        assert [made.is_mine(chain) for chain in SOME] == [owner == holder for owner in found[0]]
    assert all(one == found[0] for one in found)


def test_a_master_owns_only_lanes_that_it_stands_for() -> None:
    half = frozenset(CHAINS[:1000])
    made = share("a", {"a": ALL, "b": Standing(half).text()})
    assert {chain for chain in CHAINS if made.owner(chain) == "b"} < half
    assert made.owner("strange") is None
    assert made.is_mine("strange")


def test_a_master_that_was_named_for_lanes_goes_before_those_that_stand_for_all() -> None:
    named = Standing(frozenset(CHAINS[:3]), named=True)
    made = share("a", {"a": ALL, "b": ALL, "n": named.text()})
    assert {made.owner(chain) for chain in CHAINS[:3]} == {"n"}
    assert {made.owner(chain) for chain in CHAINS[3:]} == {"a", "b"}


def test_a_master_that_stands_aside_owns_nothing_there_unless_it_is_the_only_one() -> None:
    aside = Standing(frozenset(CHAINS), aside=frozenset(CHAINS[:5])).text()
    made = share("a", {"a": ALL, "b": aside})
    assert {made.owner(chain) for chain in CHAINS[:5]} == {"a"}
    alone = share("b", {"b": aside})
    assert {alone.owner(chain) for chain in CHAINS} == {"b"}


def test_a_lane_is_handed_over_only_to_an_owner_that_has_lived_for_a_while() -> None:
    made = share("a", {"a": ALL}, now=0.0)
    assert {made.successor(chain, 100.0) for chain in CHAINS} == {None}
    made.update({"a": ALL, "b": ALL}, 100.0)
    assert {made.successor(chain, 104.9) for chain in CHAINS} == {None}
    assert {made.successor(chain, 105.0) for chain in CHAINS} == {None, "b"}
    # When it was gone in between, it counts as new
    made.update({"a": ALL}, 106.0)
    made.update({"a": ALL, "b": ALL}, 107.0)
    assert {made.successor(chain, 111.0) for chain in CHAINS} == {None}
    assert {made.successor(chain, 112.0) for chain in CHAINS} == {None, "b"}


def test_an_owner_that_did_not_take_a_lane_gets_it_later() -> None:
    made = share("a", {"a": ALL, "b": ALL}, now=0.0)
    its, other = [chain for chain in CHAINS if made.owner(chain) == "b"][:2]
    made.not_taken(its, 10.0)
    assert made.successor(its, 10.0 + REFUSED_S - 1) is None
    assert made.successor(its, 10.0 + REFUSED_S) == "b"
    assert made.successor(other, 10.0) == "b"


def test_a_master_that_does_not_see_itself_takes_what_nobody_owns() -> None:
    made = share("a", {})
    assert made.is_mine("x")
    assert made.successor("x", 1.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"lanes": 3, "named": 1, "aside": []}', "null"])
def test_what_cannot_be_read_stands_for_nothing(text: str) -> None:
    assert read_standing(text) == Standing()


def test_what_a_master_stands_for_is_read_as_it_was_written() -> None:
    one = Standing(frozenset({"a", "ü:p3"}), named=True, aside=frozenset({"a"}))
    assert read_standing(one.text()) == one
