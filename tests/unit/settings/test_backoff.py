"""Backoff: it grows within bounds, and is spread."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.settings.retries import Backoff

SEED = 7
NAN = float("nan")
VALID = st.builds(
    Backoff,
    base=st.floats(0, 86_400),
    factor=st.floats(1, 100),
    limit=st.floats(0, 604_800),
    jitter=st.floats(0, 1),
)
DICE = st.floats(0, 1, exclude_max=True)


@given(backoff=VALID, attempt=st.integers(1, 10**6), dice=DICE)
def test_a_delay_is_never_negative_nor_above_the_limit(backoff: Backoff, attempt: int, dice: float) -> None:
    assert 0 <= backoff.delay_ms(attempt, dice) <= backoff.limit * 1000


@given(backoff=VALID, attempt=st.integers(1, 10**6), dice=DICE)
def test_jitter_takes_off_at_most_its_share(backoff: Backoff, attempt: int, dice: float) -> None:
    longest = backoff.delay_ms(attempt, 0.0)
    assert longest * (1 - backoff.jitter) - 1 <= backoff.delay_ms(attempt, dice) <= longest


@given(backoff=VALID, attempt=st.integers(1, 100), dice=DICE)
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempt: int, dice: float) -> None:
    assert backoff.delay_ms(attempt + 1, dice) >= backoff.delay_ms(attempt, dice)


def test_the_default_doubles_from_one_second_to_five_minutes() -> None:
    waits = [Backoff().delay_ms(attempt, 0.0) for attempt in range(1, 12)]
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]


def test_delays_of_one_attempt_spread_over_the_whole_share() -> None:
    dice = random.Random(SEED)
    waits = [Backoff().delay_ms(3, dice.random()) for _ in range(1000)]
    assert 2000 <= min(waits) < 2100
    assert 3900 < max(waits) <= 4000


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": -1.0},
        {"factor": 0.5},
        {"limit": -1.0},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"base": float("nan")},
        {"x": 1},
    ],
    ids=str,
)
def test_an_impossible_backoff_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Backoff(**wrong)
