"""What the project set out to reach, and whether it does: one figure and its bound."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Spread
from benchmarks.results import Results


@dataclass(frozen=True)
class Goal:
    """One figure and its bound. ``peer``: the figure is the ratio to this variant of the same case."""

    text: str
    case: str
    variant: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    peer: str | None = None
    unit: str = ""

    def measured(self, results: Results) -> Spread | None:
        """The figure; None when this run did not measure it."""
        if self.peer is not None:
            return results.ratio(self.case, self.variant, self.peer, self.metric)
        return results.spread(self.case, self.variant, self.metric)

    def reached(self, results: Results) -> bool | None:
        """Whether the median keeps the bound; None when this run did not measure it."""
        found = self.measured(results)
        if found is None:
            return None
        if self.at_least is not None and found.median < self.at_least:
            return False
        return self.at_most is None or found.median <= self.at_most

    @property
    def bound(self) -> str:
        """The bound as a reader likes it."""
        unit = "times" if self.peer is not None else self.unit
        if self.at_least is not None:
            return f"≥ {self.at_least:,g} {unit}".rstrip()
        return f"≤ {self.at_most:,g} {unit}".rstrip()
