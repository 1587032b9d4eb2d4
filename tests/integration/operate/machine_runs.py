"""How a random machine of this folder is run."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int, **attributes: Any) -> None:
    """Runs so many examples of at most so many steps. ``attributes``: of the class, for this run."""
    run_state_machine_as_test(
        type("Machine", (machine,), attributes),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A step takes a tenth of a second, and a failure says its steps: it is not made smaller.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
