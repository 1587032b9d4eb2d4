"""Filters: which numbers are equal, and that none of them makes a filter raise."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.routing.filters import Filter

NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.integers(), st.floats(allow_nan=False), st.sampled_from([10**400]))


@given(wanted=NUMBERS, other=NUMBERS)
@example(wanted=10**30, other=1e30)
@example(wanted=1, other=1e30)
@example(wanted=2**64 - 1, other=2**64 + 1)
@example(wanted=10**400, other=0)
@example(wanted=-0.0, other=0)
def test_a_number_passes_when_it_is_the_wanted_one(wanted: float, other: float) -> None:
    """``wanted`` and ``other`` as an app and a producer of Python have them; JSON may make a float of a number."""
    found = Filter.read({"v": wanted})
    assert found.passes((), {"v": wanted})
    both_wide = _is_wide(wanted) and _is_wide(other)
    expected = _as_float(other) == _as_float(wanted) if both_wide else other == wanted
    assert found.passes((), {"v": other}) == expected


@pytest.mark.parametrize(
    "text", ["1e30", "1" + 30 * "0", "-1e300", "18446744073709551616", "1e19", "[1e30]", '{"a": 1e30}']
)
def test_no_number_of_a_payload_makes_a_filter_raise(text: str) -> None:
    parsed: Any = orjson.loads(f'{{"v": {text}}}')
    assert not Filter.read({"v": [1]}).passes((), parsed)


@pytest.mark.parametrize("text", ["1e30", "1" + 30 * "0"])
def test_a_large_number_is_wanted_in_each_way_of_writing_it(text: str) -> None:
    for wanted in (10**30, 1e30):
        assert Filter.read({"v": wanted}).passes((), orjson.loads(f'{{"v": {text}}}'))


def _is_wide(value: float) -> bool:
    return not -(2**63) <= value < 2**64


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
