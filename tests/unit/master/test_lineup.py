"""Which apps' lanes are shared by their masters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bridge.master.lineup import _is_shared


def lane(chain: str, *older: str) -> Any:
    return SimpleNamespace(chain=chain, older=older)


@pytest.mark.parametrize(
    ("lanes", "shared"),
    [
        pytest.param([lane("a")], False, id="one lane"),
        pytest.param([lane("a"), lane("a", "v1")], False, id="two versions"),
        pytest.param([lane("a"), lane("a", "p0"), lane("a", "p0")], False, id="a stream that is split"),
        pytest.param([lane("a"), lane("b")], True, id="two subscriptions"),
        # Else each master keeps its part, and nobody leads the last lane: so in two of nine merges by two masters.
        pytest.param([lane("a"), lane("a"), lane("a", "p0", "p1")], True, id="partitions that are merged"),
    ],
)
def test_the_lanes_of_an_app_are_shared_where_two_masters_could_have_parts_of_one_chain(
    lanes: list[Any], shared: bool
) -> None:
    assert _is_shared(lanes) is shared
