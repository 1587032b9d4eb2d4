"""Holdings: a run is taken once, under fences newer than all before. A forgotten run is reported as forgotten."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.consumer import holdings as module
from bridge.consumer.holdings import Holdings, Taking

SEED = 11


def test_a_run_is_taken_once() -> None:
    holdings = Holdings()
    assert holdings.take("T", 5, 5, False) is Taking.TAKEN
    assert holdings.take("T", 5, 5, False) is Taking.REFUSED
    # Not after it was finished, either: a server that lost its last second sends it again
    holdings.drop("T", 5)
    assert holdings.take("T", 5, 5, False) is Taking.REFUSED


@given(fences=st.lists(st.integers(1, 20), max_size=20))
def test_only_newer_fences_are_taken(fences: list[int]) -> None:
    holdings = Holdings()
    newest = 0
    for fence in fences:
        assert (holdings.take("T", fence, fence, False) is Taking.TAKEN) == (fence > newest)
        newest = max(newest, fence)


def test_the_next_run_may_come_before_the_one_before_is_dropped() -> None:
    # The leader may read the last outcome before the main process knows that the run is over
    holdings = Holdings()
    assert holdings.take("T", 5, 5, False) is Taking.TAKEN
    assert holdings.take("T", 8, 8, False) is Taking.TAKEN
    # And the late end of the old run does not end the new one
    holdings.drop("T", 5)
    assert holdings.report() == [8]


def test_a_second_delivery_of_a_run_is_refused_while_held_and_else_reported_as_forgotten() -> None:
    holdings = Holdings()
    assert holdings.take("T", 5, 7, True) is Taking.TAKEN
    # The leader may have settled a part of the run in the meantime
    assert holdings.take("T", 5, 7, True) is Taking.REFUSED
    assert holdings.take("T", 6, 7, True) is Taking.REFUSED
    assert holdings.report() == [5]
    holdings.drop("T", 5)
    assert holdings.take("T", 6, 7, True) is Taking.FORGOTTEN
    # Not when a server that lost its last second sends it again: its outcome may be on its way
    assert holdings.take("T", 6, 7, False) is Taking.REFUSED
    assert holdings.report() == []
    assert holdings.take("T", 8, 8, True) is Taking.TAKEN


def test_a_lease_that_ended_empties_the_hands_but_not_the_memory() -> None:
    holdings = Holdings()
    holdings.take("T", 5, 5, False)
    holdings.forget()
    assert holdings.report() == []
    assert holdings.take("T", 5, 5, False) is Taking.REFUSED
    assert holdings.take("T", 6, 6, True) is Taking.TAKEN


def test_a_lease_may_end_while_a_run_is_dropped() -> None:
    """The thread of the lease forgets all runs between the look at a run and its removal, on the event loop."""
    holdings = Holdings()
    endings: list[threading.Thread] = []

    class LeaseEndsHere(dict[str, int]):
        def get(self, *args: Any) -> Any:
            found = super().get(*args)
            endings.append(threading.Thread(target=holdings.forget))
            endings[-1].start()
            # It is over at once, or it waits for the end of the removal
            endings[-1].join(0.2)
            return found

    holdings._held = LeaseEndsHere()
    assert holdings.take("T", 5, 5, False) is Taking.TAKEN
    assert holdings.take("U", 6, 6, False) is Taking.TAKEN
    holdings.drop("T", 5)
    for ending in endings:
        ending.join(30)
    assert holdings.report() == []
    holdings.drop("U", 6)


def test_tickets_do_not_know_of_each_other() -> None:
    holdings = Holdings()
    assert holdings.take("T", 9, 9, False) is Taking.TAKEN
    assert holdings.take("U", 2, 2, True) is Taking.TAKEN
    assert sorted(holdings.report()) == [2, 9]
    holdings.drop("U", 9)
    assert sorted(holdings.report()) == [2, 9]


def test_memory_is_bounded_and_forgets_the_longest_unused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    holdings = Holdings()
    for fence, ticket in enumerate(["a", "b", "c", "a", "d"], start=1):
        assert holdings.take(ticket, fence, fence, False) is Taking.TAKEN
        holdings.drop(ticket, fence)
    # "b" was used longest ago. The fences of all others are known
    assert not any(holdings.take(ticket, 1, 1, False) is Taking.TAKEN for ticket in "acd")
    assert holdings.take("b", 1, 1, False) is Taking.TAKEN


def test_a_report_may_be_asked_for_while_runs_come_and_go() -> None:
    dice = random.Random(SEED)
    holdings = Holdings()
    held: dict[str, int] = {}
    for fence in range(1, 500):
        ticket = f"T{dice.randrange(20)}"
        if holdings.take(ticket, fence, fence, False) is Taking.TAKEN:
            held[ticket] = fence
        if dice.random() < 0.5 and held:
            gone = dice.choice(sorted(held))
            holdings.drop(gone, held.pop(gone))
        assert sorted(holdings.report()) == sorted(held.values())
