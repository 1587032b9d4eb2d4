"""Pages for operators, followed step by step as the tutorial is (`test_tutorial`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.integration.pages.test_tutorial import Reader, steps

HOWTO = Path(__file__).parents[3] / "docs" / "howto"
PAGES = ["pending.md", "schedule.md"]


@pytest.fixture
def reader(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[Reader]:
    folder = tmp_path / "shop"
    folder.mkdir()
    reader = Reader(folder, own_server.url)
    yield reader
    reader.yard.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_step_of_the_page_works_in_its_order(reader: Reader, page: str) -> None:
    for step in steps(HOWTO / page):
        reader.follow(step)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_says_what_to_do_with_it(page: str) -> None:
    blocks = re.findall(r"^```\w+$", (HOWTO / page).read_text(), re.MULTILINE)
    assert len(blocks) == len([step for step in steps(HOWTO / page) if step.text])
