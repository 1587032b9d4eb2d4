"""Rendezvous hashing: even shares; who joins or leaves moves its share only; each ticket has its own order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from statistics import median
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing import policies
from bridge.routing.policies import OTHERS, PARTS, Ring, Rings

TICKETS = [f"INC{i:07d}" for i in range(10_000)]
#: For properties that must hold for each ticket.
SOME = TICKETS[:150]
WORKERS = 16
#: Places of each worker where only the choice counts, and not how even the shares are. To make a ring takes most of the
#: time of such a test.
FEW_PLACES = 128

few_places = patch.object(policies, "POINTS", FEW_PLACES)
names = st.sets(st.text(min_size=1, max_size=12), min_size=2, max_size=WORKERS)


def ring_of(workers: Iterable[str]) -> Ring:
    ring = Ring()
    ring.update(workers)
    return ring


def owners(ring: Ring, among: Collection[str], tickets: Iterable[str] = SOME) -> dict[str, str]:
    return {ticket: ring.owner(ticket, among) for ticket in tickets}


def drawn_names(seed: int) -> list[str]:
    dice = random.Random(seed)
    return [f"w{i}@{dice.getrandbits(40):x}" for i in range(WORKERS)]


def deviations(workers: Collection[str], tickets: Collection[str]) -> list[float]:
    """How far the share of each worker is from an even share, as a part of that."""
    found = Counter(owners(ring_of(workers), set(workers), tickets).values())
    even = len(tickets) / len(workers)
    return [found[name] / even - 1 for name in workers]


def farthest(workers: Collection[str], tickets: Collection[str]) -> float:
    return max(map(abs, deviations(workers, tickets)))


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("worker", ["w{}@host", "celery@host{}", "consumer-{}"])
def test_ten_thousand_tickets_on_sixteen_workers_are_within_a_tenth_of_even(worker: str, first: int) -> None:
    workers = [worker.format(first + i) for i in range(WORKERS)]
    for ticket in ("INC{:07d}", "T{}"):
        assert farthest(workers, [ticket.format(i) for i in range(10_000)]) <= 0.10


@pytest.mark.parametrize("draws", [8, pytest.param(25, marks=pytest.mark.long)])
def test_with_any_names_the_shares_differ_as_if_each_ticket_chose_by_a_fair_die(draws: int) -> None:
    # A die gives shares with a standard deviation of 3.9 % of even, and all 16 are within a tenth in 85 % of all draws.
    # One place for each ticket on the ring gives 5 %, and 60 %.
    away = [deviations(drawn_names(seed), TICKETS) for seed in range(draws)]
    assert sum(each**2 for draw in away for each in draw) / (draws * WORKERS) < 0.045**2
    assert median(max(map(abs, draw)) for draw in away) <= 0.09


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_the_shares_of_all_tickets_that_there_can_be_are_within_a_tenth_of_even(seed: int) -> None:
    # So many tickets that chance has little part in it
    assert farthest(drawn_names(seed), [f"T{i}" for i in range(60_000)]) <= 0.10


@given(workers=names, data=st.data())
@few_places
def test_who_leaves_gives_its_tickets_away_and_no_other_ticket_moves(workers: set[str], data: st.DataObject) -> None:
    leaver = data.draw(st.sampled_from(sorted(workers)))
    before = owners(ring_of(workers), workers)
    after = owners(ring_of(workers - {leaver}), workers - {leaver})
    assert {t for t in SOME if before[t] != after[t]} == {t for t in SOME if before[t] == leaver}


@given(workers=names, joiner=st.text(min_size=13, max_size=13))
@few_places
def test_who_joins_gets_its_share_and_no_other_ticket_moves(workers: set[str], joiner: str) -> None:
    before = owners(ring_of(workers), workers)
    after = owners(ring_of(workers | {joiner}), workers | {joiner})
    moved = {t for t in SOME if before[t] != after[t]}
    assert {after[t] for t in moved} <= {joiner}
    even = len(SOME) / (len(workers) + 1)
    # Six standard deviations of a fair choice
    assert abs(len(moved) - even) < 6 * even**0.5


@given(workers=names, changes=st.lists(st.sets(st.integers(0, 15)), min_size=1, max_size=4))
@few_places
def test_owners_depend_on_who_is_there_and_not_on_who_was(workers: set[str], changes: list[set[int]]) -> None:
    listed = sorted(workers)
    ring = ring_of(workers)
    for change in changes:
        there = {name for i, name in enumerate(listed) if i not in change} or {listed[0]}
        ring.update(there)
        assert owners(ring, there) == owners(ring_of(sorted(there, reverse=True)), there)


@given(workers=names, data=st.data())
@few_places
def test_a_ticket_whose_owner_may_not_have_it_goes_to_the_next_in_its_own_order(
    workers: set[str], data: st.DataObject
) -> None:
    ring = ring_of(workers)
    # The order of each ticket: its owner, its owner when that one may not have it, and so on
    orders: dict[str, list[str]] = {ticket: [] for ticket in SOME[:40]}
    for ticket, order in orders.items():
        while left := workers - set(order):
            order.append(ring.owner(ticket, left))
    able = data.draw(st.sets(st.sampled_from(sorted(workers)), min_size=1))
    for ticket, order in orders.items():
        assert ring.owner(ticket, able) == next(name for name in order if name in able)
    # The orders differ: the tickets of one who may not have them go to several others
    if len(workers) > 6:
        assert len({tuple(order) for order in orders.values()}) > 10


def test_nobody_on_the_ring_may_have_it() -> None:
    with pytest.raises(ValueError, match="no consumer"):
        ring_of(["w1", "w2"]).owner("T", {"w3"})


def test_a_ring_of_a_few_gives_the_owners_that_the_ring_of_all_gives() -> None:
    everybody = [f"w{i}@host" for i in range(5 * OTHERS)]
    rings, whole = Rings(), ring_of(everybody)
    rings.update(everybody)
    few = {"w3@host", "w17@host", "w30@host"}
    assert len(rings.ring_for(few)) == len(few)
    assert owners(rings.ring_for(few), few) == owners(whole, few)
    # And most of them are found on that of all
    assert len(rings.ring_for(everybody[:10])) == len(everybody)


def test_rings_of_a_few_are_kept_while_they_are_used_and_their_number_is_bounded() -> None:
    everybody = [f"w{i}@host" for i in range(5 * OTHERS)]
    rings = Rings()
    rings.update(everybody)
    first = rings.ring_for([everybody[0]])
    for name in everybody[1:PARTS]:
        rings.ring_for([name])
    second = rings.ring_for([everybody[1]])
    assert rings.ring_for([everybody[0]]) is first
    rings.ring_for([everybody[PARTS], everybody[0]])
    assert rings.ring_for([everybody[0]]) is first
    assert rings.ring_for([everybody[1]]) is second
