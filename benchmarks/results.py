"""What was measured: for each case, variant and metric the values of the rounds, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.figures import Spread, percentile, ratios, spread

#: Metric -> value, of one run.
Metrics = dict[str, float]
#: The metric that says how much CPU other processes used meanwhile, in percent of a core.
DISTURBANCE = "others_cpu"


@dataclass
class Results:
    """The values of all rounds so far."""

    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, case: str, variant: str, metrics: Metrics) -> None:
        """Takes in what one run measured."""
        of_variant = self.values.setdefault(case, {}).setdefault(variant, {})
        for name, value in metrics.items():
            of_variant.setdefault(name, []).append(value)

    def of(self, case: str, variant: str, metric: str) -> list[float]:
        """The values of all rounds; empty when it was not measured."""
        return self.values.get(case, {}).get(variant, {}).get(metric, [])

    def spread(self, case: str, variant: str, metric: str) -> Spread | None:
        """Median and extremes; None when it was not measured."""
        values = self.of(case, variant, metric)
        return spread(values) if values else None

    def disturbance(self) -> float:
        """CPU that processes outside the runs used meanwhile, in percent of a core: the median over all runs."""
        seen = [
            value
            for variants in self.values.values()
            for metrics in variants.values()
            for value in metrics.get(DISTURBANCE, ())
        ]
        return percentile(seen, 50) if seen else 0.0

    def ratio(self, case: str, variant: str, peer: str, metric: str) -> Spread | None:
        """``variant`` over ``peer``, round by round; None when one of them was not measured."""
        found = ratios(self.of(case, variant, metric), self.of(case, peer, metric))
        return spread(found) if found else None
