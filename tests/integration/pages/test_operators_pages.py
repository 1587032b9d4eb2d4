"""Pages for operators, followed step by step as the tutorial is (`tests.integration.pages.reader`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.pages.reader import Reader, steps

HOWTO = Path(__file__).parents[3] / "docs" / "howto"
PAGES = ["pending.md", "schedule.md", "notices.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_step_of_the_page_works_in_its_order(reader: Reader, page: str) -> None:
    for step in steps(HOWTO / page):
        reader.follow(step)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_says_what_to_do_with_it(page: str) -> None:
    blocks = re.findall(r"^```\w+$", (HOWTO / page).read_text(), re.MULTILINE)
    assert len(blocks) == len([step for step in steps(HOWTO / page) if step.text])
