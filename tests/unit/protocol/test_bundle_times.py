"""Each message of a bundle has the whole time limit of its task, whenever it starts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.bundle_times import LEAST_OVERTIME, OVERTIME, last_start_s, limits_of

BUNDLES = st.floats(0.001, 10)
LIMITS = st.lists(st.floats(0.001, 10_000), max_size=3)


@given(bundle_s=BUNDLES, hard=LIMITS, soft=LIMITS)
def test_the_last_message_that_starts_has_the_smallest_limit_of_the_tasks(
    bundle_s: float, hard: list[float], soft: list[float]
) -> None:
    limits = limits_of(bundle_s, hard, soft)
    last_s = last_start_s(bundle_s, limits)
    for total, of_tasks in zip(limits, (hard, soft), strict=True):
        assert (total is None) == (not of_tasks)
        if total is not None:
            # One time of a bundle may pass before its first message starts.
            assert total - (last_s + bundle_s) >= min(of_tasks) * (1 - 1e-9) - 1e-9
            # And the first one has not much longer.
            assert total <= min(of_tasks) + (OVERTIME + 1) * bundle_s + 1e-9


@given(bundle_s=BUNDLES, hard=LIMITS, soft=LIMITS)
def test_a_bundle_with_limits_may_take_what_it_needs(bundle_s: float, hard: list[float], soft: list[float]) -> None:
    last_s = last_start_s(bundle_s, limits_of(bundle_s, hard, soft))
    assert LEAST_OVERTIME * bundle_s <= last_s * (1 + 1e-9)
    assert last_s <= OVERTIME * bundle_s
    if not hard + soft:
        assert math.isclose(last_s, OVERTIME * bundle_s)


@pytest.mark.parametrize("header", [(), (None, None), [None, None]])
def test_a_bundle_without_limits_may_take_sixteen_times_as_long(header: list[None]) -> None:
    assert last_start_s(0.01, header) == OVERTIME * 0.01
