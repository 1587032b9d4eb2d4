"""Random calls to the real scripts and to their reference; after each call, all keys are compared.

A failure names its seed: `LANE_SEED=… pytest tests/scripts/test_lane_rules.py` makes the same calls again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from bridge.link.connections import client
from bridge.stack.embedded import EmbeddedServer
from tests.protocol.guards import Guard
from tests.scripts.beside import Differs
from tests.scripts.lane_calls import LaneCalls

pytestmark = pytest.mark.scripts

CALLS = 40


def explore(connected: Any, seeds: Iterable[int], dropped: AbstractSet[Guard] = frozenset()) -> None:
    """Raises `Differs` for the first seed with which a script and the reference differ."""
    for seed in seeds:
        connected.flushall()
        try:
            LaneCalls(connected, seed, dropped).run(CALLS)
        except Differs as exc:
            raise Differs(f"LANE_SEED={seed}: {exc}") from exc


@pytest.mark.parametrize("runs", [20, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_every_script_does_what_the_reference_says(server: EmbeddedServer, runs: int) -> None:
    given = os.environ.get("LANE_SEED")
    first = int(given) if given else secrets.randbelow(10**9)
    print(f"seeds: from {first} on")
    with client(server.url) as connected:
        explore(connected, range(first, first + runs))
