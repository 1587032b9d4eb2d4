"""Holdings: a run is taken once, only under the newest fence, and in doubt only when no older one is here."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.worker import holdings as module
from bridge.worker.holdings import Holdings

SEED = 11


def test_a_run_is_taken_once() -> None:
    holdings = Holdings()
    assert holdings.take("T", 5, False)
    assert not holdings.take("T", 5, False)
    # Not after it was finished, either: a server that lost its last second gives it out again
    holdings.drop("T", 5)
    assert not holdings.take("T", 5, False)


@given(fences=st.lists(st.integers(1, 20), max_size=20))
def test_only_newer_fences_are_taken(fences: list[int]) -> None:
    holdings = Holdings()
    newest = 0
    for fence in fences:
        assert holdings.take("T", fence, False) == (fence > newest)
        newest = max(newest, fence)


def test_the_next_run_may_come_before_the_one_before_is_dropped() -> None:
    # The leader reads the last outcome sooner than the main process hears that the run is over
    holdings = Holdings()
    assert holdings.take("T", 5, False)
    assert holdings.take("T", 8, False)
    # And the late end of the old one does not end the new one
    holdings.drop("T", 5)
    assert holdings.report() == [8]


def test_in_doubt_a_run_is_refused_while_an_older_one_is_here() -> None:
    holdings = Holdings()
    assert holdings.take("T", 5, False)
    assert not holdings.take("T", 8, True)
    assert holdings.report() == [5]
    holdings.drop("T", 5)
    assert holdings.take("T", 9, True)


def test_a_lease_that_ended_empties_the_hands_but_not_the_memory() -> None:
    holdings = Holdings()
    holdings.take("T", 5, False)
    holdings.forget()
    assert holdings.report() == []
    assert not holdings.take("T", 5, False)
    assert holdings.take("T", 6, True)


def test_tickets_do_not_know_of_each_other() -> None:
    holdings = Holdings()
    assert holdings.take("T", 9, False)
    assert holdings.take("U", 2, True)
    assert sorted(holdings.report()) == [2, 9]
    holdings.drop("U", 9)
    assert sorted(holdings.report()) == [2, 9]


def test_memory_is_bounded_and_forgets_the_longest_unused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    holdings = Holdings()
    for fence, ticket in enumerate(["a", "b", "c", "a", "d"], start=1):
        assert holdings.take(ticket, fence, False)
        holdings.drop(ticket, fence)
    # "b" was used longest ago; of the others every fence is known
    assert not any(holdings.take(ticket, 1, False) for ticket in "acd")
    assert holdings.take("b", 1, False)


def test_a_report_may_be_asked_for_while_runs_come_and_go() -> None:
    dice = random.Random(SEED)
    holdings = Holdings()
    held: dict[str, int] = {}
    for fence in range(1, 500):
        ticket = f"T{dice.randrange(20)}"
        if holdings.take(ticket, fence, False):
            held[ticket] = fence
        if dice.random() < 0.5 and held:
            gone = dice.choice(sorted(held))
            holdings.drop(gone, held.pop(gone))
        assert sorted(holdings.report()) == sorted(held.values())
