"""Faults of every kind, drawn by a seed, under load, with bundles and without. Every promise is kept.

``CHAOS_SEED`` replays a draw, ``CHAOS_FAULTS`` says how many faults each of the two runs has. With ``CHAOS_HTTP=1``
both have HTTP consumers, too. They are left out else: one run in ten has a finding of theirs that is not explained yet.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.draw import MIXED, PREFORK, Cast
from tests.chaos.http_program import LIES
from tests.chaos.run import default_seed
from tests.chaos.short import in_words, short_run
from tests.chaos.subscriptions import ONE, draw_partitions, draw_subscriptions, split
from tests.chaos.versions import draw_versions

HTTP = os.environ.get("CHAOS_HTTP") == "1"
FAULTS = int(os.environ.get("CHAOS_FAULTS", "30"))
#: Most seconds of a run in which faults begin, for each of them.
SECONDS_PER_FAULT = 2.5
#: Share of messages that kill their whole worker at each attempt, until they are dead.
CULPRITS = 0.001


@pytest.mark.slow
@pytest.mark.timeout(150 + 4 * FAULTS)
@pytest.mark.parametrize(
    ("cast", "violent", "bundle_ms"), [(MIXED, False, 10.0), (PREFORK, True, 0.0)], ids=["bundles", "one by one"]
)
def test_faults_of_every_kind_break_no_promise(tmp_path: Path, cast: Cast, *, violent: bool, bundle_ms: float) -> None:
    seed = default_seed("CHAOS_SEED")
    print(f"CHAOS_SEED={seed} CHAOS_FAULTS={FAULTS}")
    culprits = CULPRITS if violent else 0.0
    # One of the two runs has three subscriptions, the other one lane: the seed says which.
    subscriptions = draw_subscriptions(seed) if violent == bool(seed % 2) else ONE
    subscriptions = split(subscriptions, draw_partitions(seed + violent))
    versions = draw_versions(seed + violent)
    # Versions and repartitions exclude each other.
    repartitions = versions == "one"
    print(list(subscriptions), f"versions: {versions}, repartitions: {repartitions}")
    folder = tmp_path / "run"
    result = short_run(
        folder,
        seed,
        FAULTS,
        cast,
        faults_s=SECONDS_PER_FAULT * FAULTS,
        violent=violent,
        culprits=culprits,
        bundle_ms=bundle_ms,
        subscriptions=subscriptions,
        versions=versions,
        repartitions=repartitions,
        http=HTTP,
    )
    print(in_words(result))
    assert not result.violations, result.describe()
    assert len(result.effects) > 100
    # It waited until each had been told, and had its answer.
    assert not HTTP or result.told.keys() == LIES.keys()
    assert result.ticks > 0
