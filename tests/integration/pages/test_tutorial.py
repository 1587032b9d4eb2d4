"""The tutorial, followed step by step (`tests.integration.pages.reader`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.pages.reader import Reader, steps

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "index.md"


@pytest.mark.slow
def test_every_step_of_the_tutorial_works_in_its_order(reader: Reader) -> None:
    reader.as_written()
    for step in steps(PAGE):
        reader.follow(step)


def test_every_block_of_the_tutorial_says_what_to_do_with_it() -> None:
    blocks = re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE)
    assert len(blocks) == len([step for step in steps(PAGE) if step.text])
    assert sum(step.what.startswith("not run") for step in steps(PAGE)) == 4
