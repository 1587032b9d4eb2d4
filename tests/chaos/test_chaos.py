"""Faults of every kind, drawn by a seed, under load, with bundles and without: every promise is kept all the same.

``CHAOS_SEED`` replays a draw, ``CHAOS_FAULTS`` says how many faults each of the two runs has.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.draw import MIXED, PREFORK, Cast, Load, script
from tests.chaos.run import Plan, Result, Run, default_seed

FAULTS = int(os.environ.get("CHAOS_FAULTS", "30"))
#: Seconds between two faults, on average.
PACE_S = 1.2


def run(folder: Path, cast: Cast, *, violent: bool, bundle_ms: float) -> Result:
    seed = default_seed("CHAOS_SEED")
    print(f"CHAOS_SEED={seed} CHAOS_FAULTS={FAULTS}")
    load = Load(seed, tickets=80, violent=violent)

    def source(counts: dict[str, int]) -> tuple[str, str, dict[str, object], bool]:
        ticket = load.ticket()
        return (ticket, *load.message(ticket, counts.get(ticket, 0)))

    plan = Plan(folder / "run", cast, script(seed, FAULTS, PACE_S), source, bundle_ms=bundle_ms)
    with Run(plan) as chaos:
        return chaos.go()


def told(result: Result) -> str:
    waits = "; ".join(f"{w.how}: {w.at(0.5):.2f}/{w.at(1):.2f} s" for w in result.waits if w.seconds)
    return (
        f"{len(result.messages):,} messages, {len(result.executions):,} executions, {len(result.letters):,} dead in "
        f"{result.seconds:.1f} s; faults {result.faults}; nobody there for {result.missed}; "
        f"stood still (median/max): {waits}; without leader {[round(s, 2) for s in result.leaderless_s]}; "
        f"counts {result.counts}"
    )


@pytest.mark.slow
@pytest.mark.timeout(150 + 4 * FAULTS)
@pytest.mark.parametrize(
    ("cast", "violent", "bundle_ms"), [(MIXED, False, 10.0), (PREFORK, True, 0.0)], ids=["bundles", "one by one"]
)
def test_faults_of_every_kind_break_no_promise(tmp_path: Path, cast: Cast, *, violent: bool, bundle_ms: float) -> None:
    result = run(tmp_path, cast, violent=violent, bundle_ms=bundle_ms)
    print(told(result))
    assert not result.violations, result.told_of()
    assert len(result.effects) > 100
