"""A run with HTTP consumers alone: they are killed, frozen and lie, beside one Celery worker, and masters are killed.

The runs of `tests.chaos.test_chaos` have HTTP consumers among others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.http_consumers import FAULTS, HttpChaos


@pytest.mark.slow
@pytest.mark.long
def test_nothing_is_lost_reordered_or_believed(tmp_path: Path, valkey_binary: Path) -> None:
    del valkey_binary
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")
    with HttpChaos(tmp_path, seed) as chaos:
        assert chaos.go(len(FAULTS) + 4) == []
        # It told each lie, and had its answer.
        assert chaos.liar.untold() == []
