"""Policies: even, stable if they promise it, and they only choose among the given consumers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.policies import Policy, PolicyName, policy, rendezvous

SEED = 20_240_607


@dataclass(frozen=True)
class One:
    name: str


def crowd(count: int) -> list[One]:
    return [One(f"w{i}@host") for i in range(count)]


TICKETS = [f"INC{i:07d}" for i in range(10_000)]


@pytest.mark.parametrize("name", [name for name in PolicyName if name is not PolicyName.LEAST_LOADED])
@given(count=st.integers(1, 8), ticket=st.text(min_size=1, max_size=20))
def test_a_policy_names_one_of_the_candidates(name: PolicyName, count: int, ticket: str) -> None:
    candidates = crowd(count)
    choose: Policy[One] = policy(name, random.Random(SEED))
    assert all(choose(ticket, candidates) in candidates for _ in range(3))


def test_rendezvous_needs_no_order_and_no_memory() -> None:
    shuffled = crowd(5)
    random.Random(SEED).shuffle(shuffled)
    for ticket in TICKETS[:200]:
        assert rendezvous(ticket, crowd(5)) == rendezvous(ticket, shuffled)


def test_rendezvous_does_not_mix_up_the_ends_of_names() -> None:
    # A ticket that begins as another consumer's name ends is another ticket
    chosen = {rendezvous(f"{i}", [One("w1"), One("w11")]).name for i in range(50)}
    assert chosen == {"w1", "w11"}


def test_round_robin_takes_turns() -> None:
    choose: Policy[One] = policy(PolicyName.ROUND_ROBIN)
    assert [choose("t", crowd(3)).name[1] for _ in range(7)] == list("0120120")


def test_two_lanes_take_turns_each_for_itself() -> None:
    first: Policy[One] = policy(PolicyName.ROUND_ROBIN)
    second: Policy[One] = policy(PolicyName.ROUND_ROBIN)
    assert first("t", crowd(3)) == second("t", crowd(3))


def test_random_spreads_tickets_evenly() -> None:
    choose: Policy[One] = policy(PolicyName.RANDOM, random.Random(SEED))
    shares = Counter(choose(ticket, crowd(4)).name for ticket in TICKETS)
    assert all(abs(share - 2500) < 4 * (2500 * 0.75) ** 0.5 for share in shares.values()), shares
