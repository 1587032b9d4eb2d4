"""Each invariant is broken on purpose and the break is detected: a detector is trusted once it has gone red.

Every scenario is run once as the product is, and nothing may be found; and once with each of its mutations, and the
detectors that the mutation names must find what it names. Of those with real processes one for each invariant is run on
every change; the others are marked ``long``.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridge.routing import keys
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import WaitTimeout
from tests.calibration import in_place
from tests.calibration.mutation import Edit, Mutation, NoLongerApplies, mutated, product
from tests.calibration.mutations import MUTATIONS
from tests.calibration.scenarios import SCENARIOS, SETS_THE_CLOCK, SUBSCRIBED
from tests.calibration.script_mutations import SCRIPT_MUTATIONS
from tests.calibration.script_runs import AS_IT_IS, node_of
from tests.calibration.stage import Finding, Stage
from tests.chaos.subscriptions import ONE
from tests.nodes.clocks import SettableClock

#: The invariants of the design, each of which must be broken by something.
INVARIANTS = [*(f"I{number}" for number in range(1, 10)), "I5a"]

#: For all runs of the tests of the scripts, some forty, of which the first of their tests waits for all.
RUNS_WITHIN_S = 400

#: Scenario -> whether nothing that is run on every change needs it.
PLAYED = {m.scenario: all(other.long for other in MUTATIONS if other.scenario == m.scenario) for m in MUTATIONS}


def marked(long: bool) -> Any:
    return pytest.mark.long if long else ()


#: Plays of one mutation at most. What lasts for ms, looks a few times a second may not meet. And on a busy machine the
#: defect may not happen: messages of a ticket that come late are not in one bundle.
PLAYS = 3
#: The same where a look must find it. On a busy machine, three plays were too few twice in ten runs of all tests.
LOOK_PLAYS = 8
#: The scenario that also runs unchanged, with functions and scripts put in place as for a mutation.
PUT_IN_PLACE = "steady"
#: The finding that a scenario did not come to its end.
STUCK = ("scenario", "stuck")

# -- real masters and workers ------------------------------------------------------------------------------------------


def play(
    folder: Path, binary: Path, scenario: str, mutation: Mutation | None, *, copied: bool = False
) -> list[Finding]:
    """What the detectors find in one run of the scenario. ``copied``: with a copy of the product in any case."""
    copied = copied or not (mutation is None or in_place.fits(mutation))
    copy = product(folder / "product", mutation) if copied else ROOT
    texts = None if copied else mutated(mutation) if mutation else all_texts() if scenario == PUT_IN_PLACE else None
    wanted = mutation.caught_by if mutation else ()
    clock = SettableClock(folder, "server") if scenario in SETS_THE_CLOCK else None
    with Stage(folder, binary, copy, wanted, clock, SUBSCRIBED.get(scenario, ONE), texts) as stage:
        try:
            SCENARIOS[scenario](stage)
        except WaitTimeout as exc:
            # A broken product need not come to the end of a scenario; the others judge what there is until then.
            stage.findings.append(Finding(*STUCK, str(exc)))
        return stage.judge()


def all_texts() -> dict[str, str]:
    """All files that are mutated in place, as they are."""
    files = {edit.file for mutation in MUTATIONS if in_place.fits(mutation) for edit in mutation.edits}
    return {file: (ROOT / file).read_text() for file in sorted(files)}


def in_words(findings: list[Finding]) -> str:
    return "\n".join(f"{finding}: {finding.detail}" for finding in findings[:40]) or "nothing was found"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [pytest.param(name, marks=marked(long)) for name, long in PLAYED.items()])
def test_nothing_is_found_of_the_product_as_it_is(scenario: str, tmp_path: Path, valkey_binary: Path) -> None:
    findings = play(tmp_path, valkey_binary, scenario, None)
    assert not findings, in_words(findings)


@pytest.mark.slow
@pytest.mark.long  # no mutation that is played on every change needs a copy
def test_nothing_is_found_of_a_copy_of_the_product(tmp_path: Path, valkey_binary: Path) -> None:
    findings = play(tmp_path, valkey_binary, PUT_IN_PLACE, None, copied=True)
    assert not findings, in_words(findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [pytest.param(m, id=f"{m.breaks} {m.name}", marks=marked(m.long)) for m in MUTATIONS]
)
def test_the_mutation_is_caught(mutation: Mutation, tmp_path: Path, valkey_binary: Path) -> None:
    findings: list[Finding] = []
    missed = set(mutation.caught_by)
    plays = LOOK_PLAYS if any(one.startswith("look: ") for one in mutation.caught_by) else PLAYS
    for play_number in range(1, plays + 1):
        folder = tmp_path / str(play_number)
        folder.mkdir()
        found = play(folder, valkey_binary, mutation.scenario, mutation)
        findings += found
        missed -= {str(finding) for finding in found}
        if not missed:
            break
    print(in_words(findings))
    assert not missed, f"{mutation.name} breaks {mutation.breaks}, and nobody found {missed}:\n{in_words(findings)}"


# -- single scripts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def script_runs(valkey_binary: Path) -> dict[str, Any]:
    """What came of the tests of the scripts, by the mutation; see `tests.calibration.script_runs`."""
    del valkey_binary  # without a server there is nothing to see
    command = python_module("tests.calibration.script_runs")
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=RUNS_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    runs = map(json.loads, done.stdout.splitlines())
    return {run["name"]: run for run in runs}


@pytest.mark.slow
@pytest.mark.timeout(RUNS_WITHIN_S + 20)
def test_the_tests_that_noticed_a_mutation_of_a_script_are_green_without_one(script_runs: dict[str, Any]) -> None:
    run = script_runs[AS_IT_IS]
    assert run["code"] == 0, run["shown"]
    noticed = {
        failed for name, of_mutation in script_runs.items() if name != AS_IT_IS for failed in of_mutation["failed"]
    }
    assert run["passed"] == len(noticed) > 0


@pytest.mark.slow
@pytest.mark.timeout(RUNS_WITHIN_S + 20)
@pytest.mark.parametrize("mutation", SCRIPT_MUTATIONS, ids=lambda m: f"{m.breaks} {m.name}")
def test_the_mutation_of_a_script_is_caught(mutation: Mutation, script_runs: dict[str, Any]) -> None:
    run = script_runs[f"{mutation.breaks} {mutation.name}"]
    # 1: tests failed. Anything else is no verdict: nothing was collected, or pytest itself broke.
    assert run["code"] == 1, run["shown"]
    node = node_of(mutation)
    assert any(failed == node or failed.startswith(f"{node}[") for failed in run["failed"]), run["shown"]


# -- the mutations themselves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutation", [*MUTATIONS, *SCRIPT_MUTATIONS], ids=lambda m: f"{m.breaks} {m.name}")
def test_the_mutation_still_applies(mutation: Mutation) -> None:
    mutated(mutation)


def test_a_mutation_whose_text_is_gone_or_ambiguous_is_refused() -> None:
    for old in ("no such text", "redis.call", ""):
        mutation = Mutation("x", "I1", "steady", ("look: state",), (Edit("routing/lua/advance.lua", old, "y"),))
        with pytest.raises(NoLongerApplies, match="the mutation no longer applies: x: "):
            mutated(mutation)


def test_only_what_an_import_does_needs_a_copy() -> None:
    copied = [mutation for mutation in MUTATIONS if not in_place.fits(mutation)]
    assert all(mutation.long for mutation in copied)
    assert [mutation.name for mutation in copied] == ["a message is acknowledged in a step of its own"]
    with pytest.raises(in_place.NeedsACopy):
        in_place.make(mutated(copied[0]))


def test_a_function_gets_its_new_code_wherever_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known, file = keys.schedule_key, "routing/keys.py"
    before, text = known("s"), (ROOT / file).read_text()
    changed = text.replace('return f"{_tagged(stream)}/schedule"', "return 'x'")
    monkeypatch.setattr(known, "__code__", known.__code__)
    in_place.make({file: changed})
    assert (before, known("s")) == ("{s}/schedule", "x")


def test_every_invariant_is_broken_with_real_processes_and_names_are_unique() -> None:
    assert {mutation.breaks for mutation in MUTATIONS if not mutation.long} >= {*INVARIANTS, "promise 4"}
    names = [(mutation.breaks, mutation.name) for mutation in (*MUTATIONS, *SCRIPT_MUTATIONS)]
    assert len(set(names)) == len(names)
    assert all(mutation.scenario in SCENARIOS for mutation in MUTATIONS)


def test_the_page_has_a_row_for_every_mutation_and_no_other() -> None:
    rows = {
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")[:3])
        for line in (ROOT / "docs" / "explanation" / "calibration.md").read_text().splitlines()
        if line.startswith(("| I", "| promise"))
    }
    wanted = {(m.breaks, m.name + (" (long)" if m.long else ""), m.scenario) for m in MUTATIONS}
    wanted |= {(m.breaks, m.name, m.edits[0].file.rpartition("/")[2]) for m in SCRIPT_MUTATIONS}
    assert rows == wanted
