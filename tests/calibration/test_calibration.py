"""Each invariant broken on purpose, and caught: a detector is trusted once it has gone red.

Every scenario is run once as the product is, and nothing may be found; and once with each of its mutations, and the
detectors that the mutation names must find what it names. ``CALIBRATION=full`` runs the slow ones too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.calibration.mutation import Mutation, product
from tests.calibration.mutations import MUTATIONS
from tests.calibration.scenarios import SCENARIOS
from tests.calibration.stage import Finding, Stage
from tests.waiting import WaitTimeout

FULL = os.environ.get("CALIBRATION") == "full"

CHOSEN = [mutation for mutation in MUTATIONS if FULL or not mutation.slow]


def play(folder: Path, binary: Path, scenario: str, mutation: Mutation | None) -> list[Finding]:
    """What the detectors find in one run of the scenario."""
    copy = product(folder / "product", mutation)
    wanted = mutation.caught_by if mutation else ()
    with Stage(folder, binary, copy, wanted) as stage:
        try:
            SCENARIOS[scenario](stage)
        except WaitTimeout as exc:
            # A broken product need not come to the end of a scenario; the others judge what there is until then.
            stage.findings.append(Finding("scenario", "stuck", str(exc)))
        return stage.judge()


def told(findings: list[Finding]) -> str:
    return "\n".join(f"{finding}: {finding.detail}" for finding in findings[:40]) or "nothing was found"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", list(dict.fromkeys(m.scenario for m in CHOSEN if m.scenario in SCENARIOS)))
def test_nothing_is_found_of_the_product_as_it_is(scenario: str, tmp_path: Path, valkey_binary: Path) -> None:
    findings = play(tmp_path, valkey_binary, scenario, None)
    assert not findings, told(findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [m for m in CHOSEN if m.scenario in SCENARIOS], ids=lambda m: f"{m.breaks} {m.name}"
)
def test_the_mutation_is_caught(mutation: Mutation, tmp_path: Path, valkey_binary: Path) -> None:
    findings = play(tmp_path, valkey_binary, mutation.scenario, mutation)
    print(told(findings))
    missed = set(mutation.caught_by) - {str(finding) for finding in findings}
    assert not missed, f"{mutation.name} breaks {mutation.breaks}, and nobody found {missed}:\n{told(findings)}"
