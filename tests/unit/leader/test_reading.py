"""How much a lane reads at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bridge.leader.stream import reading
from bridge.leader.stream.reading import READ_COUNT, SUBSCRIPTION_READ_COUNT, Reading


@pytest.mark.parametrize(
    ("has_company", "most", "asked"),
    [
        (False, 10**6, READ_COUNT),
        (True, 10**6, SUBSCRIPTION_READ_COUNT),
        # Within bridge_max_lag there may be room for fewer.
        (True, 7, 7),
    ],
)
def test_a_subscription_reads_little_at_once(
    has_company: bool, most: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def read(_redis: Any, _leadership: Any, count: int, _read_to: str, **_: Any) -> Any:
        counts.append(count)
        return SimpleNamespace(entries=[], largest=0)

    monkeypatch.setattr(reading, "read", read)
    settings = SimpleNamespace(filter=None, max_payload=1)
    term: Any = SimpleNamespace(redis=None, leadership=None, settings=settings)
    lane: Any = None
    Reading(term, lane, has_company=has_company).read_on(most=most)
    assert counts == [asked]
    assert SUBSCRIPTION_READ_COUNT < READ_COUNT
