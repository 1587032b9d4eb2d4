"""Faults of every kind, drawn by a seed, under load, with bundles and without. Every promise is kept.

Each of the two runs has half of the kinds of faults, and one has those of HTTP consumers, too: both together have every
kind once. Those of ``make long`` have every kind each. ``CHAOS_SEED`` replays a draw, ``CHAOS_FAULTS`` says how many
faults a run has.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.draw import ACTIONS, MIXED, PREFORK, Cast, half_of_kinds
from tests.chaos.http_program import LIES
from tests.chaos.run import default_seed
from tests.chaos.short import in_words, short_run
from tests.chaos.subscriptions import ONE, draw_partitions, draw_subscriptions, split
from tests.chaos.versions import draw_versions

#: Faults of each run; 0: as many as it has kinds.
FAULTS = int(os.environ.get("CHAOS_FAULTS", "0"))
#: The runs with all kinds have so many at least.
MOST = max(FAULTS, len(ACTIONS))
#: Most seconds of a run in which faults begin, for each of them.
SECONDS_PER_FAULT = 2.5
#: Share of messages that kill their whole worker at each attempt, until they are dead.
CULPRITS = 0.001


@pytest.mark.slow
@pytest.mark.timeout(150 + 4 * MOST)
@pytest.mark.parametrize(
    ("cast", "violent", "bundle_ms"), [(MIXED, False, 10.0), (PREFORK, True, 0.0)], ids=["bundles", "one by one"]
)
# Long: each kind strikes one of the two runs of half of them.
@pytest.mark.parametrize("half", [True, pytest.param(False, marks=pytest.mark.long)], ids=["half", "all"])
def test_faults_of_every_kind_break_no_promise(
    tmp_path: Path, cast: Cast, *, violent: bool, bundle_ms: float, half: bool
) -> None:
    seed = default_seed("CHAOS_SEED")
    culprits = CULPRITS if violent else 0.0
    # One of the two runs has three subscriptions, the other one lane: the seed says which.
    subscriptions = draw_subscriptions(seed) if violent == bool(seed % 2) else ONE
    subscriptions = split(subscriptions, draw_partitions(seed + violent))
    versions = draw_versions(seed + violent)
    # One of the two runs has HTTP consumers, too.
    http = violent != bool(seed // 2 % 2)
    first = half_of_kinds(seed, int(violent), http=http) if half else list(ACTIONS)
    faults = FAULTS or len(first)
    print(f"CHAOS_SEED={seed} CHAOS_FAULTS={faults}")
    # Versions and repartitions exclude each other.
    repartitions = versions == "one"
    print(list(subscriptions), f"versions: {versions}, repartitions: {repartitions}, HTTP: {http}")
    folder = tmp_path / "run"
    result = short_run(
        folder,
        seed,
        faults,
        cast,
        first=first,
        faults_s=SECONDS_PER_FAULT * faults,
        violent=violent,
        culprits=culprits,
        bundle_ms=bundle_ms,
        subscriptions=subscriptions,
        versions=versions,
        repartitions=repartitions,
        http=http,
    )
    print(in_words(result))
    assert not result.violations, result.describe()
    assert len(result.effects) > 100
    # It waited until each had been told, and had its answer.
    assert not http or result.told.keys() == LIES.keys()
    assert result.ticks > 0
