"""The statistics of a few rounds: medians, spread, percentiles, and ratios of what was measured in the same round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """What several rounds said of one figure."""

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of ``values``; ValueError when there are none."""
    if not values:
        raise ValueError("no round measured this")
    return Spread(percentile(values, 50), min(values), max(values), len(values))


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which ``percent`` % of ``values`` lie, interpolated; ValueError when there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    place = (len(ordered) - 1) * percent / 100
    below, above = math.floor(place), math.ceil(place)
    # Written so that equal neighbours give exactly their value.
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratios(tops: Sequence[float], bottoms: Sequence[float]) -> list[float]:
    """The ratio of each round: both peers had the same weather then. A round that one of them lacks is left out."""
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=False) if bottom > 0]
