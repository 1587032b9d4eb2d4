"""Pages of a long list, for which only so much is read."""

from __future__ import annotations

from itertools import count

import pytest

from bridge.inspect import page
from bridge.inspect.page import Page, page_of


@pytest.mark.parametrize(
    ("limit", "found"),
    [(2, Page((0, 3), 3, 4)), (3, Page((0, 3, 6), None, 7)), (9, Page((0, 3, 6), None, 7))],
    ids=["the limit", "the end and the limit", "the end"],
)
def test_a_page_says_where_to_go_on_and_whether_there_is_more(limit: int, found: Page[int]) -> None:
    assert page_of(range(7), limit, lambda number: number % 3 == 0) == found


def test_a_search_for_what_is_rare_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LOOKED_AT", 5)
    assert page_of(count(), 9, lambda number: number == 2) == Page((2,), 4, 5)
